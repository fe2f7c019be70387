"""Which knob values, alone or in pairs, are to blame for the routes that failed."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[np.float64]]
    Codes = np.ndarray[Any, np.dtype[np.int64]]
    Flags = np.ndarray[Any, np.dtype[np.bool_]]

#: How likely a part is guilty before anything is known: one value, and two values together.
ALONE = 0.05
TOGETHER = 0.008
#: How unlikely a failure is that no guilty part explains.
UNEXPLAINED = 1e-3
#: The loss of a part is much the same in every route; at most this many times as large as in another.
ALIKE = 4.0
CHAINS = 64
SWEEPS = 12


class Blame:
    """Beliefs on the parts of routes (one or two knob values) that make every route with them fail.

    What is part of a route that worked is innocent. Of the others each is guilty with a small probability
    before anything is known, and every route that failed has a guilty part. The posterior is sampled by
    annealed Gibbs sweeps in CHAINS independent chains.

    Where the losses are known, they tell causes apart: the loss of a route is that of its worst part, so a
    part has at most the smallest loss of all routes that hold it, and explains no larger one.

    Args:
        codes: the value of each knob as an integer, shape (trials, knobs).
        worked: which of them worked, shape (trials,).
        losses: the smaller the better, NaN where not known, shape (trials,).
    """

    def __init__(
        self, codes: Codes, worked: Flags, rng: np.random.Generator, losses: Array | None = None
    ) -> None:
        knobs = codes.shape[1]
        self._first, self._second = map(np.array, zip(*_pairs(knobs), strict=True))
        self._single = self._first == self._second
        self._base = int(codes.max(initial=0)) + 2
        self._prior = np.where(self._single, ALONE, TOGETHER)
        self._innocent = np.zeros(len(self._first) * self._base**2, bool)
        self._innocent[self._parts(codes[worked])] = True
        failed = self._parts(codes[~worked])
        held = ~self._innocent[failed]
        self._suspects = np.unique(failed[held])
        self._guilty = np.zeros((CHAINS, len(self._suspects)))
        if len(self._suspects):
            members = self._members(failed)
            if losses is not None:
                members = _explaining(members, losses[~worked])
            self._sample(members, rng)

    def works(self, candidates: Codes) -> Array:
        """The probability that each candidate works, shape (candidates,)."""
        parts = self._parts(candidates)
        members = self._members(parts)
        unknown = ~self._innocent[parts] & ~np.isin(parts, self._suspects)
        untried = np.where(unknown, np.log1p(-self._prior), 0.0).sum(axis=1)
        clean = (self._guilty @ members.T == 0).sum(axis=0)
        return np.asarray(np.exp(untried) * (clean + 0.1) / (CHAINS + 0.2))

    def _parts(self, codes: Codes) -> Codes:
        """Every part of every row as one integer, shape (rows, parts)."""
        codes = np.minimum(codes, self._base - 1)
        both = codes[:, self._first] * self._base + codes[:, self._second]
        return np.asarray(np.arange(len(self._first)) * self._base**2 + both)

    def _members(self, parts: Codes) -> Array:
        """Which suspects each row holds, shape (rows, suspects)."""
        if not len(self._suspects):
            return np.zeros((len(parts), 0))
        at = np.minimum(np.searchsorted(self._suspects, parts), len(self._suspects) - 1)
        found = self._suspects[at] == parts
        members = np.zeros((len(parts), len(self._suspects)))
        rows = np.broadcast_to(np.arange(len(parts))[:, None], parts.shape)
        members[rows[found], at[found]] = 1.0
        return members

    def _sample(self, members: Array, rng: np.random.Generator) -> None:
        kinds = self._prior[self._suspects // self._base**2]
        prior = np.log(kinds / (1 - kinds))
        guilty = (rng.random(self._guilty.shape) < kinds).astype(np.float64)
        count = guilty @ members.T
        for sweep in range(SWEEPS):
            gain = -np.log(UNEXPLAINED) * min(1.0, (sweep + 1) / (0.6 * SWEEPS))
            for at in rng.permutation(len(prior)):
                rows = np.flatnonzero(members[:, at])
                alone = (count[:, rows] == guilty[:, at, None]).sum(axis=1)
                odds = prior[at] + gain * alone
                drawn = (rng.random(CHAINS) < 1 / (1 + np.exp(-odds))).astype(np.float64)
                count[:, rows] += (drawn - guilty[:, at])[:, None]
                guilty[:, at] = drawn
        self._guilty = guilty


def _explaining(members: Array, losses: Array) -> Array:
    """Which suspects can be the reason of each failed row, by its loss; shape (rows, suspects)."""
    known = np.where(np.isnan(losses), np.inf, losses)
    most = np.where(members > 0, known[:, None], np.inf).min(axis=0)
    least = np.where(np.isnan(losses), 0.0, losses)
    return np.asarray(members * (most[None, :] * ALIKE >= least[:, None]))


def _pairs(knobs: int) -> list[tuple[int, int]]:
    """Each knob with itself, which stands for the knob alone, then each two knobs."""
    return [(knob, knob) for knob in range(knobs)] + list(combinations(range(knobs), 2))
