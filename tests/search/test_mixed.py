from __future__ import annotations

import pytest
from routetune.tasks.routes.knob import Knob, KnobDatabase
from routetune.tasks.routes.route import Route
from routetune.tasks.routes.space import RouteSpace, open_space
from routetune.tasks.search.mixed import Mixed
from routetune.tasks.trial import Failure, Outcome, Trial

KNOBS = 13
DATABASE = KnobDatabase("1", [Knob(f"-k{number}", ("on", "off"), "on") for number in range(KNOBS)])


def route(*off: int) -> Route:
    return DATABASE.route({f"-k{number}": "off" for number in off})


def first_phase(space: RouteSpace, trials: dict[Route, Trial]) -> tuple[Mixed, list[Route]]:
    """Run phase 1 and ask for what comes next; routes not in `trials` are as fast as the control."""
    search = Mixed(space)
    asked = search.ask(100)
    assert search.ask(100) == []  # phase 2 waits until all of phase 1 was told
    told = [trials.get(r, Trial(r, accepted=True, speed=1.0)) for r in asked]
    search.tell(told[1:])
    assert search.ask(100) == []
    search.tell(told[:1])
    return search, search.ask(5000)


def fast_trial(r: Route, speed: float = 1.5) -> Trial:
    return Trial(r, accepted=True, speed=speed)


def spaced(*numbers: int, exclude: tuple[str, ...] = ()) -> RouteSpace:
    return open_space(" ".join(f"-k{number}=[on|off]" for number in numbers), DATABASE, exclude)


def test_only_positive_knobs_are_combined() -> None:
    search, second = first_phase(spaced(0, 1, 2), {route(n): fast_trial(route(n)) for n in (0, 2)})
    assert second == [route(0, 2)]
    assert "2 helped: -k2 1.50x, -k0 1.50x" in search.explain()
    assert search.total == 5


@pytest.mark.parametrize(
    "trial",
    [
        Trial(route(1), accepted=False, speed=2.0),
        Trial(route(1), accepted=True, speed=None),
        Trial(route(1), accepted=True, speed=float("nan")),
        Trial(route(1), accepted=True, speed=float("inf")),
        *(
            Trial(route(1), speed=2.0, failure=Failure(outcome, "no", "timing"))
            for outcome in Outcome
            if outcome is not Outcome.ELIGIBLE
        ),
    ],
    ids=lambda trial: trial.outcome.value,
)
def test_a_route_that_is_not_eligible_makes_no_knob_positive(trial: Trial) -> None:
    search, second = first_phase(spaced(0, 1), {route(0): fast_trial(route(0)), route(1): trial})
    assert second == []
    assert "takes two changes that help" in search.explain()


def test_an_alias_of_the_baseline_helps_nothing() -> None:
    alias = Trial(route(1), accepted=True, speed=1.0, alias_of=Route().id)
    _, second = first_phase(spaced(0, 1), {route(0): fast_trial(route(0)), route(1): alias})
    assert second == []


def test_changes_are_compared_with_the_baseline_and_not_with_the_control() -> None:
    trials = {Route(): fast_trial(Route(), 1.3), route(0): fast_trial(route(0), 1.2)}
    trials |= {route(n): fast_trial(route(n), 1.4) for n in (1, 2)}
    search, second = first_phase(spaced(0, 1, 2), trials)
    assert second == [route(1, 2)]
    assert "2 helped: -k2 1.08x, -k1 1.08x;" in search.explain()


@pytest.mark.parametrize(
    "baseline", [Trial(Route(), accepted=False, speed=9.0), Trial(Route(), accepted=True, speed=None)]
)
def test_without_an_eligible_baseline_the_control_is_the_measure(baseline: Trial) -> None:
    trials = {route(0): fast_trial(route(0), 0.9)} | {route(n): fast_trial(route(n), 1.1) for n in (1, 2)}
    _, second = first_phase(spaced(0, 1, 2), trials | {Route(): baseline})
    assert second == [route(1, 2)]


def test_an_excluded_baseline_is_neither_asked_nor_compared_with() -> None:
    space = spaced(0, 1, 2, exclude=("-k0=on -k1=on -k2=on",))
    search = Mixed(space)
    search.tell([fast_trial(Route(), 9.0)])  # the control, say
    asked = search.ask(100)
    assert asked == [route(2), route(1), route(0)]
    search.tell([fast_trial(r, 1.1) for r in asked])
    assert search.ask(100) == [route(1, 2), route(0, 2), route(0, 1), route(0, 1, 2)]


def test_the_cap_keeps_the_ten_best_and_says_so() -> None:
    speeds = {route(n): fast_trial(route(n), 1.1 + (n * 5 % KNOBS) / 100) for n in range(KNOBS)}
    search, second = first_phase(spaced(*range(KNOBS)), speeds)
    worst = {f"-k{n}" for n in range(KNOBS) if n * 5 % KNOBS < KNOBS - 10}
    assert len(worst) == KNOBS - 10
    assert len(second) == 2**10 - 1 - 10
    assert not any(worst & set(r.as_dict()) for r in second)
    assert "cap of 10 applied, left out: " in search.explain()
    assert all(name in search.explain().partition("left out: ")[2] for name in worst)
    assert search.total == 1 + KNOBS + len(second)


def test_exclude_rules_hold_in_the_second_phase() -> None:
    space = spaced(0, 1, 2, exclude=("-k0=off -k2=off",))
    search, second = first_phase(space, {route(n): fast_trial(route(n)) for n in range(3)})
    assert second == [route(1, 2), route(0, 1)]
    assert search.total == 6
