"""Confidence intervals of a median that assume nothing about the noise.

For n independent values, the median lies between the k-th smallest and the k-th largest unless fewer than k
of them fall on one side of it. Each falls on either side with probability 1/2, so the chance of that is an
exact binomial sum (Conover, Practical Nonparametric Statistics, on confidence intervals for a quantile).
Timing noise is skewed and has outliers; an interval that takes it for normal is wrong where it matters most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from routetune.tasks.canonical import number
from routetune.tasks.errors import BadInput


@dataclass(frozen=True, slots=True)
class Estimate:
    """A speed beside the control, with its interval.

    Attributes:
        ratio: control time / candidate time, the median; above 1 is faster than the control.
        low, high: bounds of that median; 0 and infinity when there are too few values for the confidence.
        n: how many log ratios it is made of.
        confidence: that all `comparisons` intervals of the family hold together.
        comparisons: how many intervals share that confidence.
    """

    ratio: float
    low: float
    high: float
    n: int
    confidence: float = 0.95
    comparisons: int = 1

    @property
    def width(self) -> float:
        """log(high / low), about the relative width of the interval; infinite when there is none."""
        return math.log(self.high / self.low) if self.low > 0 and math.isfinite(self.high) else math.inf

    def to_json(self) -> dict[str, Any]:
        bounds = {name: number(getattr(self, name)) for name in ("ratio", "low", "high")}
        return {**bounds, "n": self.n, "confidence": self.confidence, "comparisons": self.comparisons}

    def __str__(self) -> str:
        if not math.isfinite(self.width):
            return f"{self.ratio:.3f}x (no interval from {self.n} values)"
        return f"{self.ratio:.3f}x ({self.low:.3f} to {self.high:.3f})"


def estimate(log_ratios: Sequence[float], confidence: float = 0.95, comparisons: int = 1) -> Estimate:
    """The median of log(control time / candidate time) and its simultaneous interval, as speeds.

    Args:
        log_ratios: one per independent repetition: rounds when screening, fresh loads in a duel.
        confidence: that this and the other `comparisons` - 1 intervals all hold (Bonferroni).

    Raises:
        BadInput: no value, or one that is not finite; a confidence or count out of range.
    """
    if not log_ratios or not all(math.isfinite(value) for value in log_ratios):
        raise BadInput(f"a speed needs at least one log ratio, all finite, found {list(log_ratios)[:5]}")
    ordered = sorted(log_ratios)
    n = len(ordered)
    rank = _rank(n, *_family(confidence, comparisons))
    low, high = (ordered[rank - 1], ordered[n - rank]) if rank else (-math.inf, math.inf)
    middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    return Estimate(_exp(middle), _exp(low), _exp(high), n, confidence, comparisons)


def needed(confidence: float = 0.95, comparisons: int = 1, spare: int = 0) -> int:
    """The smallest number of log ratios that has an interval at this simultaneous confidence.

    Args:
        spare: how many wild values on either side the interval must be able to leave out.
    """
    family = _family(confidence, comparisons)
    n = 1
    while _rank(n, *family) <= spare:
        n += 1
    return n


def _family(confidence: float, comparisons: int) -> tuple[Fraction, int]:
    if not 0 < confidence < 1:
        raise BadInput(f"confidence must be above 0 and below 1, not {confidence}")
    if comparisons < 1:
        raise BadInput(f"the number of comparisons must be at least 1, not {comparisons}")
    # The decimal that was meant: as a float, 1 - 0.95 is a little more than 0.05.
    return 1 - Fraction(confidence).limit_denominator(10**9), comparisons


@lru_cache(maxsize=4096)
def _rank(n: int, alpha: Fraction, comparisons: int) -> int:
    """The largest k with P(fewer than k of n on one side, either side) <= alpha / comparisons; 0 for none."""
    allowed = alpha * 2**n / (2 * comparisons)
    rank, ways, total = 0, 1, 1  # ways: n over rank
    while 2 * rank < n and total <= allowed:
        ways = ways * (n - rank) // (rank + 1)
        rank += 1
        total += ways
    return rank


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
