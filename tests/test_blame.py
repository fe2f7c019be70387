"""Failures are blamed on the settings that cause them, and on nothing else."""

from __future__ import annotations

import random

import pytest
from routetune.tasks.blame import PROOFS, blamed, holds
from routetune.tasks.routes.knob import Knob, KnobDatabase
from routetune.tasks.routes.route import Route
from routetune.tasks.routes.space import open_space
from routetune.tasks.trial import Failure, Outcome, Trial

DATABASE = KnobDatabase("1", [Knob(f"-k{number}", ("on", "off"), "on") for number in range(60)])
SPACE = open_space("-k*=[*]", DATABASE)


def route(*off: int) -> Route:
    return DATABASE.route({f"-k{number}": "off" for number in off})


def trial(route: Route, outcome: Outcome = Outcome.ELIGIBLE) -> Trial:
    if outcome in (Outcome.ELIGIBLE, Outcome.INACCURATE):
        return Trial(route, accepted=outcome is Outcome.ELIGIBLE, speed=1.0)
    return Trial(route, failure=Failure(outcome, "it did", "build"))


def names(trials: list[Trial]) -> list[str]:
    return [str(blame.to_json()["settings"]) for blame in blamed(trials)]


@pytest.mark.parametrize("outcome", [Outcome.CRASHED, Outcome.FAILED, Outcome.INACCURATE])
@pytest.mark.parametrize("culprits", [{7}, {7, 31}])
def test_random_routes_bisect_a_failure_by_themselves(outcome: Outcome, culprits: set[int]) -> None:
    """Of 2**60 routes, some dozens at the most tell which one or two of 60 knobs it is."""
    for seed in range(10):
        trials = [trial(Route())]
        for tried in SPACE.sample(random.Random(seed), 60):
            bad = culprits <= {int(name[2:]) for name, _ in tried.settings}
            trials.append(trial(tried, outcome if bad else Outcome.ELIGIBLE))
        assert names(trials) == [" ".join(sorted(f"-k{number}=off" for number in culprits))]
        if len(culprits) == 1:
            assert names(trials[:25]) == names(trials)


def test_one_that_fails_alone_is_not_blamed_before_others_failed_with_it() -> None:
    """Another knob beside it may save it, as channels-last does for a fused bias."""
    trials = [trial(Route()), trial(route(1), Outcome.INACCURATE)]
    for other in range(2, 2 + PROOFS - 1):
        assert names(trials) == []
        trials += [trial(route(other)), trial(route(1, other), Outcome.INACCURATE)]
    assert names(trials) == ["-k1=off"]
    trials.append(trial(route(1, 50)))
    assert names(trials) == [], "one route passed with it: it is saved there"


def test_what_is_no_evidence() -> None:
    crashes = [trial(route(1, other), Outcome.CRASHED) for other in range(2, 8)]
    passed = [trial(route(other)) for other in range(2, 8)]
    assert names([trial(Route()), *crashes, *passed]) == ["-k1=off"]
    assert names([*crashes, *passed]) == [], "nothing is known of the default route"
    assert names([trial(Route(), Outcome.CRASHED), *crashes, *passed]) == [], "it crashes without them too"
    hanging = [trial(one.route, Outcome.TIMED_OUT) for one in crashes]
    assert names([trial(Route()), *hanging, *passed]) == [], "a time-out may be the neighbours'"
    aliases = [Trial(one.route, failure=one.failure, alias_of="0" * 16) for one in crashes]
    assert names([trial(Route()), *aliases, *passed]) == [], "one engine, one proof"


def test_a_route_holds_what_is_blamed() -> None:
    crashes = [trial(route(1, other), Outcome.CRASHED) for other in range(2, 8)]
    blames = blamed([trial(Route()), *crashes, *(trial(route(other)) for other in range(2, 8))])
    assert holds(route(1, 40), blames) == blames[0]
    assert holds(route(40), blames) is None
