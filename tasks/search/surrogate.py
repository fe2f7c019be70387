"""A Gaussian process over knobs: from the routes that were timed to what the others may give."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from routetune.tasks.search.arrays import Array, Codes

#: Draws of the kernel's parameters, and Metropolis steps that each of them takes for FEW trials; with more
#: trials each step costs more, so there are fewer.
DRAWS = 24
STEPS = 60
FEW = 20
FEWEST_STEPS = 12
#: Priors, each log-normal. The unit is a log speed, since speeds are ratios to the default route's.
EFFECT, EFFECT_SPREAD = 0.06, 1.5
REACH, REACH_SPREAD = 1.0, 0.7
NOISE, NOISE_SPREAD = 0.01, 0.7
#: How far the default route itself may be from the middle of all routes.
CENTRE = 0.3
#: No speed is known better than this.
FLOOR = 0.003
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
    """A Gaussian process that is a linear model of all values and of all their combinations.

    Two routes are alike by each value that they share. The prior variance of a value's own effect is its
    `effect` squared; that of a combination is the product of those of its values, over that of `reach` for
    each value but one. So values that matter are expected to interact, and those that do nothing are not
    (strong heredity: Chipman 1996). The sum over all combinations is a product over values, hence a kernel
    (Stitson et al. 1999). Few trials fix few parameters, so predictions are averaged over draws from their
    posterior, by Metropolis steps from the prior.

    Args:
        codes: the value of each knob as an integer, shape (trials, knobs).
        values: what was measured, as logs, shape (trials,).
        deviations: the standard deviation of each measurement where that is known, shape (trials,).
    """

    def __init__(
        self, codes: Codes, values: Array, rng: np.random.Generator, deviations: Array | None = None
    ) -> None:
        best = np.sort(np.argsort(-values, kind="stable")[:MOST])
        known = np.zeros(len(values)) if deviations is None else deviations
        self._codes, self._values, self._noise = codes[best], values[best], known[best] ** 2 + FLOOR**2
        self._rng = rng
        self._settings = _settings(self._codes)
        self._shared = _shared(self._settings, self._codes, self._codes)
        self._mean = np.log([*[EFFECT] * len(self._settings), REACH, NOISE])
        self._spread = np.array([*[EFFECT_SPREAD] * len(self._settings), REACH_SPREAD, NOISE_SPREAD])
        self._draws = self._sampled(rng)

    def predict(self, candidates: Codes) -> Belief:
        settings, draws = self._with_unseen(candidates)
        across = _kernel(draws, _shared(settings, candidates, self._codes))
        held = _held(settings, candidates)
        own = _kernel(draws, held[:, :, None])[:, :, 0]
        gain = np.linalg.solve(self._covariance(self._draws), np.swapaxes(across, 1, 2))
        mean = np.einsum("dtc,t->dc", gain, self._values)
        variance = own - np.einsum("dct,dtc->dc", across, gain)
        return Belief(mean, np.sqrt(np.maximum(variance, 1e-10)))

    def _with_unseen(self, candidates: Codes) -> tuple[list[tuple[int, int]], Array]:
        """Settings and draws with those of values that no trial had, of which only the prior is known."""
        seen = set(self._settings)
        new = [setting for setting in _settings(candidates) if setting not in seen]
        drawn = self._rng.standard_normal((len(self._draws), len(new)))
        effects = math.log(EFFECT) + EFFECT_SPREAD * drawn
        draws = np.concatenate([self._draws[:, :-2], effects, self._draws[:, -2:]], axis=1)
        return [*self._settings, *new], draws

    def _sampled(self, rng: np.random.Generator) -> Array:
        """Logs of the parameters, shape (draws, settings + 2): effects, reach, noise."""
        draws = self._mean + self._spread * rng.standard_normal((DRAWS, len(self._mean)))
        fit = self._posterior(draws)
        for step in range(_steps(len(self._values))):
            # A prior drawn anew, one by one, is a symmetric choice only with the prior's ratio put back.
            moved, from_prior = self._moved(draws, step, rng)
            new = self._posterior(moved)
            ratio = new - fit
            if from_prior:
                ratio = ratio + self._prior(draws) - self._prior(moved)
            taken = np.log(rng.random(len(draws))) < ratio
            draws[taken], fit[taken] = moved[taken], new[taken]
        return draws

    def _moved(self, draws: Array, step: int, rng: np.random.Generator) -> tuple[Array, bool]:
        """By turns: one parameter or two from the prior; half of them a little; along two other draws."""
        share, noise = rng.random(draws.shape), rng.standard_normal(draws.shape)
        if step % 3 == 0:
            anew = share < 1.3 / draws.shape[1]
            return np.where(anew, self._mean + self._spread * noise, draws), True
        if step % 3 == 1:
            return draws + 0.35 * self._spread * noise * (share < 0.5), False
        order = rng.permutation(len(draws))
        apart = draws[order] - draws[np.roll(order, 1)]
        length = 0.4 + 0.6 * rng.random((len(draws), 1))
        return draws + length * apart * (share < 0.6) + 0.02 * noise, False

    def _prior(self, draws: Array) -> Array:
        return np.asarray(-0.5 * (((draws - self._mean) / self._spread) ** 2).sum(axis=1))

    def _posterior(self, draws: Array) -> Array:
        """Log of likelihood times prior of each draw, up to a constant."""
        count = len(self._values)
        # With the values as one more row, its factor holds the solution too. The corner only has to be large
        # enough: no covariance is smaller than the floor.
        whole = np.empty((len(draws), count + 1, count + 1))
        whole[:, :count, :count] = self._covariance(draws)
        whole[:, count, :count] = whole[:, :count, count] = self._values
        whole[:, count, count] = 1 + (self._values**2).sum() / FLOOR**2
        lower = np.linalg.cholesky(whole)
        solved = lower[:, count, :count]
        size = np.log(np.diagonal(lower, axis1=1, axis2=2)[:, :count]).sum(axis=1)
        return np.asarray(-0.5 * (solved**2).sum(axis=1) - size + self._prior(draws))

    def _covariance(self, draws: Array) -> Array:
        kernel = _kernel(draws, self._shared)
        at = np.arange(len(self._values))
        # The small share keeps it invertible where a kernel is many times larger than the noise.
        kernel[:, at, at] += np.exp(2 * draws[:, -1:]) + self._noise + 1e-7 * kernel[:, at, at]
        return kernel


def _steps(trials: int) -> int:
    return max(min(STEPS, FEWEST_STEPS), int(STEPS * min(1.0, (FEW / max(1, trials)) ** 2)))


def _kernel(draws: Array, shared: Array) -> Array:
    """Shape (draws, rows, columns) for shared settings of shape (settings, rows, columns)."""
    reach = np.clip(draws[:, -2], -3.0, 1.5)
    # A combination varies no more than its parts: that also bounds the product.
    odds = np.exp(np.minimum(2 * (draws[:, :-2] - reach[:, None]), 0.0))
    logs = np.log1p(odds) @ shared.reshape(len(shared), shared.shape[1] * shared.shape[2])
    product = np.expm1(logs).reshape(len(draws), *shared.shape[1:])
    return np.asarray(CENTRE**2 + np.exp(2 * reach)[:, None, None] * product)


def _settings(codes: Codes) -> list[tuple[int, int]]:
    """Every (knob, value) that occurs."""
    return [(knob, int(value)) for knob in range(codes.shape[1]) for value in np.unique(codes[:, knob])]


def _held(settings: list[tuple[int, int]], codes: Codes) -> Array:
    """Which settings each row holds, shape (settings, rows)."""
    return np.array([codes[:, knob] == value for knob, value in settings], dtype=np.float64)


def _shared(settings: list[tuple[int, int]], one: Codes, other: Codes) -> Array:
    return np.asarray(_held(settings, one)[:, :, None] * _held(settings, other)[:, None, :])


def _below(z: Array) -> Array:
    """The normal distribution function; exact also far down, where the late candidates are."""
    values = [0.5 * math.erfc(-value / math.sqrt(2)) for value in z.ravel().tolist()]
    return np.asarray(values, dtype=np.float64).reshape(z.shape)
