"""A Gaussian process over knobs: from the routes that were timed to what the others may give."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[np.float64]]
    Codes = np.ndarray[Any, np.dtype[np.int64]]

#: Draws of the kernel's parameters, and Metropolis steps that each of them takes.
DRAWS = 32
STEPS = 12
#: Priors, each log-normal: how much alike two routes cease to be for a knob in which they differ, the odds of
#: the sum against the product, amplitude, and noise. The last two are in units of the spread of the values.
RATE, RATE_SPREAD = 0.2, 1.3
ODDS, ODDS_SPREAD = 1.0, 1.5
AMPLITUDE, AMPLITUDE_SPREAD = 2.0, 0.7
NOISE, NOISE_SPREAD = 0.02, 1.0
#: The most trials that it is fitted to; cost grows with the cube.
MOST = 160


@dataclass(frozen=True, slots=True)
class Belief:
    """What is believed of candidates under each draw of the kernel's parameters.

    Attributes:
        mean, deviation: shape (draws, candidates).
    """

    mean: Array
    deviation: Array

    def improvement(self, best: float) -> Array:
        """By how much each candidate is expected to be above `best`, shape (candidates,)."""
        z = (self.mean - best) / self.deviation
        density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        return np.asarray((self.deviation * (z * _below(z) + density)).mean(axis=0))


class Surrogate:
    """A Gaussian process whose kernel says how alike two routes are by the knobs in which they differ.

    The kernel is a sum over knobs (effects that add up) plus a product over knobs (any interaction), each
    knob with a rate of its own (Rasmussen & Williams 2006, ch. 5.1: automatic relevance). Few trials fix few
    parameters, so predictions are averaged over draws from their posterior (Metropolis steps from the prior).

    Args:
        codes: the value of each knob as an integer, shape (trials, knobs).
        values: what was measured, shape (trials,).
    """

    def __init__(self, codes: Codes, values: Array, rng: np.random.Generator) -> None:
        best = np.sort(np.argsort(-values, kind="stable")[:MOST])
        self._codes, values = codes[best], values[best]
        self._centre = float(values.mean())
        self._scale = max(float(values.std()), 1e-3)
        self._values = (values - self._centre) / self._scale
        self._differs = _differences(self._codes, self._codes)
        knobs = codes.shape[1]
        self._mean = np.log([*[RATE] * knobs, ODDS, AMPLITUDE, NOISE])
        self._spread = np.array([*[RATE_SPREAD] * knobs, ODDS_SPREAD, AMPLITUDE_SPREAD, NOISE_SPREAD])
        self._draws = self._sampled(rng)

    def predict(self, candidates: Codes) -> Belief:
        kernel = self._kernel(self._draws, _differences(candidates, self._codes))
        gain = kernel @ np.linalg.inv(self._covariance(self._draws))
        mean = gain @ self._values
        variance = np.exp(2 * self._draws[:, -2])[:, None] - (gain * kernel).sum(axis=2)
        deviation = np.sqrt(np.maximum(variance, 1e-10))
        return Belief(mean * self._scale + self._centre, deviation * self._scale)

    def _sampled(self, rng: np.random.Generator) -> Array:
        """Logs of the parameters, shape (draws, knobs + 3)."""
        draws = self._mean + self._spread * rng.standard_normal((DRAWS, len(self._mean)))
        fit = self._posterior(draws)
        share = max(0.35, 1.5 / len(self._mean))
        for _ in range(STEPS):
            step = 0.5 * self._spread * rng.standard_normal(draws.shape)
            moved = draws + step * (rng.random(draws.shape) < share)
            new = self._posterior(moved)
            taken = np.log(rng.random(DRAWS)) < new - fit
            draws[taken], fit[taken] = moved[taken], new[taken]
        return draws

    def _posterior(self, draws: Array) -> Array:
        """Log of likelihood times prior of each draw, up to a constant."""
        lower = np.linalg.cholesky(self._covariance(draws))
        values = np.broadcast_to(self._values[:, None], (len(draws), len(self._values), 1))
        solved = np.linalg.solve(lower, values)[..., 0]
        size = np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
        prior = (((draws - self._mean) / self._spread) ** 2).sum(axis=1)
        return np.asarray(-0.5 * (solved**2).sum(axis=1) - size - 0.5 * prior)

    def _covariance(self, draws: Array) -> Array:
        noise = np.exp(2 * draws[:, -1]) + 1e-8
        return self._kernel(draws, self._differs) + noise[:, None, None] * np.eye(len(self._codes))

    def _kernel(self, draws: Array, differs: Array) -> Array:
        """Shape (draws, rows, columns) for differences of shape (rows, columns, knobs)."""
        rate = np.exp(draws[:, :-3])
        apart = np.tensordot(rate, differs, axes=(1, 2))
        total = rate.sum(axis=1)[:, None, None]
        odds = draws[:, -3][:, None, None]
        share = 1 / (1 + np.exp(-odds))
        amplitude = np.exp(2 * draws[:, -2])[:, None, None]
        return np.asarray(amplitude * (share * (1 - apart / total) + (1 - share) * np.exp(-apart)))


def _differences(one: Codes, other: Codes) -> Array:
    return np.asarray(one[:, None, :] != other[None, :, :], dtype=np.float64)


def _below(z: Array) -> Array:
    """The normal distribution function; exact also far down, where the late candidates are."""
    values = [0.5 * math.erfc(-value / math.sqrt(2)) for value in z.ravel().tolist()]
    return np.asarray(values, dtype=np.float64).reshape(z.shape)
