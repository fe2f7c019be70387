"""The baseline and its one-off changes, in trtexec's order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from routetune.tasks.search.base import Staged

if TYPE_CHECKING:
    from routetune.tasks.routes.route import Route
    from routetune.tasks.routes.space import RouteSpace


@dataclass(frozen=True, slots=True)
class Change:
    """The baseline with one variable knob at another value."""

    knob: str
    value: str
    assignment: dict[str, str]


def changes(space: RouteSpace) -> Iterator[Change]:
    """The one-off changes that no rule excludes, from the last knob to the first.

    Values come in listed order; a knob's default is skipped, since that is the baseline.
    """
    baseline = space.baseline()
    for term in reversed(space.terms):
        name = term.knob.name
        for value in term.values if term.variable else ():
            assignment = baseline | {name: value}
            if value != term.knob.default and space.allows(assignment):
                yield Change(name, value, assignment)


def plan(space: RouteSpace) -> Iterator[dict[str, str]]:
    """The baseline, unless a rule excludes it, then the one-off changes; as full assignments."""
    baseline = space.baseline()
    if space.allows(baseline):
        yield baseline
    for change in changes(space):
        yield change.assignment


class Fast(Staged):
    """trtexec's `fast`: linear in the number of values."""

    name = "fast"

    def _stages(self) -> Iterator[Iterable[Route]]:
        yield map(self.space.route, plan(self.space))

    @cached_property
    def total(self) -> int:
        return sum(1 for _ in plan(self.space))

    def explain(self) -> str:
        return f"fast: {describe(self.space, self.total)}"


def describe(space: RouteSpace, total: int) -> str:
    """What `plan` tries, in words; `total` is its length."""
    knobs = sum(term.variable for term in space.terms)
    if space.allows(space.baseline()):
        return f"the baseline and {total - 1} one-off changes of {knobs} variable knobs"
    return f"{total} one-off changes of {knobs} variable knobs; an exclude rule forbids the baseline itself"
