"""Main effects: how much faster or slower each value of a knob makes a route, over all that were timed.

Log speeds are explained as a sum, one term for each value that differs from its knob's default, by least
squares. A term is then the mean effect of the value over what it was tried with; knobs that only act together
show as wide intervals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from routetune.tasks.canonical import number

Matrix = np.ndarray[Any, np.dtype[np.float64]]

#: How many observations the scatter of the measurements themselves counts as, beside that of the fit.
PRIOR_DEGREES = 4
#: Scatter of a log speed where no trial has an interval.
USUAL_SCATTER = 0.02


class Timed(NamedTuple):
    """One timed route: knob -> value for what is not at its default, and its speed with its bounds."""

    settings: Mapping[str, str]
    speed: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """What one value of a knob does beside the knob's default.

    Attributes:
        ratio: speed with it / speed without it, all else equal; above 1 is faster. NaN where `inseparable`.
        low, high: bounds of `ratio`; NaN where `inseparable`.
        trials: how many timed routes had the value.
        inseparable: the routes tried do not tell this value's effect from that of others.
    """

    knob: str
    value: str
    ratio: float
    low: float
    high: float
    trials: int
    inseparable: bool = False

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 1."""
        return self.low > 1 or self.high < 1

    def to_json(self) -> dict[str, Any]:
        bounds = {name: number(getattr(self, name)) for name in ("ratio", "low", "high")}
        return {
            "knob": self.knob,
            "value": self.value,
            **bounds,
            "trials": self.trials,
            "inseparable": self.inseparable,
        }


def main_effects(rows: Iterable[Timed], confidence: float = 0.95) -> list[Effect]:
    """The main effect of every value that was tried and timed, the strongest first.

    Rows without a finite, positive speed are left out. The variance of a row is that of the residuals,
    moderated by the measurements' own as if those were `PRIOR_DEGREES` observations more (Smyth 2004, Linear
    models and empirical Bayes methods, section 3): one-off changes alone leave no residuals at all.

    Args:
        rows: the timed routes of one run, in any order; the control among them.
        confidence: of each interval by itself.
    """
    kept = [row for row in rows if math.isfinite(row.speed) and row.speed > 0]
    names = sorted({pair for row in kept for pair in row.settings.items()})
    if not names:
        return []
    design = _design(kept, names)
    inverse = np.linalg.pinv(design)
    logs = np.log([row.speed for row in kept])
    terms = inverse @ logs
    degrees = len(kept) - int(np.linalg.matrix_rank(design))
    residual = float(np.sum((logs - design @ terms) ** 2))
    variance = (residual + PRIOR_DEGREES * _measured(kept, confidence)) / (degrees + PRIOR_DEGREES)
    spread = np.sqrt(variance * np.sum(inverse**2, axis=1)) * _student(confidence, degrees + PRIOR_DEGREES)
    seen = np.abs(np.diag(inverse @ design) - 1) < 1e-6
    found = [
        _effect(pair, terms[at], spread[at], int(design[:, at].sum()), bool(seen[at]))
        for at, pair in enumerate(names, start=1)
    ]
    return sorted(
        found, key=lambda effect: (effect.inseparable, -_strength(effect), effect.knob, effect.value)
    )


def _design(rows: list[Timed], names: list[tuple[str, str]]) -> Matrix:
    """One row a route: 1, then 1 where it has the value and 0 where not."""
    columns = [[float(row.settings.get(knob) == value) for row in rows] for knob, value in names]
    return np.array([[1.0] * len(rows), *columns]).T


def _measured(rows: list[Timed], confidence: float) -> float:
    """The median variance of a log speed by the intervals of the rows."""
    quantile = NormalDist().inv_cdf((1 + confidence) / 2)
    widths = [math.log(row.high / row.low) for row in rows if row.low and row.high and row.high > row.low > 0]
    finite = [width for width in widths if math.isfinite(width)]
    return float(np.median(finite) / (2 * quantile)) ** 2 if finite else USUAL_SCATTER**2


def _student(confidence: float, degrees: int) -> float:
    """Student's t, two-sided (Abramowitz and Stegun 26.7.5); within 0.3 % from four degrees of freedom on."""
    x, v = NormalDist().inv_cdf((1 + confidence) / 2), degrees
    terms = (
        x,
        (x**3 + x) / (4 * v),
        (5 * x**5 + 16 * x**3 + 3 * x) / (96 * v**2),
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / (384 * v**3),
    )
    return sum(terms)


def _effect(pair: tuple[str, str], term: float, spread: float, trials: int, seen: bool) -> Effect:
    if not seen:
        return Effect(*pair, math.nan, math.nan, math.nan, trials, inseparable=True)
    ratio, low, high = (math.exp(value) for value in (term, term - spread, term + spread))
    return Effect(*pair, ratio, low, high, trials)


def _strength(effect: Effect) -> float:
    return 0.0 if effect.inseparable else abs(math.log(effect.ratio))
