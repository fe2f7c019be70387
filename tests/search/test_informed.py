"""The searches that learn, on landscapes whose answer is known."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from routetune.tasks.errors import BadInput
from routetune.tasks.routes.route import Route
from routetune.tasks.search import model, open_search
from routetune.tasks.search.aliases import twins
from routetune.tasks.search.blame import Blame
from routetune.tasks.search.guided import Guided
from routetune.tasks.search.screening import Screening
from routetune.tasks.search.surrogate import Surrogate
from routetune.tasks.trial import Failure, Outcome, Trial

from tests.benchmarks.search import landscape, replay, synthetic, synthetic_gpu

NAMES = ("auto", "mixed", "random")


def test_a_landscape_survives_its_file(tmp_path: Path) -> None:
    """Also one with outputs that are not finite, crashes, and a default that is over the tolerance."""
    made = next(one for one in synthetic.landscapes(6) if not one.default_is_eligible)
    landscape.write(made, tmp_path / "one.parquet")
    read = landscape.read(tmp_path / "one.parquet")
    assert read.space.size == made.space.size and read.best == made.best
    assert {r: (t.outcome, t.speed) for r, t in read.trials.items()} == {
        r: (t.outcome, t.speed) for r, t in made.trials.items()
    }


def test_guided_beats_mixed_and_random_on_landscapes_it_was_not_made_with() -> None:
    """Synthetic and held out. The margin is wide: their mean regrets are several times larger."""
    made = synthetic.landscapes(8, first=5000)
    mean = {name: replay.table(made, replay.ours(name), range(1), 16)[..., -1].mean() for name in NAMES}
    assert mean["auto"] < 0.6 * mean["mixed"]
    assert mean["auto"] < 0.8 * mean["random"]


@pytest.mark.parametrize("seed", range(4))
def test_screening_finds_the_few_of_200_knobs_that_matter(seed: int) -> None:
    """Synthetic: five help, two crash, three break accuracy, two only help together."""
    wide = synthetic.Wide(seed)
    search = open_search("auto", wide.space, seed)
    assert isinstance(search, Screening)
    assert replay.regrets(wide, search, 60)[-1] < 0.01


@pytest.mark.parametrize("seed", [1012, 1017, 1026, 1030])
def test_screening_finds_a_change_that_harms_in_a_group_that_gains(seed: int) -> None:
    """Synthetic: of the five that matter one harms, and stands in one group with some that help more."""
    wide = synthetic.Wide(seed, harms=1)
    harmful = next(knob for (knob, _), effect in wide.recipe.effects.items() if effect < 0)
    trials = list(replay.builds(wide, open_search("screening", wide.space, seed), 80))
    best = max((trial for trial in trials if trial.eligible), key=lambda trial: trial.speed or 0)
    assert harmful not in best.route.as_dict()


def test_screening_blames_the_knobs_that_crash_or_break_accuracy() -> None:
    wide = synthetic.Wide(3)
    search = Screening(wide.space)
    list(replay.builds(wide, search, 60))
    bad = {knob for rule in [*wide.recipe.crashes, *wide.recipe.inaccurate] for knob, _ in rule}
    assert bad <= {step.knob for step in search.blamed}


def test_blame_falls_on_the_pair_and_spares_what_worked() -> None:
    """fuse alone fails, fuse with its helper works: only the pair without the helper is to blame."""
    codes = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 1]])
    blame = Blame(codes, np.array([True, False, True, True]), np.random.default_rng(0))
    alone, helped, other = blame.works(np.array([[1, 0, 1], [1, 1, 1], [0, 0, 1]]))
    assert alone < 0.6 < 0.8 < helped and other > 0.8


def test_blame_falls_on_three_together_where_any_two_of_them_worked() -> None:
    """A fused bias broke outputs in a graph of channels-first convolutions; each two of these were right."""
    codes = np.array([[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]])
    blame = Blame(codes, np.array([False, True, True, True, True]), np.random.default_rng(0))
    together, two, other = blame.works(np.array([[1, 1, 1, 1], [1, 1, 0, 1], [0, 1, 1, 0]]))
    assert together < 0.3 < 0.8 < min(two, other)


def test_blame_believes_in_one_culprit_rather_than_in_many() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2, (14, 6))
    works = Blame(codes, codes[:, 2] == 0, rng).works(np.array([[1, 1, 1, 1, 1, 1], [1, 1, 0, 1, 1, 1]]))
    assert works[0] < 0.2 and works[1] > 0.6


def test_losses_tell_causes_of_failures_apart() -> None:
    """The default is a little off by its first value, and the second knob breaks outputs: two reasons.

    Without the losses the first value passes for the reason of both.
    """
    codes = np.array([[0, 0, 0], [0, 1, 0], [1, 0, 0]])
    losses = np.array([5e-4, 20.0, 5e-7])
    worked, candidate = losses < 1e-5, np.array([[1, 1, 0]])
    told = Blame(codes, worked, np.random.default_rng(0), losses).works(candidate)
    untold = Blame(codes, worked, np.random.default_rng(0)).works(candidate)
    assert told[0] < 0.3 and untold[0] > 0.7


def test_an_infinite_or_unknown_loss_is_a_cause_of_its_own() -> None:
    codes = np.array([[0, 0], [0, 1], [1, 1]])
    for worst in (np.inf, np.nan):
        losses = np.array([1e-7, worst, 1e-7])
        blame = Blame(codes, np.array([True, False, True]), np.random.default_rng(0), losses)
        assert blame.works(np.array([[0, 1], [1, 0]])).argmax() == 1


def test_what_does_not_build_says_nothing_of_accuracy() -> None:
    """What has `-graph=1` does not build, what has `-tf32=1` is not accurate; the rest does not matter."""
    names = ("-graph", "-tf32", "-a", "-b")
    space = landscape.space_of({"name": n, "values": ["1", "0"], "default": "1"} for n in names)

    def outcome(route: Route) -> Trial:
        if "-graph" not in route.as_dict():
            return Trial(route, failure=Failure(Outcome.FAILED, "it did", "build"))
        accurate = "-tf32" in route.as_dict()
        return Trial(route, accepted=accurate, speed=1.0, loss=1e-7 if accurate else 1e-3)

    search = Guided(space)
    found = []
    while not found or not found[-1].eligible:
        found += map(outcome, search.ask(1))
        search.tell(found[-1:])
    assert len(found) <= 6


def test_likely_aliases_are_seen() -> None:
    """Values 1 and 2 of the last knob were one engine beside one route, and likely are beside another."""
    known = [((0, 0, 1), _compiled("a")), ((0, 0, 2), _compiled("b", "a")), ((1, 0, 1), _compiled("c"))]
    candidates = np.array([[1, 0, 2], [1, 0, 0], [0, 1, 2]])
    likely, *others = twins(known, candidates).tolist()
    assert likely > 0.9 and max(others) < 1e-6
    assert not twins(known[:1], candidates).any()


def test_an_exchange_that_made_a_difference_once_is_trusted_less() -> None:
    known = [((0, 0, 1), _compiled("a")), ((0, 0, 2), _compiled("b", "a")), ((1, 0, 1), _compiled("c"))]
    against = [*known, ((0, 1, 1), _compiled("d")), ((0, 1, 2), _compiled("e"))]
    candidate = np.array([[1, 0, 2]])
    assert 0 < twins(against, candidate)[0] < twins(known, candidate)[0]


def test_exchanges_seen_together_make_none_one_by_one_either() -> None:
    """Two routes of one engine differ in three knobs; so do others in any of these, wherever else."""
    known = [
        ((0, 0, 0, 0), _compiled("a")),
        ((1, 1, 1, 0), _compiled("b", "a")),
        ((0, 0, 0, 1), _compiled("c")),
    ]
    candidates = np.array([[1, 0, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 2], [1, 0, 0, 2]])
    likely = twins(known, candidates)
    assert (likely[:3] > 0.7).all() and (likely[3:] < 1e-6).all()


def test_a_difference_is_put_down_to_what_may_matter() -> None:
    """The first knob does nothing: so the other one made the third route differ."""
    known = [((0, 0), _compiled("a")), ((1, 0), _compiled("b", "a")), ((1, 1), _compiled("c"))]
    beside_it, beside_none = twins(known, np.array([[0, 1], [0, 2]]))
    assert beside_it > 0.8 and beside_none < 1e-6


def test_what_was_seen_nearby_counts_for_more() -> None:
    """Where the first knob is 1 the second does nothing, elsewhere it does: as a fusion in a fused model."""
    known = [
        ((0, 0, 0), _compiled("a")),
        ((0, 1, 0), _compiled("b")),
        ((1, 0, 0), _compiled("c")),
        ((1, 1, 0), _compiled("d", "c")),
        ((0, 0, 1), _compiled("e")),
        ((1, 0, 1), _compiled("f")),
    ]
    fused, plain = twins(known, np.array([[1, 1, 1], [0, 1, 1]]))
    assert fused > plain > 0


def test_a_route_that_is_awaited_counts_and_one_that_did_not_build_is_an_engine_of_none() -> None:
    known = [((0, 0), _compiled("a")), ((0, 1), _compiled("b", "a"))]
    candidate = np.array([[1, 1]])
    assert twins(known, candidate)[0] < 1e-6
    assert twins(known, candidate, [[1, 0]])[0] > 0.8
    failed = Trial(Route((("-k", "c"),)), failure=Failure(Outcome.FAILED, "no kernel", "build"))
    assert twins([*known, ((1, 0), failed)], candidate)[0] > 0.8, "the other one would fail as well"
    assert twins([((0, 0), failed), ((0, 1), failed)], candidate)[0] == 0


def test_among_many_pairs_none_is_left_out_for_its_values() -> None:
    """Of eight knobs the last does nothing where the first is 0: as true of 150 routes as of 40."""
    rng = np.random.default_rng(0)
    every = rng.permutation(list(product((0, 1), repeat=8)))
    known, left = sorted(map(tuple, every[:150].tolist())), every[150:]
    engines = {code: code[:7] if code[0] == 0 else code for code in map(tuple, every.tolist())}
    first: dict[Any, str] = {}
    trials = []
    for number, code in enumerate(known):
        alias = first.setdefault(engines[code], str(number))
        trials.append((code, _compiled(str(number), None if alias == str(number) else alias)))
    chances = twins(trials, left)
    is_alias = np.array([engines[tuple(code)] in first for code in left.tolist()])
    assert chances[is_alias].mean() > 0.7 and chances[left[:, 0] == 1].mean() < 0.33


def _compiled(name: str, alias: str | None = None) -> Trial:
    first = None if alias is None else Route((("-k", alias),)).id
    return Trial(Route((("-k", name),)), accepted=True, speed=1.0, alias_of=first)


def test_the_surrogate_trusts_a_narrow_interval_more_than_a_wide_one() -> None:
    codes = np.array([[0, 0], [0, 1], [1, 0]])
    values, candidate = np.array([0.0, 0.4, 0.0]), np.array([[0, 1]])
    means = [
        Surrogate(codes, values, np.random.default_rng(0), np.array([0.0, deviation, 0.0])).predict(candidate)
        for deviation in (0.0, 0.3)
    ]
    sharp, wide = (belief.mean.mean() for belief in means)
    assert abs(sharp - 0.4) < 0.05 and wide < 0.3


def test_the_surrogate_keeps_a_hopeless_value_from_the_others_of_its_knob() -> None:
    """As the convolution search DEFAULT beside EXHAUSTIVE and HEURISTIC."""
    codes = np.array([[v, a, b] for v in range(3) for a in range(2) for b in range(2)])[:-2]
    values = np.where(codes[:, 0] == 2, -0.8, 0.0) + 0.1 * codes[:, 1]
    belief = Surrogate(codes, values, np.random.default_rng(0)).predict(np.array([[2, 1, 1], [1, 1, 1]]))
    slow, fast = belief.mean.mean(axis=0)
    assert slow < -0.5 and abs(fast - 0.1) < 0.05


def test_synthetic_gpu_landscapes_have_the_make_of_what_was_seen() -> None:
    for one in synthetic_gpu.landscapes("two clocks", 12, 700):
        assert 64 <= len(one.trials) <= 128 and one.eligible
        strict = one.about["strict"]
        assert one.default_is_eligible == (not strict)
        for route, trial in one.trials.items():
            values = route.as_dict()
            if strict and trial.eligible:
                assert values.get("-use_tf32") == "0"
            if trial.alias_of:
                first = next(other for other in one.trials if other.id == trial.alias_of)
                assert one.truth[first] == one.truth[route]
                assert one.trials[first].eligible == trial.eligible


def test_the_surrogate_learns_an_interaction_from_half_of_the_routes() -> None:
    grid = np.stack(np.meshgrid(*[range(2)] * 6, indexing="ij"), axis=-1).reshape(-1, 6)
    truth = 0.3 * grid[:, 0] - 0.2 * grid[:, 1] + 0.5 * grid[:, 2] * grid[:, 3]
    rng = np.random.default_rng(0)
    seen = rng.permutation(len(grid))[:32]
    belief = Surrogate(grid[seen], truth[seen], rng).predict(grid)
    error = np.abs(belief.mean.mean(axis=0) - truth)
    assert error.max() < 0.15
    assert belief.improvement(float(truth.max())).argmax() in np.flatnonzero(truth > 0.75)


def test_model_without_optuna_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)  # as where it is not installed
    space = synthetic.small(0).space
    with pytest.raises(BadInput, match=r"routetune\[search\]"):
        model.Model(space)


def test_trials_of_another_run_count() -> None:
    """A search that is told where the best route's neighbours are goes there sooner."""
    made = synthetic.landscapes(1, first=5100)[0]
    best = max((t for t in made.trials.values() if t.eligible), key=lambda t: t.speed or 0)
    search = open_search("guided", made.space)
    search.tell([trial for route, trial in made.trials.items() if route != best.route])
    assert search.ask(5) == [best.route]
    assert Route() != best.route
