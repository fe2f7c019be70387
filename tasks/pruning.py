"""Pruning: what very likely brings nothing is tried last. Nothing is left out for good.

- Knobs that do nothing on this model are left out of the search until it is over; then the whole space is
  searched, from what is known by then. Those that do nothing beside some settings are inert beside these.
- A setting is inert while every route that was tried with it compiled to the engine of the route without it.
  A route with inert settings is put off: the one without them is tried in its place, and the search is told
  the outcome for both.
- Settings that are blamed for failures (`blame.py`) put off every route that holds them.

Each of them may still act beside another setting, so what was put off is built when nothing else is left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from routetune.tasks.blame import Blame, blamed, holds
from routetune.tasks.routes.route import Route
from routetune.tasks.routes.space import RouteSpace
from routetune.tasks.search.base import Strategy
from routetune.tasks.trial import Trial

#: Strategies whose order does not depend on failures; the others weigh these themselves, and may know why
#: they want a knob that fails alone beside another.
BLIND = frozenset({"fast", "full", "mixed", "random"})
#: Knob and value.
Setting = tuple[str, str]
#: Routes in a row that may be put off; a product over many inert knobs would hold nothing else for ages.
MAX_IN_A_ROW = 1000


class Pruned:
    """A strategy that tries last what very likely brings nothing.

    The order of routes is the same for any batch size, but for those with blamed settings: how early they are
    put off depends on when the failures were told.

    Args:
        open_strategy: opens the strategy on a space.
        space: the routes there are.
        idle: name of a knob -> the settings beside which it does nothing on the model, as far as is known;
            none where it is so beside any.
    """

    def __init__(
        self,
        open_strategy: Callable[[RouteSpace], Strategy],
        space: RouteSpace,
        idle: Mapping[str, Iterable[Setting]] | None = None,
    ) -> None:
        self.space = space
        beside = {name: frozenset(settings) for name, settings in (idle or {}).items()}
        self.idle = frozenset(name for name, settings in beside.items() if not settings)
        self.idle_beside = {name: settings for name, settings in beside.items() if settings}
        self._whole = open_strategy(space)
        self.name = self._whole.name
        # Both are told everything, so that the second takes over where the first ends.
        self._strategies = deque([self._whole])
        if narrow := _without(space, self.idle):
            self._strategies.appendleft(open_strategy(narrow))
        self._baseline = space.route(space.baseline())
        self._same: set[Setting] = set()  # made no difference somewhere
        self._acts: set[Setting] = set()  # made one somewhere
        self._neighbours: dict[Route, list[tuple[Route, Setting]]] = {}  # without a setting -> with it
        self._met: set[Route] = set()
        self._blames: list[Blame] = []
        self._told: dict[Route, Trial] = {}
        self._asked: set[Route] = set()
        self._pending: dict[Route, set[Setting]] = {}  # under way -> settings that it will tell of
        self._offered: deque[Route] = deque()
        self._twins: dict[Route, Route] = {}  # put off -> tried in its place
        self._doubtful: dict[Route, Blame] = {}

    def ask(self, n: int) -> list[Route]:
        batch: list[Route] = []
        in_a_row = 0
        while len(batch) < n and self._refilled(n - len(batch)):
            if self._must_wait(self._offered[0]):
                return batch
            taken = self._take(self._offered.popleft(), may_put_off=in_a_row < MAX_IN_A_ROW)
            in_a_row = 0 if taken else in_a_row + 1
            batch += taken
        if not batch and not self._pending:
            batch = [one for one in self._put_off if one not in self._asked and one not in self._told][:n]
            self._mark(batch)
        return batch

    def tell(self, trials: Sequence[Trial]) -> None:
        told = {trial.route: trial for trial in trials}
        self._told |= told
        for route in told:
            self._pending.pop(route, None)
            self._meet(route)
        self._learn(told)
        self._pass_on(trials)
        waiting = [route for route, twin in self._twins.items() if twin in told and route not in self._told]
        self._pass_on([self._presumed(route) for route in waiting])

    @property
    def total(self) -> int | None:
        return self._whole.total

    def explain(self) -> str:
        return self._whole.explain()

    def to_json(self) -> dict[str, Any]:
        """What was put off and why; see docs/experience.md."""
        return {
            "idle": sorted(self.idle),
            "idle_beside": {
                name: sorted(f"{knob}={value}" for knob, value in settings)
                for name, settings in sorted(self.idle_beside.items())
            },
            "inert": [f"{name}={value}" for name, value in sorted(self._inert) if name not in self.idle],
            "blamed": [blame.to_json() for blame in self._blames],
            "put_off": len(self._put_off),
            "untried": sum(route not in self._told for route in self._put_off),
        }

    @property
    def _put_off(self) -> list[Route]:
        return [*self._twins, *self._doubtful]

    def _refilled(self, n: int) -> bool:
        """Whether there is a route to look at; the next strategy takes over when one is at its end."""
        while not self._offered:
            self._offered.extend(self._strategies[0].ask(n))
            if self._offered:
                break
            if self._pending or len(self._strategies) == 1:
                return False
            self._strategies.popleft()
        return True

    def _take(self, route: Route, may_put_off: bool) -> list[Route]:
        """The route to try for one that the strategy offers, if any."""
        if route in self._asked or route in self._told:
            return []
        if not may_put_off:
            return self._mark([route])
        twin = self._twin(route)
        if twin is not None:
            self._twins[route] = twin
            if twin in self._told:
                self._pass_on([self._presumed(route)])
            return [] if twin in self._told or twin in self._asked else self._mark([twin])
        blame = holds(route, self._blames) if self.name in BLIND else None
        if blame is None:
            return self._mark([route])
        self._doubtful[route] = blame
        return []

    def _mark(self, routes: list[Route]) -> list[Route]:
        for route in routes:
            self._asked.add(route)
            self._meet(route)
            self._pending[route] = tells = set()  # at once, since the route is one end of each pair
            for *ends, setting in self._pairs(route):
                if all(end in self._told or end in self._pending for end in ends):
                    tells.add(setting)
        return routes

    def _meet(self, route: Route) -> None:
        """Make a route known as a neighbour of those with one setting less."""
        if route not in self._met:
            self._met.add(route)
            for setting in self._varied(route):
                self._neighbours.setdefault(_less(route, setting), []).append((route, setting))

    def _pairs(self, route: Route) -> Iterator[tuple[Route, Route, Setting]]:
        """Routes that differ in one setting, this one among them: the one with it, the one without, it."""
        for setting in self._varied(route):
            yield route, _less(route, setting), setting
        for other, setting in self._neighbours.get(route, ()):
            yield other, route, setting

    def _must_wait(self, route: Route) -> bool:
        """Whether a route under way decides if one of its settings is inert."""
        open_ends = set(self._varied(route)) - self._acts
        return any(not open_ends.isdisjoint(settings) for settings in self._pending.values())

    def _varied(self, route: Route) -> list[Setting]:
        return [setting for setting in route.settings if setting not in self._baseline.settings]

    @property
    def _inert(self) -> set[Setting]:
        return self._same - self._acts

    def _twin(self, route: Route) -> Route | None:
        """The route without its inert settings; None where that is no other route of the space."""
        inert = self._inert | self._idle_here(route)
        twin = Route(tuple(setting for setting in route.settings if setting not in inert))
        if twin == route:
            return None
        return twin if twin in self._told or self.space.route_of(twin.as_dict()) is not None else None

    def _idle_here(self, route: Route) -> set[Setting]:
        """The settings of a route whose knobs do nothing beside another one of its settings."""
        told = route.as_dict()
        return {
            (name, value)
            for name, value in self._varied(route)
            for knob, beside in self.idle_beside.get(name, ())
            if told.get(knob, self.space.database[knob].default) == beside
        }

    def _presumed(self, route: Route) -> Trial:
        """What would most likely become of a route: its twin's outcome."""
        twin = self._told[self._twins[route]]
        return replace(twin, route=route, alias_of=twin.alias_of or twin.route.id, seconds={}, cached=())

    def _pass_on(self, trials: Sequence[Trial]) -> None:
        if trials:
            for strategy in self._strategies:
                strategy.tell(trials)

    def _learn(self, told: dict[Route, Trial]) -> None:
        for one, other, setting in (pair for route in told for pair in self._pairs(route)):
            if one in self._told and other in self._told:
                names = [{end.id, self._told[end].alias_of} - {None} for end in (one, other)]
                (self._same if names[0] & names[1] else self._acts).add(setting)
        if self._blames or not all(trial.eligible for trial in told.values()):
            self._blames = blamed(self._told.values())


def _less(route: Route, setting: Setting) -> Route:
    return Route(tuple(kept for kept in route.settings if kept != setting))


def _without(space: RouteSpace, idle: frozenset[str]) -> RouteSpace | None:
    """The space with some knobs left at their defaults; None where that leaves it as it is, or empty."""
    varied = {term.knob.name: term.values for term in space.terms if term.variable}
    kept = {name: values for name, values in varied.items() if name not in idle}
    narrow = space.restricted(kept) if len(kept) < len(varied) else None
    return narrow if narrow is not None and next(narrow.assignments(), None) is not None else None
