"""Values of knobs race each other: those that are clearly behind are drawn no more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from routetune.tasks.search.informed import Informed

if TYPE_CHECKING:
    from routetune.tasks.routes.route import Route
    from routetune.tasks.search.informed import Known
    from routetune.tasks.trial import Trial

#: Builds before the first value may drop out.
ROUND = 6
#: Standard errors by which a value must be behind the best one of its knob.
BEHIND = 1.5
#: Log speed that stands for a route that may not win: as slow as what is abandoned.
LOST = -1.1


class Racing(Informed):
    """Successive elimination over the values of knobs (as in Maron & Moore 1994; Birattari et al. 2002).

    Routes are drawn so that the values still in the race come up equally often. From ROUND builds on, values
    whose mean log speed is clearly below that of the best value of their knob drop out; what is not eligible
    counts as very slow. Routes with a value that dropped out follow at the very end.

    Every route is measured as any other search's is. Hopeless ones are given up early by the timing itself.
    """

    name = "racing"

    def _pick(self, known: Known, pool: Sequence[Route], awaited: Sequence[Route]) -> Route:
        rng = self.generator(known, awaited)
        codes = np.array([self.code(route) for route in pool])
        racing = self._racing(known[:0] if len(known) < ROUND else known)
        inside = np.array(
            [[value in alive for value, alive in zip(row, racing, strict=True)] for row in codes.tolist()]
        )
        outside = (~inside).sum(axis=1)
        seen = np.array([*(code for code, _ in known), *map(self.code, awaited)])
        often = sum(
            (codes[:, knob, None] == seen[None, :, knob]).sum(axis=1) for knob in range(codes.shape[1])
        )
        order = np.lexsort((rng.random(len(pool)), often, outside))
        return pool[int(order[0])]

    def _racing(self, known: Known) -> list[set[int]]:
        """For each knob the values that are still in the race."""
        alive = [set(range(len(term.values))) for term in self.space.terms]
        if not known:
            return alive
        logs = np.array([_merit(trial) for _, trial in known])
        codes = np.array([code for code, _ in known])
        spread = max(float(logs.std()), 1e-3)
        for knob, values in enumerate(alive):
            found: dict[int, tuple[float, float]] = {}
            for value in sorted(values):
                own = logs[codes[:, knob] == value]
                if len(own) >= 2:
                    found[value] = float(own.mean()), spread / math.sqrt(len(own))
            lead = max((mean - BEHIND * error for mean, error in found.values()), default=-math.inf)
            values -= {value for value, (mean, error) in found.items() if mean + BEHIND * error < lead}
        return alive

    def _how(self) -> str:
        return "values of knobs that fall behind are drawn no more"


def _merit(trial: Trial) -> float:
    if not trial.eligible or not trial.speed or not math.isfinite(trial.speed) or trial.speed <= 0:
        return LOST
    return max(LOST, math.log(trial.speed))
