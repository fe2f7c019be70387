"""Finalists and the decision: the rules one by one, and how often they err on synthetic noise."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from routetune.tasks.errors import BadInput, NoEligibleRoute
from routetune.tasks.routes.route import Route
from routetune.tasks.trial import Failure, Outcome, Trial
from routetune.tasks.verdicts.intervals import estimate
from routetune.tasks.verdicts.selection import (
    Decision,
    DuelResult,
    comparisons,
    decide,
    finalists,
    loads_needed,
    plainest,
)

CONFIDENCE = 0.95


def route(text: str) -> Route:
    return Route(tuple(tuple(token.split("=")) for token in text.split()))  # type: ignore[misc]


def trial(text: str, speed: float | None, low: float = 0.0, high: float = math.inf, **more: Any) -> Trial:
    return Trial(route(text), speed=speed, low=low, high=high, **({"accepted": True} | more))


def names(trials: list[Trial]) -> list[str]:
    return [str(one.route) for one in trials]


def duel(text: str, *speeds: float, simplicity: int | None = None) -> DuelResult:
    """A duel of 15 loads around the given speeds."""
    loads = [math.log(speeds[i % len(speeds)]) for i in range(15)]
    return DuelResult(text, len(text.split()) if simplicity is None else simplicity, loads)


def chosen(*duels: DuelResult, min_gain: float = 0.01, barred: str = "") -> Decision:
    return decide(list(duels), min_gain, CONFIDENCE, barred)


def test_finalists_are_those_that_may_be_the_fastest() -> None:
    best, near, far = (
        trial("-a=1", 1.3, 1.2, 1.4),
        trial("-b=1", 1.15, 1.1, 1.25),
        trial("-c=1", 1.1, 1.0, 1.18),  # 1 % more, for being loaded once, is still below 1.2
    )
    assert names(finalists([far, near, best], 5)) == ["-a=1", "-b=1"]
    assert names(finalists([far, near, best], 1)) == ["-a=1"]
    unsure = trial("-d=1", 1.05)
    assert names(finalists([far, unsure, best], 5)) == ["-a=1", "-d=1"]
    assert finalists([], 5) == []
    assert names(finalists([far, near], 5, at_least=1.2)) == ["-b=1"]
    assert names(finalists([far, near], 5, at_least=1.19)) == ["-b=1", "-c=1"]


def test_only_measured_eligible_routes_are_finalists() -> None:
    failed = Failure(Outcome.CRASHED, "crashed (SIGSEGV)", "timing")
    trials = [
        trial("-a=1", 9.0, accepted=False),
        trial("-b=1", 9.0, failure=failed),
        trial("-c=1", None),
        trial("-d=1", 9.0, abandoned=True),
        trial("-e=1", math.nan),
        trial("-f=1", math.inf),
        trial("-g=1", 0.0),
        trial("", 1.0, 1.0, 1.0),
        trial("-h=1", 1.02),
    ]
    assert names(finalists(trials, 5)) == ["-h=1"]


def test_aliases_count_once_and_those_of_the_default_not_at_all() -> None:
    first, default = trial("-a=1", 1.2), trial("", 1.0)
    alias = trial("-b=1", 1.2, alias_of=first.route.id)
    idle = trial("-c=1", 1.0, alias_of=default.route.id)
    assert names(finalists([default, first, alias, idle], 5)) == ["-a=1"]
    # The default itself may be the alias, of a route that was tried before it.
    assert names(finalists([first, trial("", 1.2, alias_of=first.route.id)], 5)) == []


def test_equal_speeds_are_ranked_simpler_first() -> None:
    trials = [trial(text, 1.1) for text in ("-a=1 -b=1", "-d=1", "-c=1")]
    assert names(finalists(trials, 2)) == ["-c=1", "-d=1"]


def test_the_winner_needs_its_lower_bound_above_the_gain() -> None:
    clear = chosen(duel("-a=1", 1.02, 1.03))
    assert (clear.winner, clear.kind) == ("-a=1", "winner")
    assert clear.estimate is not None and clear.estimate.low >= 1.01 and str(clear.estimate) in clear.reason
    # A faster median whose bound does not clear loses, and says so.
    unsure = chosen(duel("-a=1", 1.5, 1.4, 0.9))
    assert (unsure.winner, unsure.kind, unsure.estimate) == ("", "default", None)
    assert "default route wins" in unsure.reason and "lower bound" in unsure.explanations["-a=1"]
    assert chosen(duel("-a=1", 1.02), min_gain=0.03).kind == "default"
    # Exactly as fast is no gain, even where none is asked for.
    assert chosen(duel("-a=1", 1.0), min_gain=0.0).kind == "default"
    assert chosen(duel("-a=1", 1.001), min_gain=0.0).winner == "-a=1"


def test_a_tie_goes_to_the_simpler_route_then_to_the_first_by_string() -> None:
    complex_one = duel("-a=1 -b=1", 1.20, 1.21)
    tied = chosen(complex_one, duel("-c=1", 1.21, 1.19))
    assert tied.winner == "-c=1" and tied.tie == ["-c=1", "-a=1 -b=1"]
    assert "tied" in tied.reason and "simpler" in tied.explanations["-a=1 -b=1"]
    alike = chosen(duel("-d=1", 1.20, 1.21), duel("-c=1", 1.21, 1.20))
    assert alike.winner == "-c=1" and "first by its string" in alike.explanations["-d=1"]
    # A simpler route that is truly slower is no tie.
    apart = chosen(complex_one, duel("-c=1", 1.15, 1.16))
    assert apart.winner == "-a=1 -b=1" and apart.tie == [] and "1.04" in apart.explanations["-c=1"]


def test_the_simpler_of_a_tie_must_clear_the_gain_itself() -> None:
    sure, simple = duel("-a=1 -b=1", 1.06, 1.05), duel("-c=1", 1.07, 1.0, 1.06)
    assert estimate(simple.log_ratios, CONFIDENCE, 3).high > 1.05
    decision = chosen(sure, simple)
    assert decision.winner == "-a=1 -b=1" and "does not clear" in decision.explanations["-c=1"]


def test_pairs_are_compared_load_by_load() -> None:
    # Loads shift both alike by far more than they differ; only the pairs can tell them apart.
    shifts = [0.9 + 0.02 * i for i in range(15)]
    slower = DuelResult("-a=1", 1, [math.log(1.5 * s) for s in shifts])
    faster = DuelResult("-b=1 -c=1", 2, [math.log(1.53 * s) for s in shifts])
    decision = chosen(slower, faster)
    assert decision.winner == "-b=1 -c=1" and decision.tie == []


def test_a_default_that_is_not_eligible_cannot_win() -> None:
    duels = duel("-a=1", 0.50, 0.51), duel("-b=1", 0.80, 0.81)
    slower = chosen(*duels, barred="is not eligible")
    assert (slower.winner, slower.kind) == ("-b=1", "fastest eligible")
    assert "slower" in slower.reason and "not eligible" in slower.reason
    assert "as fast" in slower.explanations["-a=1"]
    tied = chosen(duel("-a=1 -b=1", 0.8, 0.81), duel("-c=1", 0.81, 0.8), barred="is not eligible")
    assert tied.winner == "-c=1" and len(tied.tie) == 2
    with pytest.raises(NoEligibleRoute):
        chosen(barred="is not eligible")


def test_too_few_loads_never_make_a_winner_and_say_so() -> None:
    few = [DuelResult(f"-{c}=1", 1, [0.3] * 8) for c in "abcde"]
    decision = decide(few, 0.01, CONFIDENCE)
    assert decision.kind == "default" and "8 loads are too few" in decision.reason
    assert loads_needed(5, CONFIDENCE) == 10 and "5 finalists need 10" in decision.reason
    assert decide(few[:3], 0.01, CONFIDENCE).kind == "winner" and loads_needed(3, CONFIDENCE) == 8
    # Without a default to fall back on, the medians decide, and not simplicity.
    unsure = [DuelResult("-a=1", 1, [0.1] * 4), DuelResult("-b=1 -c=1", 2, [0.3] * 4)]
    fallback = decide(unsure, 0.01, CONFIDENCE, barred="is not eligible")
    assert fallback.winner == "-b=1 -c=1" and "too few" in fallback.reason


@pytest.mark.parametrize("bad", [[], [0.5, math.nan, 0.5] * 5, [math.inf] * 15])
def test_f41_a_duel_without_usable_times_never_wins(bad: list[float]) -> None:
    decision = chosen(DuelResult("-a=1", 1, bad), duel("-b=1", 1.1))
    assert decision.winner == "-b=1" and "no usable times" in decision.explanations["-a=1"]
    assert chosen(DuelResult("-a=1", 1, bad)).kind == "default"
    with pytest.raises(NoEligibleRoute):
        chosen(DuelResult("-a=1", 1, bad), barred="is not eligible")


def test_no_finalist_means_the_default_wins() -> None:
    decision = chosen()
    assert decision == Decision("", "default", decision.reason)
    assert "no other route got as far as a duel" in decision.reason


def test_every_finalist_but_the_winner_has_an_explanation() -> None:
    duels = [duel("-a=1", 1.2, 1.21), duel("-b=1 -c=1", 1.21, 1.2), duel("-d=1", 1.1), duel("-e=1", 1.0)]
    random.Random(1).shuffle(duels)
    decision = chosen(*duels)
    assert decision.winner == "-a=1"
    assert set(decision.explanations) == {"-b=1 -c=1", "-d=1", "-e=1"}


def test_what_cannot_be_decided_is_refused() -> None:
    with pytest.raises(BadInput, match="twice"):
        chosen(duel("-a=1", 1.1), duel("-a=1", 1.2))
    with pytest.raises(BadInput, match="min_gain"):
        chosen(duel("-a=1", 1.1), min_gain=math.nan)


# Synthetic runs from here on: noise is drawn, nothing is timed. Every load shifts an engine by 0.5 %, and the
# one control of the screening, or of a load, shifts all candidates alike.
LOAD = 0.005


def screened(rng: random.Random, gains: list[float], noise: float) -> list[Trial]:
    """Twenty rounds of each candidate, whose log ratios have a standard deviation of `noise`."""
    control = rng.gauss(0, LOAD)
    trials = []
    for number, gain in enumerate(gains):
        level = math.log1p(gain) + rng.gauss(0, LOAD) - control
        found = estimate([level + rng.gauss(0, noise) for _ in range(20)])
        trials.append(trial(f"-knob{number:02}=1", found.ratio, found.low, found.high))
    return trials


def duelled(rng: random.Random, trials: list[Trial], gains: list[float], noise: float) -> Decision:
    final = finalists(trials, 5)
    controls = [rng.gauss(0, LOAD) for _ in range(loads_needed(len(final), CONFIDENCE))]
    within = 1.25 * noise / math.sqrt(20)  # standard error of a load's median
    duels = []
    for one in final:
        gain = math.log1p(gains[int(str(one.route)[5:7])])
        ratios = [gain + rng.gauss(0, LOAD) - control + rng.gauss(0, within) for control in controls]
        duels.append(DuelResult(str(one.route), 1, ratios))
    return decide(duels, 0.0, CONFIDENCE)


def test_twenty_identical_candidates_seldom_make_a_false_winner() -> None:
    rng, gains, runs = random.Random(20), [0.0] * 20, 400
    false = naive = 0
    for _ in range(runs):
        trials = screened(rng, gains, noise=0.02)
        naive += max(one.speed or 0 for one in trials) > 1
        false += duelled(rng, trials, gains, noise=0.02).kind != "default"
    assert false / runs <= 0.05
    assert naive / runs > 0.9  # what the best of the screening, taken at its word, would have won


@pytest.mark.parametrize(("gain", "often"), [(0.03, 0.95), (0.1, 1.0)])
def test_a_true_gain_is_found_almost_always(gain: float, often: float) -> None:
    rng, gains, runs = random.Random(3), [0.0] * 19 + [gain], 300
    found = 0
    for _ in range(runs):
        decision = duelled(rng, screened(rng, gains, noise=0.01), gains, noise=0.01)
        found += decision.winner == "-knob19=1"
    assert found / runs >= often


def test_one_wild_load_costs_no_winner_its_win() -> None:
    for count in (1, 2, 5):
        loads = [0.03] * loads_needed(count, CONFIDENCE, spare=1)
        wild = [*loads[1:], -0.5]
        rivals = [DuelResult(f"-z{number}=1", 1, [0.0] * len(loads)) for number in range(count - 1)]
        assert decide([DuelResult("-a=1", 1, wild), *rivals], 0.01, CONFIDENCE).winner == "-a=1"


def test_comparisons_count_every_interval_of_a_duel() -> None:
    assert [comparisons(n) for n in (0, 1, 2, 5)] == [1, 1, 3, 15]


def test_an_engine_is_named_by_the_simplest_of_its_routes() -> None:
    """What was tried first may name knobs that did nothing."""
    first = trial("-a=1 -b=1", 1.5, 1.4, 1.6)
    aliases = [trial(text, 1.5, 1.4, 1.6, alias_of=first.route.id) for text in ("-b=1 -c=1", "-b=1", "-d=1")]
    refused = trial("", 1.5, alias_of=first.route.id, accepted=False)
    other = trial("-e=1 -f=1", 1.2)
    trials = [trial("", 1.0), first, refused, *aliases, other]
    named = plainest(trials, Route())
    assert names(named) == ["", "-b=1", "", "-b=1 -c=1", "-b=1", "-d=1", "-e=1 -f=1"]
    assert named[1].alias_of is None and named[1].speed == first.speed
    assert plainest(trials, first.route) == trials, "what the others are measured against keeps its name"
