"""Order-statistic intervals: exact ranks, honest when there are too few values, and true coverage."""

from __future__ import annotations

import json
import math
import random

import pytest
from routetune.tasks import canonical
from routetune.tasks.errors import BadInput
from routetune.tasks.verdicts.intervals import Estimate, estimate, needed


@pytest.mark.parametrize(
    ("confidence", "comparisons", "smallest"),
    [(0.95, 1, 6), (0.95, 2, 7), (0.95, 10, 9), (0.95, 9, 9), (0.99, 1, 8), (0.5, 1, 2), (0.999, 20, 16)],
)
def test_how_many_log_ratios_an_interval_needs(confidence: float, comparisons: int, smallest: int) -> None:
    assert needed(confidence, comparisons) == smallest
    values = [0.01 * i for i in range(smallest)]
    assert estimate(values[:-1], confidence, comparisons).width == math.inf
    full = estimate(values, confidence, comparisons)
    assert (full.low, full.high) == (1.0, math.exp(values[-1]))


def test_too_few_values_give_no_interval_but_a_ratio() -> None:
    found = estimate([0.0, 0.2, 0.1])
    assert (found.low, found.high, found.n) == (0.0, math.inf, 3)
    assert found.ratio == pytest.approx(math.exp(0.1))
    assert "no interval from 3" in str(found)
    back = json.loads(canonical.dumps(found.to_json()))
    assert (back["low"], back["high"]) == (0.0, "inf")


# Ranks k of the 95 % interval (x_k, x_{n+1-k}) of a median, from published tables of the sign test.
@pytest.mark.parametrize(
    ("n", "k"), [(6, 1), (8, 1), (9, 2), (12, 3), (15, 4), (20, 6), (25, 8), (50, 18), (100, 40)]
)
def test_ranks_are_those_of_the_sign_test(n: int, k: int) -> None:
    values = [i / 1000 for i in range(1, n + 1)]
    random.Random(n).shuffle(values)
    found = estimate(values)
    assert found.low == pytest.approx(math.exp(k / 1000))
    assert found.high == pytest.approx(math.exp((n + 1 - k) / 1000))


@pytest.mark.parametrize("n", [6, 9, 20, 41])
def test_coverage_is_at_least_the_confidence_whatever_the_noise(n: int) -> None:
    # Synthetic, skewed, heavy-tailed noise of known median 0; 3 standard errors of slack for 800 draws.
    rng = random.Random(n)

    def draw() -> float:
        return (rng.expovariate(1.0) - math.log(2)) * (20 if rng.random() < 0.1 else 0.01)

    # A mixture of scaled copies keeps the median at 0.
    covered = 0
    for _ in range(800):
        found = estimate([draw() for _ in range(n)])
        covered += found.low <= 1 <= found.high
    assert covered / 800 >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / 800)


def test_the_interval_follows_the_values() -> None:
    values = [0.01, 0.03, 0.02, 0.05, 0.04, 0.06, 0.02, 0.03]
    found = estimate(values)
    assert found.low <= found.ratio <= found.high
    assert estimate([-v for v in values]).ratio == pytest.approx(1 / found.ratio)
    assert estimate(values, comparisons=3).width >= found.width


@pytest.mark.parametrize("values", [[], [0.1, math.nan], [math.inf] * 8])
def test_what_is_no_measurement_is_refused(values: list[float]) -> None:
    with pytest.raises(BadInput, match="log ratio"):
        estimate(values)


@pytest.mark.parametrize(("confidence", "comparisons"), [(0.0, 1), (1.0, 1), (math.nan, 1), (0.95, 0)])
def test_settings_out_of_range_are_refused(confidence: float, comparisons: int) -> None:
    with pytest.raises(BadInput):
        estimate([0.0] * 10, confidence, comparisons)


def test_absurd_ratios_do_not_overflow() -> None:
    found = estimate([1e4] * 6)
    assert found == Estimate(math.inf, math.inf, math.inf, 6)
