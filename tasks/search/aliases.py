"""Which routes likely compile to the engine of another, by those that did so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from routetune.tasks.search.arrays import Array, Codes, Flags
    from routetune.tasks.search.informed import Known

#: What a pair of routes says of a candidate counts by this factor for each other knob that the candidate has
#: set otherwise: fusions that do nothing to a fused model may do much to another. With many knobs set
#: otherwise little is left beside UNLIKE, and the candidate is tried.
CLOSE = 0.5
#: How often an exchange of values is taken to have made a difference before any was seen.
UNLIKE = 0.05
#: Pairs of routes of one engine that are looked at, and of two: those that differ in the fewest knobs.
MOST_PAIRS = 200
#: Passes by which pairs that differ in several knobs are put down to those that are known to matter.
PASSES = 3
#: Log of the probability that an exchange makes no difference which was never seen, or never to make none.
NEVER = -20.0


def twins(known: Known, candidates: Codes, awaited: Sequence[Sequence[int]] | Codes = ()) -> Array:
    """How likely each candidate is the engine of a route that was tried or is awaited, shape (candidates,).

    Each exchange of two values of a knob makes no difference with some probability, by the pairs of routes
    that differ in it; a candidate is an alias of a route if none of the exchanges between them makes one.
    Two routes of one engine say so of every knob in which they differ; two of different engines say that one
    of these knobs matters, which is put down to each by how likely the others do not.
    """
    pairs = _Pairs.of(known)
    if pairs is None or not len(candidates):
        return np.zeros(len(candidates))
    chances = pairs.chances(candidates)
    tried = np.array([*(code for code, _ in known), *awaited])
    found = np.zeros((len(tried), len(candidates)))
    for knob in range(tried.shape[1]):
        values, which = np.unique(tried[:, knob], return_inverse=True)
        rows = [pairs.in_place_of(value, knob, candidates, chances) for value in values.tolist()]
        found += np.array(rows)[which]
    return np.asarray(np.exp(found.max(axis=0)))


@dataclass(frozen=True)
class _Pairs:
    """Pairs of routes that were built.

    Attributes:
        codes: of one route of each pair, shape (pairs, knobs).
        differs: the knobs in which the other has another value, of the same shape.
        exchanges: number of each exchange (knob, lower value, higher value).
        alike: 1 where an exchange is between two routes of one engine, else 0, shape (pairs, exchanges).
        unlike: the same for two routes of different engines.
    """

    codes: Codes
    differs: Flags
    exchanges: dict[tuple[int, int, int], int]
    alike: Array
    unlike: Array

    @classmethod
    def of(cls, known: Known) -> _Pairs | None:
        """None where no two routes are one engine yet."""
        built = [(code, trial.alias_of or trial.route.id) for code, trial in known if trial.failure is None]
        codes = np.array([code for code, _ in built])
        _, engines = np.unique([engine for _, engine in built], return_inverse=True)
        one, other = np.triu_indices(len(built), 1)
        alike = engines[one] == engines[other]
        if not alike.any():
            return None
        apart = np.zeros(len(one), dtype=np.int64)
        for values in codes.T:
            apart += values[one] != values[other]
        # Of equals any: the first ones would all have the first values of the first knobs.
        nearest = np.lexsort((np.random.default_rng(0).permutation(len(one)), apart))
        chosen = np.concatenate([nearest[kind[nearest]][:MOST_PAIRS] for kind in (alike, ~alike)])
        one, other = one[chosen], other[chosen]
        differs = codes[one] != codes[other]
        exchanges: dict[tuple[int, int, int], int] = {}
        places = []
        for pair, knob in np.argwhere(differs).tolist():
            low, high = sorted((int(codes[one[pair], knob]), int(codes[other[pair], knob])))
            places.append((pair, exchanges.setdefault((knob, low, high), len(exchanges))))
        part = np.zeros((len(one), len(exchanges)))
        part[tuple(np.transpose(places))] = 1
        same = alike[chosen, None]
        return cls(codes[one], differs, exchanges, part * same, part * ~same)

    def chances(self, candidates: Codes) -> Array:
        """Log of the probability that an exchange makes no difference to a candidate, shape (exchanges + 1,
        candidates); the last row is of exchanges that were not seen."""
        elsewhere = (self.codes[:, None] != candidates[None]) & ~self.differs[:, None]
        weights = CLOSE ** elsewhere.sum(axis=2)
        found = _log_share(self.alike.T @ weights, self._blamed().T @ weights)
        return np.concatenate([found, np.full((1, len(candidates)), NEVER)])

    def _blamed(self) -> Array:
        """How likely each exchange between two engines makes a difference by itself, shape as `unlike`.

        It does not if one of the others does; several may.
        """
        blamed: Array = self.unlike * (self.unlike.sum(axis=1) == 1)[:, None]
        for _ in range(PASSES):
            logs = _log_share(self.alike.sum(axis=0), blamed.sum(axis=0))
            blamed = self.unlike * np.exp((self.unlike @ logs)[:, None] - logs * self.unlike)
        return blamed

    def in_place_of(self, value: int, knob: int, candidates: Codes, chances: Array) -> Array:
        """Log of the probability that a candidate's value makes no difference to this one, shape
        (candidates,)."""
        others = candidates[:, knob]
        found: Array = np.zeros(len(others))
        for other in np.unique(others[others != value]).tolist():
            here = others == other
            exchange = self.exchanges.get((knob, min(value, other), max(value, other)), -1)
            found[here] = chances[exchange, here]
        return found


def _log_share(alike: Array, unlike: Array) -> Array:
    share = alike / (alike + unlike + UNLIKE)
    return np.asarray(np.log(np.maximum(share, np.exp(NEVER))))
