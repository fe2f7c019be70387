"""Which knob values, alone or together, are to blame for the routes that failed."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from routetune.tasks.search.arrays import Array, Codes, Flags

#: How likely a part is guilty before anything is known: one value, two values together, three.
PRIOR = (0.08, 0.008, 0.002)
#: Where one suspect stands for several parts, how likely each of them is the cause beside the others. By the
#: priors three together would nearly never be, and on real GPUs they were.
WEIGHT = (1.0, 0.15, 0.15)
#: With more knobs than this, three values together are too many to weigh.
FEW = 24
#: How unlikely a failure is that no guilty part explains.
UNEXPLAINED = 1e-4
#: The loss of a part is much the same in every route; at most this many times as large as in another.
ALIKE = 4.0
CHAINS = 64
SWEEPS = 40


class Blame:
    """Beliefs on the parts of routes (one to three knob values) that make every route with them fail.

    What is part of a route that worked is innocent. Of the others each is guilty with a small probability
    before anything is known, and every route that failed has a guilty part. Parts that are in the same failed
    routes are told apart by nothing, so they are one suspect. The posterior is sampled by annealed Gibbs
    sweeps in CHAINS independent chains.

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
        self._base = int(codes.max(initial=0)) + 2
        self._kinds = _kinds(codes.shape[1])
        self._prior = np.concatenate([np.full(len(at), p) for at, p in zip(self._kinds, PRIOR, strict=False)])
        self._innocent = np.zeros(len(self._prior) * self._base**3, bool)
        self._innocent[self._parts(codes[worked])] = True
        failed = self._parts(codes[~worked])
        self._parts_held = np.unique(failed[~self._innocent[failed]])
        members = self._members(failed)
        if losses is not None and members.size:
            members = _explaining(members, losses[~worked])
        alike, of = np.unique(members, axis=1, return_inverse=True)
        self._suspect_of = of.ravel()
        self._share = np.repeat(WEIGHT[: len(self._kinds)], [len(at) for at in self._kinds])[self._part_of()]
        self._share /= np.bincount(self._suspect_of, self._share)[self._suspect_of]
        self._guilty = np.zeros((CHAINS, alike.shape[1]))
        if alike.size:
            self._sample(alike, rng)

    def works(self, candidates: Codes) -> Array:
        """The probability that each candidate works, shape (candidates,)."""
        parts = self._parts(candidates)
        members = self._members(parts)
        unknown = ~self._innocent[parts] & ~np.isin(parts, self._parts_held)
        untried = (unknown @ np.log1p(-self._prior)).astype(np.float64)
        held = np.zeros((self._guilty.shape[1], len(candidates)))
        np.add.at(held, self._suspect_of, (members * self._share).T)
        # One of the parts of a guilty suspect is the cause; a candidate may hold some of them.
        spared = np.log(np.maximum(1 - held, 1e-12))
        clean = np.exp(self._guilty @ spared).sum(axis=0)
        return np.asarray(np.exp(untried) * (clean + 0.1) / (CHAINS + 0.2))

    def _part_of(self) -> Codes:
        """Of each part of the failed routes, which knobs it is of, as a place in `_prior`."""
        return np.asarray(self._parts_held // self._base**3)

    def _parts(self, codes: Codes) -> Codes:
        """Every part of every row as one integer, shape (rows, parts)."""
        codes = np.minimum(codes, self._base - 1)
        weights = self._base ** np.arange(3)
        values = [codes[:, at] @ weights[: at.shape[1]] for at in self._kinds]
        return np.asarray(np.arange(len(self._prior)) * self._base**3 + np.concatenate(values, axis=1))

    def _members(self, parts: Codes) -> Array:
        """Which of the parts of failed routes each row holds, shape (rows, parts)."""
        if not len(self._parts_held):
            return np.zeros((len(parts), 0))
        at = np.minimum(np.searchsorted(self._parts_held, parts), len(self._parts_held) - 1)
        found = self._parts_held[at] == parts
        members = np.zeros((len(parts), len(self._parts_held)))
        rows = np.broadcast_to(np.arange(len(parts))[:, None], parts.shape)
        members[rows[found], at[found]] = 1.0
        return members

    def _sample(self, members: Array, rng: np.random.Generator) -> None:
        """Draw who is guilty in each chain; `members` are the failed rows of each suspect."""
        innocent = np.log1p(-self._prior[self._part_of()])
        kinds = -np.expm1(np.bincount(self._suspect_of, innocent))
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


def _kinds(knobs: int) -> list[Codes]:
    """The knobs of every part: of one, of two and of three, each of shape (parts, knobs of a part)."""
    sizes = range(1, 4 if knobs <= FEW else 3)
    found = [list(combinations(range(knobs), size)) for size in sizes]
    return [np.array(of, np.int64).reshape(len(of), size) for of, size in zip(found, sizes, strict=True)]
