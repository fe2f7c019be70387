"""One-off changes first, then every combination of the knobs that helped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from routetune.tasks.search import fast
from routetune.tasks.search.base import Staged, spoken

if TYPE_CHECKING:
    from routetune.tasks.routes.route import Route
    from routetune.tasks.routes.space import RouteSpace

#: trtexec declares this cap (kMixedSearchMaxPositiveKnobs) and never applies it.
MAX_POSITIVE_KNOBS = 10


@dataclass(frozen=True, slots=True)
class Gain:
    """A one-off change that was faster than the baseline; `ratio` is how many times as fast."""

    knob: str
    ratio: float


def best_by_knob(gains: Iterable[Gain]) -> dict[str, float]:
    """Each positive knob's best ratio, the best knob first; ties keep the order of the gains."""
    best: dict[str, float] = {}
    for gain in gains:
        best[gain.knob] = max(gain.ratio, best.get(gain.knob, 0.0))
    return dict(sorted(best.items(), key=lambda item: -item[1]))


def second_phase(space: RouteSpace, gains: Sequence[Gain]) -> RouteSpace | None:
    """All combinations of the positive knobs' listed values, the other knobs as in the baseline.

    None unless two one-off changes helped. Like trtexec, this counts changes and not knobs; with two
    changes of a single knob the combinations are those that were tried already.
    """
    if len(gains) < 2:
        return None
    kept = list(best_by_knob(gains))[:MAX_POSITIVE_KNOBS]
    return space.restricted({term.knob.name: term.values for term in space.terms if term.knob.name in kept})


class Mixed(Staged):
    """trtexec's `mixed`, with its two faults mended.

    Only an eligible route makes its knob positive, and the cap on positive knobs is applied (the best are
    kept). Where the baseline is excluded or not eligible, changes are compared with the control instead.
    """

    name = "mixed"

    def __init__(self, space: RouteSpace) -> None:
        super().__init__(space)
        self._first_total = sum(1 for _ in fast.plan(space))
        self._gains: list[Gain] | None = None
        self._second: RouteSpace | None = None

    def _stages(self) -> Iterator[Iterable[Route]]:
        yield map(self.space.route, fast.plan(self.space))
        self._gains = self._measured_gains()
        self._second = second_phase(self.space, self._gains)
        if self._second is not None:
            yield self._second

    def _speed(self, assignment: dict[str, str]) -> float | None:
        """Speed against the control of a route that may win, else None."""
        trial = self._told.get(self.space.route(assignment))
        if trial is None or not trial.eligible or trial.speed is None:
            return None
        return trial.speed if math.isfinite(trial.speed) and trial.speed > 0 else None

    def _measured_gains(self) -> list[Gain]:
        baseline = self.space.baseline()
        base = self._speed(baseline) if self.space.allows(baseline) else None
        base = 1.0 if base is None else base
        gains = []
        for change in fast.changes(self.space):
            speed = self._speed(change.assignment)
            if speed is not None and speed > base:
                gains.append(Gain(change.knob, speed / base))
        return gains

    @property
    def total(self) -> int | None:
        """Phase 1 until its last trial was told; None where phase 2 has too many exclude rules to count."""
        if self._second is None:
            return self._first_total
        second = self._second.count()
        return None if second is None else self._first_total + second - self._repeated()

    def _repeated(self) -> int:
        """Routes of phase 2 that phase 1 tried already."""
        if self._second is None:
            return 0
        listed = {term.knob.name: term.values for term in self._second.terms}
        return sum(
            all(value in listed[name] for name, value in assignment.items())
            for assignment in fast.plan(self.space)
        )

    def explain(self) -> str:
        first = f"mixed: {fast.describe(self.space, self._first_total)}"
        if self._gains is None:
            return f"{first}; then all combinations of the knobs that help"
        best = best_by_knob(self._gains)
        ratios = [f"{name} {ratio:.2f}x" for name, ratio in best.items()]
        helped = f"{first}; {len(best)} helped: {', '.join(ratios)}" if best else f"{first}; none helped"
        if self._second is None:
            return f"{helped}; no combinations, since that takes two changes that help"
        dropped = ratios[MAX_POSITIVE_KNOBS:]
        cap = f"; cap of {MAX_POSITIVE_KNOBS} applied, left out: {', '.join(dropped)}" if dropped else ""
        return f"{helped}{cap}; then their {spoken(self._second.size)} combinations"
