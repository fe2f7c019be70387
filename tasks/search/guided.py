"""Each next route is the one with the most to gain: by a model of speed, and of what works at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from routetune.tasks.search.aliases import twins
from routetune.tasks.search.blame import Blame
from routetune.tasks.search.informed import Informed
from routetune.tasks.search.surrogate import Belief, Surrogate

if TYPE_CHECKING:
    from routetune.tasks.routes.route import Route
    from routetune.tasks.search.arrays import Array, Codes
    from routetune.tasks.search.informed import Known
    from routetune.tasks.trial import Trial

#: Log speeds this far below the best say no more than "slow": one hopeless value would drown the others.
CLIP = 1.5
#: So many builds, the default's included, are chosen for the pairs of values that they show first.
FIRST = 5
#: Standard deviation of the log speed of a trial without an interval, and the most that an interval says.
NO_INTERVAL, WIDEST = 0.05, 0.3


class Guided(Informed):
    """Expected improvement (Jones et al. 1998) of a Gaussian process over knobs, times the probability that
    the route is eligible (Schonlau et al. 1998, eq. 9), which comes from blame for the failures so far.

    Speeds of routes over the tolerance count as well: speed and accuracy have different causes. While nothing
    is eligible, the likeliest to be so is tried, the faster one of equals.
    """

    name = "guided"

    def _pick(self, known: Known, pool: Sequence[Route], awaited: Sequence[Route]) -> Route:
        rng = self.generator(known, awaited)
        candidates = np.array([self.code(route) for route in pool])
        beside = np.array([self.code(route) for route in awaited], dtype=np.int64)
        return pool[int(np.argmax(self._worth(known, candidates, beside, rng)))]

    def _worth(self, known: Known, candidates: Codes, awaited: Codes, rng: np.random.Generator) -> Array:
        works = _works(known, candidates, rng)
        timed = [(code, trial) for code, trial in known if _log(trial) is not None]
        if not timed:
            return works
        seen = np.array([code for code, _ in timed])
        eligible = [log for _, trial in timed if trial.eligible and (log := _log(trial)) is not None]
        if eligible and len(known) + len(awaited) < FIRST:
            shown = np.concatenate([seen, awaited.reshape(-1, seen.shape[1])])
            return np.asarray(works * (fresh_pairs(shown, candidates) + 0.01))
        logs = np.array([_log(trial) for _, trial in timed], dtype=np.float64)
        best = max(eligible, default=float(logs.max()))
        deviations = np.array([_deviation(trial) for _, trial in timed])
        belief = _belief(seen, np.maximum(logs, best - CLIP), deviations, candidates, awaited, rng)
        if not eligible:
            return np.asarray(works * np.exp(0.5 * belief.mean.mean(axis=0)))
        return np.asarray(works * belief.improvement(best) * (1 - twins(known, candidates, awaited)))

    def _how(self) -> str:
        return "the route with the largest expected gain, build by build"


def _belief(
    seen: Codes, logs: Array, deviations: Array, candidates: Codes, awaited: Codes, rng: np.random.Generator
) -> Belief:
    """What is believed of the candidates, where each awaited route is as fast as it is expected to be."""
    if len(awaited):
        expected = Surrogate(seen, logs, rng, deviations).predict(awaited).mean.mean(axis=0)
        seen, logs = np.concatenate([seen, awaited]), np.concatenate([logs, expected])
        deviations = np.concatenate([deviations, np.zeros(len(awaited))])
    return Surrogate(seen, logs, rng, deviations).predict(candidates)


def _works(known: Known, candidates: Codes, rng: np.random.Generator) -> Array:
    """The probability that each candidate is eligible: that it builds and runs, and is accurate then.

    These have different causes, and what does not run says nothing of accuracy.
    """
    ran = [(code, trial) for code, trial in known if trial.failure is None]
    codes = np.array([code for code, _ in known])
    runs = Blame(codes, np.array([trial.failure is None for _, trial in known]), rng).works(candidates)
    if not ran:
        return runs
    codes = np.array([code for code, _ in ran])
    losses = np.array([math.nan if trial.loss is None else trial.loss for _, trial in ran])
    accurate = Blame(codes, np.array([trial.eligible for _, trial in ran]), rng, losses)
    return np.asarray(runs * accurate.works(candidates))


def _log(trial: Trial) -> float | None:
    """The log of a sound speed, else None."""
    sound = trial.speed is not None and math.isfinite(trial.speed) and trial.speed > 0
    return math.log(trial.speed) if sound and trial.speed is not None else None


def _deviation(trial: Trial) -> float:
    """Standard deviation of the log of the speed, from its interval of 95 %."""
    low, high = trial.low, trial.high
    if low is None or high is None or not 0 < low <= high < math.inf:
        return NO_INTERVAL
    return min(WIDEST, math.log(high / low) / (2 * 1.96))


def fresh_pairs(seen: Codes, candidates: Codes) -> Array:
    """The share of a candidate's pairs of values that no route seen has, shape (candidates,)."""
    pairs = list(combinations(range(seen.shape[1]), 2)) or [(0, 0)]
    found = np.zeros(len(candidates))
    for one, other in pairs:
        known = set(zip(seen[:, one].tolist(), seen[:, other].tolist(), strict=True))
        both = zip(candidates[:, one].tolist(), candidates[:, other].tolist(), strict=True)
        found += [pair not in known for pair in both]
    return np.asarray(found / len(pairs))
