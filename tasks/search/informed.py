"""Searches that choose each next route from everything that is known by then."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from routetune.tasks.search.base import Staged, spoken

if TYPE_CHECKING:
    from routetune.tasks.routes.route import Route
    from routetune.tasks.routes.space import RouteSpace
    from routetune.tasks.trial import Trial

    Known = Sequence[tuple[tuple[int, ...], Trial]]

#: Spaces up to this many routes are weighed whole; of larger ones this many candidates.
POOL = 600


class Informed(Staged):
    """The next route is a pure function of the seed and of all trials told: so it resumes from them alone,
    and trials of an earlier run count like its own.

    Attributes:
        seed: for whatever the choice draws.
        at_once: so many routes are chosen before the first of them is told, for as many devices.
    """

    def __init__(self, space: RouteSpace, seed: int = 0, at_once: int = 1) -> None:
        super().__init__(space)
        self.seed, self.at_once = seed, at_once
        self._levels = [{value: at for at, value in enumerate(term.values)} for term in space.terms]

    @abstractmethod
    def _pick(self, known: Known, pool: Sequence[Route], awaited: Sequence[Route]) -> Route:
        """The next route, one of `pool`.

        Args:
            known: trials told, with their codes; not empty, and sorted.
            awaited: routes chosen just before, of which nothing is known yet.
        """

    def choose(self, awaited: Sequence[Route] = ()) -> Route | None:
        """The next route beside the `awaited`, or None when every other route was told."""
        known = self._known()
        pool = [route for route in self._pool(known) if route not in awaited]
        if not pool:
            return None
        return self._pick(known, pool, awaited) if known else pool[0]

    def _stages(self) -> Iterator[Iterable[Route]]:
        while batch := self._batch():
            yield batch

    def _batch(self) -> list[Route]:
        chosen: list[Route] = []
        while len(chosen) < self.at_once and (route := self.choose(chosen)) is not None:
            chosen.append(route)
        return chosen

    def code(self, route: Route) -> tuple[int, ...]:
        """The value of each knob by its place in the list; one past the end for a default not listed."""
        told = route.as_dict()
        terms = zip(self._levels, self.space.terms, strict=True)
        return tuple(levels.get(told.get(t.knob.name, t.knob.default), len(levels)) for levels, t in terms)

    def generator(self, known: Sequence[Any], awaited: Sequence[Route] = ()) -> np.random.Generator:
        """Random numbers that depend on the seed, on how much is known, and on how much will be."""
        return np.random.default_rng([self.seed, len(known) + len(awaited)])

    def _known(self) -> list[tuple[tuple[int, ...], Trial]]:
        """Trials of this space's routes, with their codes, in an order that no order of telling changes."""
        found = [
            (self.code(route), trial)
            for route, trial in self._told.items()
            if self.space.route_of(route.as_dict()) is not None
        ]
        return sorted(found, key=lambda pair: pair[0])

    def _pool(self, known: Known) -> list[Route]:
        """Routes not told yet; the baseline first where it is one, since the others are compared with it."""
        if self.space.size <= POOL:
            pool = [route for route in self.space if route not in self._told]
        else:
            pool = self._sampled_pool(known)
        baseline = self.space.baseline()
        if all(baseline[term.knob.name] in term.values for term in self.space.terms):
            first = self.space.route(baseline)
            if first in pool:
                pool.remove(first)
            if first not in self._told and self.space.allows(baseline):
                pool.insert(0, first)
        return pool

    def _sampled_pool(self, known: Known) -> list[Route]:
        """Of a large space: neighbours of the best routes, mixtures of two of them, and random routes."""
        rng = random.Random(f"{self.seed} {len(known)}")
        best = sorted((t for _, t in known if t.eligible), key=lambda t: -(t.speed or 0.0))[:6]
        found: dict[Route, None] = {}
        for route in self._near([trial.route for trial in best], rng):
            found[route] = None
        drawn = (route for route in self.space.draw(rng) if route not in self._told)
        for route in islice(drawn, POOL // 3):
            found[route] = None
        return [route for route in found if route not in self._told]

    def _near(self, best: Sequence[Route], rng: random.Random) -> Iterator[Route]:
        near: list[dict[str, str]] = []
        full = [self._full(route) for route in best]
        for one in full[:2]:
            near += [one | {t.knob.name: v} for t in self.space.terms for v in t.values]
        for _ in range(POOL if full else 0):
            one, other = rng.choice(full), rng.choice(full)
            mixed = {name: rng.choice((value, other[name])) for name, value in one.items()}
            for term in rng.sample(self.space.terms, min(2, len(self.space.terms))):
                mixed[term.knob.name] = rng.choice(term.values)
            near.append(mixed)
        listed = {t.knob.name: t.values for t in self.space.terms}
        kept = [a for a in near if all(v in listed[n] for n, v in a.items()) and self.space.allows(a)]
        rng.shuffle(kept)
        return map(self.space.route, kept[: 2 * POOL // 3])

    def _full(self, route: Route) -> dict[str, str]:
        told = route.as_dict()
        return {t.knob.name: told.get(t.knob.name, t.knob.default) for t in self.space.terms}

    @property
    def total(self) -> int | None:
        return self.space.count()

    def explain(self) -> str:
        knobs = sum(term.variable for term in self.space.terms)
        return f"{self.name}: {self._how()}, over {spoken(self.space.size)} routes of {knobs} variable knobs"

    @abstractmethod
    def _how(self) -> str:
        """What it does, in a few words."""
