"""Random routes without repetition."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from routetune.tasks.search.base import Staged, spoken

if TYPE_CHECKING:
    from routetune.tasks.routes.route import Route
    from routetune.tasks.routes.space import RouteSpace


def plan(space: RouteSpace, seed: int) -> Iterator[dict[str, str]]:
    """Every combination that no rule excludes, in an order that the seed fixes; as full assignments."""
    return space.drawn_assignments(random.Random(seed))


class Sampled(Staged):
    """Routes drawn evenly from the whole space; the honest rival of every cleverer strategy."""

    name = "random"

    def __init__(self, space: RouteSpace, seed: int = 0) -> None:
        super().__init__(space)
        self.seed = seed

    def _stages(self) -> Iterator[Iterable[Route]]:
        yield map(self.space.route, plan(self.space, self.seed))

    @property
    def total(self) -> int | None:
        return self.space.count()

    def explain(self) -> str:
        knobs = sum(term.variable for term in self.space.terms)
        size = spoken(self.space.size)
        return (
            f"random: without repetition from {size} combinations of {knobs} variable knobs, seed {self.seed}"
        )
