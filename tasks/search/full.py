"""Every combination, in trtexec's order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from routetune.tasks.search.base import Staged, spoken

if TYPE_CHECKING:
    from routetune.tasks.routes.route import Route
    from routetune.tasks.routes.space import RouteSpace


def plan(space: RouteSpace) -> Iterator[dict[str, str]]:
    """The Cartesian product, the last knob fastest, without what the exclude rules forbid."""
    return space.assignments()


class Full(Staged):
    """trtexec's `full`."""

    name = "full"

    def _stages(self) -> Iterator[Iterable[Route]]:
        yield map(self.space.route, plan(self.space))

    @property
    def total(self) -> int | None:
        return self.space.count()

    def explain(self) -> str:
        knobs = sum(term.variable for term in self.space.terms)
        rules = len(self.space.exclude)
        without = f", without what {rules} exclude rules forbid" if rules else ""
        return f"full: all {spoken(self.space.size)} combinations of {knobs} variable knobs{without}"
