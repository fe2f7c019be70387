"""Top-k agreement of scores: how many of the reference's k best classes the candidate names too.

The last axis holds the scores of one row. A row's loss is 1 - |both top-k| / k, the output's the mean over
rows. Of equal scores in the candidate the first by index counts, so that a candidate whose scores are all
alike names the first k classes and no others; any class that ties with the reference's k-th is as good as it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from routetune.tasks.arrays import Array
from routetune.tasks.verdicts.scan import BLOCK


@dataclass(slots=True)
class TopK:
    """What the rows of one output came to.

    Attributes:
        k: classes that count in each row.
        classes: scores in a row; with no more than k of them every candidate agrees, which proves nothing.
        rows: rows that are finite in the reference.
        disagreeing: rows whose loss is not 0.
        loss: the mean loss of the rows; infinite where the candidate alone has a row that is not finite, or
            where no row could be compared.
        worst: the first row of largest loss, as plain JSON: "index", and the k best classes of either side.
    """

    k: int
    classes: int
    rows: int = 0
    disagreeing: int = 0
    loss: float = 0.0
    worst: dict[str, Any] | None = field(default=None)


def top_k(reference: Array, candidate: Array, k: int) -> TopK:
    """Compare two arrays of one shape and dtype, block by block; a scalar is a row of one score."""
    classes = reference.shape[-1] if reference.ndim else 1
    found = TopK(k, classes)
    if reference.size == 0:
        return found
    total, largest, broken = 0.0, 0.0, False
    for start, r, c in _rows(reference, candidate, classes):
        finite = np.isfinite(r).all(axis=1)
        broken = broken or bool((finite & ~np.isfinite(c).all(axis=1)).any())
        lost = np.where(finite, _lost(r, c, min(k, classes)), 0.0)
        found.rows += int(np.count_nonzero(finite))
        found.disagreeing += int(np.count_nonzero(lost))
        total += float(lost.sum())
        if lost.max() > largest:
            at = int(lost.argmax())
            largest = float(lost[at])
            found.worst = _row(reference.shape[:-1], start + at, r[at], c[at], min(k, classes))
    found.loss = math.inf if broken or not found.rows else total / found.rows
    return found


def best(scores: Array, k: int) -> Array:
    """Which of each row's scores are its k best, as a mask; of equal ones the first by index."""
    least = np.partition(scores, scores.shape[1] - k, axis=1)[:, scores.shape[1] - k, None]
    above, level = scores > least, scores == least
    wanted = k - above.sum(axis=1, keepdims=True)
    chosen: Array = above | (level & (np.cumsum(level, axis=1) <= wanted))
    return chosen


def comparable(scores: Array) -> Array:
    """The scores in a type that numpy can sort and order exactly."""
    if scores.dtype.kind == "b":
        return scores.view(np.uint8)
    return scores.astype(np.float32) if scores.dtype.type.__module__ == "ml_dtypes" else scores


def _lost(r: Array, c: Array, k: int) -> Array:
    least = np.partition(r, r.shape[1] - k, axis=1)[:, r.shape[1] - k, None]
    lost: Array = 1.0 - (best(c, k) & (r >= least)).sum(axis=1) / k
    return lost


def _rows(reference: Array, candidate: Array, classes: int) -> Iterator[tuple[int, Array, Array]]:
    sides = [side.reshape(-1, classes) for side in (reference, candidate)]
    step = max(1, BLOCK // classes)
    for start in range(0, len(sides[0]), step):
        r, c = (comparable(side[start : start + step]) for side in sides)
        yield start, r, c


def _row(shape: tuple[int, ...], at: int, r: Array, c: Array, k: int) -> dict[str, Any]:
    def named(scores: Array) -> list[int]:
        return [int(i) for i in np.argsort(-scores.astype(np.float64), kind="stable")[:k]]

    index = [int(i) for i in np.unravel_index(at, shape)] if shape else []
    return {"index": index, "reference": named(r), "candidate": named(c)}
