"""Each next route is the one with the most to gain: by a model of speed, and of what works at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from routetune.tasks.search.blame import Blame
from routetune.tasks.search.informed import Informed
from routetune.tasks.search.surrogate import Surrogate

if TYPE_CHECKING:
    from routetune.tasks.routes.route import Route
    from routetune.tasks.trial import Trial

    Array = np.ndarray[Any, np.dtype[np.float64]]
    Codes = np.ndarray[Any, np.dtype[np.int64]]
    Known = Sequence[tuple[tuple[int, ...], Trial]]

#: Log speeds this far below the best say no more than "slow": one hopeless value would drown the others.
CLIP = 0.7
#: The weight of doubt. Below 1, routes that may fail are tried sooner than the bare expectation says.
DOUBT = 0.7
#: So many builds, the default's included, are chosen for the pairs of values that they show first.
FIRST = 9


class Guided(Informed):
    """Expected improvement (Jones et al. 1998) of a Gaussian process over knobs, times the probability that
    the route is eligible (Schonlau et al. 1998, eq. 9), which comes from blame for the failures so far.

    Speeds of routes over the tolerance count as well: speed and accuracy have different causes. While nothing
    is eligible, the likeliest to be so is tried, the faster one of equals.
    """

    name = "guided"

    def _pick(self, known: Known, pool: Sequence[Route]) -> Route:
        rng = self.generator(known)
        candidates = np.array([self.code(route) for route in pool])
        return pool[int(np.argmax(self._worth(known, candidates, rng)))]

    def _worth(self, known: Known, candidates: Codes, rng: np.random.Generator) -> Array:
        codes = np.array([code for code, _ in known])
        works = Blame(codes, np.array([t.eligible for _, t in known]), rng).works(candidates)
        timed = [(code, math.log(t.speed)) for code, t in known if t.speed and _is_sound(t.speed)]
        if not timed:
            return works
        seen = np.array([code for code, _ in timed])
        logs = np.array([log for _, log in timed])
        eligible = [math.log(t.speed) for _, t in known if t.eligible and t.speed and _is_sound(t.speed)]
        best = max(eligible, default=float(logs.max()))
        belief = Surrogate(seen, np.maximum(logs, best - CLIP), rng).predict(candidates)
        if not eligible:
            return np.asarray(works * np.exp(0.5 * belief.mean.mean(axis=0)))
        if len(known) < FIRST:
            return np.asarray(works**DOUBT * (fresh_pairs(seen, candidates) + 0.01))
        return np.asarray(works**DOUBT * belief.improvement(best))

    def _how(self) -> str:
        return "the route with the largest expected gain, build by build"


def _is_sound(speed: float) -> bool:
    return math.isfinite(speed) and speed > 0


def fresh_pairs(seen: Codes, candidates: Codes) -> Array:
    """The share of a candidate's pairs of values that no route seen has, shape (candidates,)."""
    pairs = list(combinations(range(seen.shape[1]), 2)) or [(0, 0)]
    found = np.zeros(len(candidates))
    for one, other in pairs:
        known = set(zip(seen[:, one].tolist(), seen[:, other].tolist(), strict=True))
        both = zip(candidates[:, one].tolist(), candidates[:, other].tolist(), strict=True)
        found += [pair not in known for pair in both]
    return np.asarray(found / len(pairs))
