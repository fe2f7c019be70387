"""The frontier: for every tolerance at once, how many routes are eligible and which of them is the fastest.

A route is eligible at ε from its threshold on (`thresholds.threshold`). Sorted by threshold, the eligible
ones at any ε are a beginning of the list, and the fastest of every beginning is a running minimum of ranks:
n log n once, log n for each ε.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from routetune.tasks.arrays import Array


@dataclass(frozen=True, slots=True)
class Step:
    """A stretch of the staircase: from `epsilon` up to the step above, the same routes are eligible.

    Attributes:
        epsilon: the least tolerance of the stretch, the loss of the routes that drop out below it.
        eligible: how many routes are eligible.
        fastest: index of the fastest that may win, or None.
        leaving: indices of the routes that are eligible here and below `epsilon` are not.
    """

    epsilon: float
    eligible: int
    fastest: int | None
    leaving: tuple[int, ...]


class Frontier:
    """The staircase of n routes.

    Args:
        thresholds: shape (n,), the least tolerance of each; NaN for those that never pass.
        ranks: shape (n,), each route's place by speed, 0 the fastest; negative for those that may not win.
    """

    def __init__(self, thresholds: Sequence[float], ranks: Sequence[int]) -> None:
        least = np.asarray(thresholds, dtype=np.float64)
        order = np.argsort(least, kind="stable")[: int(np.count_nonzero(~np.isnan(least)))]
        places = np.asarray(ranks, dtype=np.int64)
        none = len(least)  # a rank behind all others
        running = np.minimum.accumulate(np.where(places < 0, none, places)[order])
        by_rank = np.full(none + 1, -1, dtype=np.int64)
        able = np.flatnonzero(places >= 0)
        by_rank[places[able]] = able
        self._order: Array = order
        self._least: Array = least[order]
        # In front: nothing is eligible, and nothing is the fastest.
        self._fastest: Array = np.concatenate([[-1], by_rank[running]]).astype(np.int64)

    def at(self, epsilons: Sequence[float]) -> tuple[Array, Array]:
        """How many routes are eligible at each tolerance, and the index of the fastest, -1 for none.

        Args:
            epsilons: shape (m,), in any order.

        Returns: two integer arrays of shape (m,).
        """
        counts: Array = np.searchsorted(self._least, np.asarray(epsilons, dtype=np.float64), side="right")
        return counts, self._fastest[counts]

    def steps(self) -> Iterator[Step]:
        """The staircase from the largest tolerance down; the first step holds up to infinity."""
        edges, starts = np.unique(self._least, return_index=True)
        ends = [*starts[1:].tolist(), len(self._least)]
        for at in reversed(range(len(edges))):
            fastest = int(self._fastest[ends[at]])
            leaving = tuple(self._order[starts[at] : ends[at]].tolist())
            yield Step(float(edges[at]), ends[at], None if fastest < 0 else fastest, leaving)


def ranked(speeds: Sequence[float | None], simplicity: Sequence[tuple[int, str]]) -> list[int]:
    """Places by speed as the selection ranks: the fastest first, then the simpler route, then its string.

    Args:
        speeds: None for those that may not win, which get -1.
        simplicity: knobs that a route names, and its string.
    """
    able = [index for index, speed in enumerate(speeds) if speed is not None]
    able.sort(key=lambda index: (-(speeds[index] or 0.0), simplicity[index]))
    places = [-1] * len(speeds)
    for place, index in enumerate(able):
        places[index] = place
    return places
