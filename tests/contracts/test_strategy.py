"""What every search strategy promises, run on each."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import cycle

import pytest
from routetune.tasks.errors import BadInput
from routetune.tasks.routes.knob import Knob, KnobDatabase
from routetune.tasks.routes.route import Route
from routetune.tasks.routes.space import RouteSpace, open_space
from routetune.tasks.search import STRATEGIES, blame, expand, open_search, surrogate
from routetune.tasks.search.base import Strategy
from routetune.tasks.trial import Failure, Outcome, Trial

DATABASE = KnobDatabase(
    "1",
    [
        Knob("-a", ("on", "off"), "on"),
        Knob("-b", ("0", "1", "2", "3"), "1"),
        Knob("-c", ("x", "y", "z"), "y"),
        Knob("-d", ("on", "off"), "off"),
        Knob("-n", None, "0", hint="int32_t"),
        *(Knob(f"+k{number}", ("on", "off"), "on") for number in range(200)),
    ],
)
SPACES = {
    "plain": ("-b=[0|1|2|3] -a=[on|off] -c=[x|y|z]", ()),
    "defaults not listed": ("-n=7 -b=[3|0] -c=[z] -a=[off|on] -d=on", ()),
    "fixed only": ("-n=7 -a=off", ()),
    "with rules": ("-b=[*] -a=[*] -c=[*] -d=[*]", ("-a=off -c=z", "-b=0", "-d=off -c=y -b=1 -a=on")),
    "nothing left": ("-a=[on|off] -b=[0|1|2]", ("-a=on", "-a=off")),
}

Outcomes = Callable[[Route], Trial]


def landscape(route: Route) -> Trial:
    """An outcome that only depends on the route: any kind of end, and for most a speed."""
    rng = random.Random(route.id)
    kind = rng.choice([*Outcome, *[Outcome.ELIGIBLE] * 10])
    if kind not in (Outcome.ELIGIBLE, Outcome.INACCURATE):
        return Trial(route, failure=Failure(kind, "it did", "build"))
    speed = rng.choice([rng.uniform(0.5, 2), rng.uniform(0.5, 2), 1.0, float("nan"), None])
    alias = rng.choice([None, None, "0" * 16])
    return Trial(
        route, accepted=kind is Outcome.ELIGIBLE, speed=speed, alias_of=alias, abandoned=speed == 1.0
    )


def all_helps(route: Route) -> Trial:
    return Trial(route, accepted=True, speed=1.0 + len(route))


def all_fails(route: Route) -> Trial:
    return Trial(route, failure=Failure(Outcome.CRASHED, "SIGSEGV", "timing"))


def run(search: Strategy, outcomes: Outcomes, sizes: Iterator[int], shuffle: int = 0) -> list[list[Route]]:
    """Ask and tell until the search is over; returns the batches."""
    batches = []
    rng = random.Random(shuffle)
    while batch := search.ask(next(sizes)):
        batches.append(batch)
        trials = [outcomes(route) for route in batch]
        rng.shuffle(trials)
        search.tell(trials)
    return batches


def flat(batches: list[list[Route]]) -> list[Route]:
    return [route for batch in batches for route in batch]


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same code with less of it: what is promised here does not hang on how good the choices are."""
    for module, settings in ((blame, {"CHAINS": 4, "SWEEPS": 2}), (surrogate, {"DRAWS": 2, "STEPS": 1})):
        for setting, value in settings.items():
            monkeypatch.setattr(module, setting, value)


#: Optuna fits a model at every ask, which takes most of the time of all these tests together.
PARAMS = [pytest.param(name, marks=pytest.mark.slow) if name == "model" else name for name in STRATEGIES]


@pytest.fixture(params=PARAMS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=SPACES)
def space(request: pytest.FixtureRequest) -> RouteSpace:
    expression, exclude = SPACES[request.param]
    return open_space(expression, DATABASE, exclude)


@pytest.fixture(params=[landscape, all_helps, all_fails], ids=lambda outcomes: outcomes.__name__)
def outcomes(request: pytest.FixtureRequest) -> Outcomes:
    chosen: Outcomes = request.param
    return chosen


def test_routes_are_new_allowed_and_canonical(name: str, space: RouteSpace, outcomes: Outcomes) -> None:
    search = open_search(name, space)
    batches = run(search, outcomes, cycle([4]))
    asked = flat(batches)
    assert all(len(batch) <= 4 for batch in batches)
    assert len(set(asked)) == len(asked)
    for route in asked:
        assignment = {term.knob.name: term.knob.default for term in space.terms} | route.as_dict()
        assert space.allows(assignment)
        assert space.route(assignment) == route
        for term in space.terms:  # nothing but listed values, and for variable knobs the default
            offered = {*term.values, term.knob.default} if term.variable else set(term.values)
            assert assignment[term.knob.name] in offered
        assert set(route.as_dict()) <= {term.knob.name for term in space.terms}
    assert search.ask(8) == []


def test_batch_sizes_and_the_order_of_telling_change_nothing(
    name: str, space: RouteSpace, outcomes: Outcomes
) -> None:
    one_by_one = flat(run(open_search(name, space, 3), outcomes, cycle([1])))
    for shuffle, sizes in enumerate(([8], [1000], [1, 5, 2])):
        assert flat(run(open_search(name, space, 3), outcomes, cycle(sizes), shuffle)) == one_by_one


@pytest.mark.parametrize("at_once", [2, 3])
def test_several_at_once_rest_on_what_was_told(name: str, space: RouteSpace, at_once: int) -> None:
    """As many as there are devices, whichever of them ends first; and none is missed or tried twice."""
    whole = flat(run(open_search(name, space, 1, at_once), landscape, cycle([at_once])))
    assert len(set(whole)) == len(whole)
    assert flat(run(open_search(name, space, 1, at_once), landscape, cycle([1, 1000]), shuffle=2)) == whole
    if name in ("auto", "guided", "model", "racing"):
        assert set(whole) == set(flat(run(open_search(name, space, 1), landscape, cycle([1]))))
        search = open_search(name, space, 1, at_once)
        search.tell([landscape(Route())])
        assert len(search.ask(at_once)) == min(at_once, len(set(whole) - {Route()}))


def test_the_total_is_what_was_asked(name: str, space: RouteSpace, outcomes: Outcomes) -> None:
    search = open_search(name, space)
    planned = search.total
    asked = flat(run(search, outcomes, cycle([3])))
    assert search.total == len(asked)
    assert planned is None or planned <= len(asked)


def test_a_search_resumes_from_what_is_known(name: str, space: RouteSpace, outcomes: Outcomes) -> None:
    whole = flat(run(open_search(name, space, 1), outcomes, cycle([2])))
    for done in {0, 1, 3, 9, 27, len(whole)} & {*range(len(whole) + 1)}:
        resumed = open_search(name, space, 1)
        resumed.tell([outcomes(route) for route in reversed(whole[:done])])
        assert flat(run(resumed, outcomes, cycle([3]))) == whole[done:]


def test_trials_may_be_told_twice_and_of_routes_never_asked(name: str, space: RouteSpace) -> None:
    whole = flat(run(open_search(name, space), landscape, cycle([5])))
    search = open_search(name, space)
    search.tell([landscape(Route((("-unheard", "of"),)))])
    asked = []
    while batch := search.ask(5):
        asked += batch
        for _ in range(2):
            search.tell([landscape(route) for route in batch])
    assert asked == whole


def test_nothing_more_is_planned_on_half_of_the_answers(name: str, space: RouteSpace) -> None:
    search = open_search(name, space)
    asked: list[Route] = []
    while batch := search.ask(1):  # never told, so a later stage cannot begin
        asked += batch
    assert asked == [space.route(assignment) for assignment in expand(name, space)]
    assert search.ask(0) == []


def test_it_explains_itself_in_one_line(name: str, space: RouteSpace) -> None:
    search = open_search(name, space)
    before = search.explain()
    run(search, landscape, cycle([7]))
    for line in (before, search.explain()):
        assert line.startswith(f"{name}: ")
        assert "\n" not in line


def test_200_knobs_and_half_of_it_excluded(name: str) -> None:
    search = open_search(name, open_space("+*=[*]", DATABASE, ["+k0=on"]))
    batch = search.ask(20)
    assert 1 <= len(set(batch)) == len(batch) <= 20
    assert all(route.as_dict()["+k0"] == "off" for route in batch)
    search.tell([landscape(route) for route in batch])
    assert len(search.explain()) < 250


def test_seeds_fix_what_is_drawn(name: str) -> None:
    space = open_space(SPACES["plain"][0], DATABASE)
    first, again, other = (
        flat(run(open_search(name, space, seed), landscape, cycle([1]))) for seed in (0, 0, 1)
    )
    assert first == again
    assert (first == other) == (name in ("fast", "full", "mixed"))


def test_an_unknown_strategy_is_refused_with_the_known_ones() -> None:
    space = open_space("-a=[on|off]", DATABASE)
    for call in (open_search, expand):
        with pytest.raises(
            BadInput, match=r"'fastest'.*auto, fast, full, guided, mixed, model, racing, random, screening"
        ):
            call("fastest", space)
