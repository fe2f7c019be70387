"""Pruning changes the order of a search and not what it covers; engines that differ come first."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routetune.tasks.pruning import Pruned, Setting
from routetune.tasks.routes.knob import Knob, KnobDatabase
from routetune.tasks.routes.route import Route
from routetune.tasks.routes.space import RouteSpace, open_space
from routetune.tasks.search import open_search
from routetune.tasks.search.base import Strategy
from routetune.tasks.trial import Failure, Outcome, Trial

from tests.contracts.test_strategy import flat, run

DATABASE = KnobDatabase(
    "1",
    [
        Knob("-a", ("on", "off"), "on"),
        Knob("-b", ("0", "1", "2"), "1"),
        Knob("-c", ("x", "y"), "y"),
        *(Knob(f"-d{number}", ("on", "off"), "on") for number in range(6)),
        *(Knob(f"+e{number}", ("on", "off"), "on") for number in range(30)),
    ],
)
EXPRESSION = "-b=[*] -a=[*] -c=[x] -d*=[*]"
WHOLE = ("fast", "full", "random")


class Landscape:
    """Outcomes that depend on the route's engine; routes with one engine are aliases, as in a real run.

    `inert` knobs change no engine, unless the knob of `wakes` beside them is off its default.
    """

    def __init__(self, seed: int, inert: set[str], wakes: str = "", crashes: str = "") -> None:
        self.seed, self.inert, self.wakes, self.crashes = seed, inert, wakes, crashes
        self.first: dict[str, Route] = {}

    def engine(self, route: Route) -> str:
        told = route.as_dict()
        awake = self.wakes in told
        return str({name: value for name, value in told.items() if awake or name not in self.inert})

    def __call__(self, route: Route) -> Trial:
        engine = self.engine(route)
        rng = random.Random(f"{self.seed} {engine}")
        first = self.first.setdefault(engine, route)
        alias = None if first == route else first.id
        if self.crashes in route.as_dict() or (not route.is_default and rng.random() < 0.1):
            return Trial(route, failure=Failure(Outcome.CRASHED, "SIGSEGV", "build"), alias_of=alias)
        return Trial(route, accepted=True, speed=rng.uniform(0.5, 2), alias_of=alias)


def opened(name: str) -> Callable[[RouteSpace], Strategy]:
    return partial(open_search, name, seed=3)


def searched(search: Strategy, outcomes: Landscape, size: int = 1) -> list[Route]:
    """As a campaign does: the default route first."""
    search.tell([outcomes(Route())])
    return flat(run(search, outcomes, cycle([size])))


KNOBS = sorted(f"-d{number}" for number in range(6))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    inert=st.sets(st.sampled_from(KNOBS)),
    idle=st.dictionaries(st.sampled_from(KNOBS), st.sets(st.tuples(st.just("-b"), st.sampled_from("012")))),
    wakes=st.sampled_from(["", "-a", "-d0"]),
    crashes=st.sampled_from(["none", "-a", "-d1"]),
    name=st.sampled_from(WHOLE),
    size=st.sampled_from([1, 3, 32]),
)
def test_in_the_end_everything_was_tried_once(
    seed: int, inert: set[str], idle: dict[str, set[Setting]], wakes: str, crashes: str, name: str, size: int
) -> None:
    """Whatever is idle, inert, woken up by another knob, or blamed: also where that was wrong."""
    space = open_space(EXPRESSION, DATABASE, ["-d2=off -d3=off"])
    plain = searched(open_search(name, space, seed=3), Landscape(seed, inert, wakes, crashes))
    pruned = searched(Pruned(opened(name), space, idle), Landscape(seed, inert, wakes, crashes), size)
    assert set(pruned) >= set(plain)
    assert len(set(pruned)) == len(pruned)
    for route in pruned:
        assert space.route_of(route.as_dict()) is not None


@pytest.mark.parametrize("name", ["full", "random"])
def test_every_engine_comes_before_the_aliases(name: str) -> None:
    """With 4 of 6 knobs inert, 24 engines are found in a few builds more, and not all over 384 routes."""

    def last_new(search: Strategy) -> int:
        outcomes = Landscape(1, set(KNOBS[:4]))
        engines = [outcomes.engine(route) for route in searched(search, outcomes)]
        assert len(set(engines)) == 24
        return max(engines.index(engine) for engine in set(engines))

    space = open_space(EXPRESSION, DATABASE)
    pruned, plain = last_new(Pruned(opened(name), space)), last_new(open_search(name, space, seed=3))
    assert pruned < plain
    assert pruned < 24 + 2 * len(KNOBS) or name == "random"  # random routes are seldom neighbours of others


def test_idle_knobs_are_tried_last() -> None:
    space = open_space(EXPRESSION, DATABASE)
    order = searched(Pruned(opened("full"), space, {"-d0": [], "-d1": []}), Landscape(1, set()))
    touches = [bool({"-d0", "-d1"} & route.as_dict().keys()) for route in order]
    assert touches == sorted(touches)
    assert len(order) == space.count()


@pytest.mark.parametrize("name", ["full", "random", "guided"])
def test_what_is_idle_beside_a_setting_is_tried_last_there_and_only_there(name: str) -> None:
    """As fusions of a high level are at a low one: routes with them are the route without."""
    space = open_space("-b=[*] -d0=[*] -d1=[*]", DATABASE)
    beside = {"-d0": [("-b", "0"), ("-b", "1")]}  # one of them is the default, which no route names
    search = Pruned(opened(name), space, beside)
    assert search.to_json()["idle_beside"] == {"-d0": ["-b=0", "-b=1"]}
    order = searched(search, Landscape(1, set()))
    idle = [route.as_dict().get("-b", "1") in "01" and "-d0" in route.as_dict() for route in order]
    assert idle == sorted(idle) and any("-d0" in route.as_dict() for route in order[: idle.index(True)])
    assert {Route(), *order} == set(space)


def test_a_search_is_told_the_outcome_of_what_was_put_off() -> None:
    """Otherwise its next stage would wait for routes that nobody tries."""
    space = open_space("-d0=[on|off] -d1=[on|off] -d2=[on|off]", DATABASE)
    outcomes = Landscape(1, {"-d0"})
    search = Pruned(opened("mixed"), space)
    search.tell([outcomes(Route()), outcomes(DATABASE.route({"-d0": "off"}))])
    assert search.to_json()["inert"] == ["-d0=off"]
    order = flat(run(search, outcomes, cycle([2])))
    assert DATABASE.route({"-d1": "off"}) in order and DATABASE.route({"-d2": "off"}) in order
    assert search.to_json()["untried"] == 0


def test_an_order_without_failures_does_not_depend_on_batches() -> None:
    class Healthy(Landscape):
        def __call__(self, route: Route) -> Trial:
            rng = random.Random(f"{self.seed} {self.engine(route)}")
            first = self.first.setdefault(self.engine(route), route)
            return Trial(
                route, accepted=True, speed=rng.uniform(0.5, 2), alias_of=None if first == route else first.id
            )

    space = open_space(EXPRESSION, DATABASE)
    for name in (*WHOLE, "mixed"):
        orders = [
            searched(Pruned(opened(name), space, {"-d5": []}), Healthy(2, {"-d0", "-d1", "-d5"}), size)
            for size in (1, 2, 7, 32)
        ]
        assert all(order == orders[0] for order in orders), name


def test_a_blamed_setting_is_put_off_and_said() -> None:
    space = open_space("-d*=[*]", DATABASE)
    outcomes = Landscape(5, set(), crashes="-d1")
    outcomes.__class__ = type("Sound", (Landscape,), {"__call__": sound})
    search = Pruned(opened("random"), space)
    order = searched(search, outcomes)
    with_it = [index for index, route in enumerate(order) if "-d1" in route.as_dict()]
    assert len(with_it) == 32 and len(order) == 63
    assert with_it[12:] == list(range(63 - 20, 63)), "a few to learn from, all the others at the end"
    assert search.to_json()["blamed"] == [{"settings": "-d1=off", "kind": "does not run", "routes": 32}]


def sound(self: Landscape, route: Route) -> Trial:
    if self.crashes in route.as_dict():
        return Trial(route, failure=Failure(Outcome.CRASHED, "SIGSEGV", "build"))
    return Trial(route, accepted=True, speed=1.0)


def test_a_strategy_that_weighs_failures_itself_is_not_overruled() -> None:
    """It may want a knob that fails alone beside another."""
    space = open_space("-d*=[*]", DATABASE)

    def clever(space: RouteSpace) -> Strategy:
        search = open_search("random", space, seed=3)
        search.name = "clever"
        return search

    plain = searched(open_search("random", space, seed=3), Landscape(5, set(), crashes="-d1"))
    assert searched(Pruned(clever, space), Landscape(5, set(), crashes="-d1")) == plain


def test_a_product_of_inert_knobs_holds_nothing_up() -> None:
    """2**30 routes that are all the same engine: something is asked for at once, and again."""
    outcomes = Landscape(1, {f"+e{number}" for number in range(30)})
    search = Pruned(opened("full"), open_space("-a=[*] +e*=[*]", DATABASE))
    search.tell([outcomes(Route())])
    search.tell([outcomes(DATABASE.route({f"+e{number}": "off"})) for number in range(30)])
    for _ in range(3):
        batch = search.ask(4)
        assert batch
        search.tell([outcomes(route) for route in batch])
