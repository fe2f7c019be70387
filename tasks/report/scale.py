"""The axis of ε: logarithmic, with 0 at its left end, infinity at its right, and long gaps shortened."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from routetune.tasks.verdicts.thresholds import ABOVE_ZERO

#: The longest gap between neighbours, in decades. Routes in full and in low precision lie many decades apart,
#: and what matters is within either group.
LONGEST = 0.5
#: Ticks at the most, beside those of 0 and infinity.
TICKS = 7


class Scale:
    """Where each ε is drawn.

    Attributes:
        ends: the places of the axis' two ends.
        ticks: places with their labels.
        breaks: the middles of the gaps that were shortened.
    """

    def __init__(self, values: Sequence[float]) -> None:
        finite = sorted({math.log10(value) for value in values if ABOVE_ZERO < value < math.inf}) or [0.0]
        places = [0.0]
        for before, after in pairwise(finite):
            places.append(places[-1] + min(after - before, LONGEST))
        self._logs, self._places = finite, places
        self._zero = any(value <= ABOVE_ZERO for value in values)
        self._infinite = any(value == math.inf for value in values)
        # Room in proportion, since all may lie within a part of a decade.
        self._gap = max(0.12 * places[-1], 0.05)
        left = 1.5 if self._zero else 0.5
        self.ends = -self._gap * left, places[-1] + self._gap * 1.5
        self.breaks = [
            (places[at] + places[at + 1]) / 2
            for at, (before, after) in enumerate(pairwise(finite))
            if after - before > LONGEST
        ]
        self.ticks = self._ticks()

    def place(self, epsilon: float) -> float:
        """The place of an ε; what is beyond either end is drawn there."""
        if epsilon <= ABOVE_ZERO:
            return -self._gap if self._zero else self.ends[0]
        if epsilon == math.inf:
            return self._places[-1] + self._gap if self._infinite else self.ends[1]
        at = math.log10(epsilon)
        if at < self._logs[0]:
            return -self._gap / 2
        if at > self._logs[-1]:
            return self._places[-1] + self._gap / 2
        return float(np.interp(at, self._logs, self._places))

    def _ticks(self) -> list[tuple[float, str]]:
        first, last = 10 ** self._logs[0], 10 ** self._logs[-1]
        powers = range(math.floor(self._logs[0]), math.ceil(self._logs[-1]) + 1)
        round_ones = [base * 10.0**power for power in powers for base in (1, 1.5, 2, 3, 5, 7)]
        apart = (self.ends[1] - self.ends[0]) / TICKS
        chosen: list[float] = []
        # The ends say the most; then whole decades, then the others, wherever there is room.
        for value in [first, last, *sorted(round_ones, key=lambda value: math.log10(value) % 1 > 1e-9)]:
            room = all(abs(self.place(value) - self.place(one)) >= apart for one in chosen)
            if room and first <= value <= last and not self._in_a_break(value):
                chosen.append(value)
        found = [(self.place(value), number_text(value)) for value in sorted(chosen)]
        front = [(-self._gap, "0")] if self._zero else []
        return [*front, *found, *([(self.place(math.inf), "∞")] if self._infinite else [])]

    def _in_a_break(self, value: float) -> bool:
        at = math.log10(value)
        return any(before < at < after and after - before > LONGEST for before, after in pairwise(self._logs))


def number_text(value: float) -> str:
    """A loss in few letters: 0.002, 3.8e-06, ∞; the smallest number above 0 as >0."""
    if value == math.inf:
        return "∞"
    if 0 < value <= ABOVE_ZERO:
        return ">0"
    return f"{value:.3g}"
