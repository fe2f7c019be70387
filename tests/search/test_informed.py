"""The searches that learn, on landscapes whose answer is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from routetune.tasks.errors import BadInput
from routetune.tasks.routes.route import Route
from routetune.tasks.search import model, open_search
from routetune.tasks.search.blame import Blame
from routetune.tasks.search.screening import Screening
from routetune.tasks.search.surrogate import Surrogate

from tests.benchmarks.search import landscape, replay, synthetic

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
    assert alone < 0.3 < 0.8 < helped and other > 0.8


def test_blame_believes_in_one_culprit_rather_than_in_many() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2, (14, 6))
    works = Blame(codes, codes[:, 2] == 0, rng).works(np.array([[1, 1, 1, 1, 1, 1], [1, 1, 0, 1, 1, 1]]))
    assert works[0] < 0.2 and works[1] > 0.6


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
