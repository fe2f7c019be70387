"""Synthetic landscapes, for developing a search without fitting it to the few recorded ones.

They are invented, modelled on what was seen by hand: effects multiply, a few pairs of knobs interact, some
values are hopeless or crash, a knob may break the outputs alone and be the best together with another, and
the default route itself may be over the tolerance. What they show of a search must be shown again on
recorded landscapes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
from routetune.tasks.routes.route import Route
from routetune.tasks.trial import Failure, Outcome, Trial

from tests.benchmarks.search.landscape import Landscape, space_of

#: Standard deviation of a measured log speed.
NOISE = 0.005
SHAPES = (
    (2,) * 6,
    (2, 2, 2, 2, 2, 3),
    (2, 2, 2, 2, 4),
    (2,) * 7,
    (2, 2, 2, 3, 3),
    (2, 2, 2, 4, 4),
    (2, 2, 3, 3, 3),
)

Setting = tuple[str, str]


@dataclass
class Recipe:
    """How outcomes of one landscape come about; effects are of the log of the speed."""

    effects: dict[Setting, float] = field(default_factory=dict)
    pairs: dict[frozenset[Setting], float] = field(default_factory=dict)
    inaccurate: list[frozenset[Setting]] = field(default_factory=list)
    broken: list[frozenset[Setting]] = field(default_factory=list)  # outputs that are not finite
    crashes: list[frozenset[Setting]] = field(default_factory=list)


def landscapes(count: int, first: int = 0) -> list[Landscape]:
    """`count` landscapes of 64 to 128 routes, each of its own seed from `first` on."""
    found: list[Landscape] = []
    seed = first
    while len(found) < count:
        made = small(seed)
        # One where less than one route in ten may win has little to search for.
        if len(made.eligible) >= 0.1 * len(made.trials):
            found.append(made)
        seed += 1
    return found


def small(seed: int) -> Landscape:
    """64 to 128 routes of five to seven knobs."""
    rng = np.random.default_rng([7, seed])
    shape = SHAPES[int(rng.integers(len(SHAPES)))]
    knobs: list[dict[str, Any]] = []
    for number, size in enumerate(shape):
        values = [f"v{at}" for at in range(size)]
        knobs.append({"name": f"-k{number}", "values": values, "default": values[int(rng.integers(size))]})
    space = space_of(knobs)
    recipe = _recipe(rng, knobs)
    trials = {route: _outcome(route, recipe, space, rng) for route in _with_default(space)}
    base = trials[Route()].speed or 1.0
    trials = {route: _scaled(trial, base) for route, trial in trials.items()}
    return Landscape(f"synthetic-{seed}", space, trials, {"source": "synthetic", "seed": seed})


def _recipe(rng: np.random.Generator, knobs: list[dict[str, Any]]) -> Recipe:
    recipe = Recipe()
    steps = [(k["name"], v) for k in knobs for v in k["values"] if v != k["default"]]
    for step in steps:
        kind = rng.choice(["none", "small", "medium", "large"], p=[0.35, 0.35, 0.2, 0.1])
        scale = {"none": 0.0, "small": 0.02, "medium": 0.12, "large": 0.5}[str(kind)]
        recipe.effects[step] = float(rng.normal(0, scale)) if scale else 0.0
    for first, second in _some_pairs(rng, steps, int(rng.integers(0, 4))):
        recipe.pairs[frozenset((first, second))] = float(rng.normal(0, rng.choice([0.05, 0.2])))
    if rng.random() < 0.3:  # cudnn_conv_algo_search=DEFAULT
        recipe.effects[steps[int(rng.integers(len(steps)))]] = -4.6 if rng.random() < 0.5 else -1.2
    if rng.random() < 0.35:  # use_tf32 under a strict tolerance: the default is out, and was fast
        knob = knobs[int(rng.integers(len(knobs)))]
        recipe.inaccurate.append(frozenset({(knob["name"], knob["default"])}))
        for value in knob["values"]:
            if value != knob["default"]:
                recipe.effects[knob["name"], value] = float(-abs(rng.normal(0, 0.4)))
    if rng.random() < 0.5:  # fuse_conv_bias: broken without prefer_nhwc, the best one with it
        _best_together(rng, recipe, knobs)
    if rng.random() < 0.3:
        recipe.inaccurate.append(frozenset({steps[int(rng.integers(len(steps)))]}))
    if rng.random() < 0.3:
        recipe.crashes += [frozenset(pair) for pair in _some_pairs(rng, steps, 1)]
    return recipe


def _best_together(rng: np.random.Generator, recipe: Recipe, knobs: list[dict[str, Any]]) -> None:
    one, other = (knobs[int(at)] for at in rng.choice(len(knobs), 2, replace=False))
    step, helper = (
        (k["name"], str(rng.choice([v for v in k["values"] if v != k["default"]]))) for k in (one, other)
    )
    recipe.broken += [frozenset({step, (other["name"], v)}) for v in other["values"] if v != helper[1]]
    recipe.pairs[frozenset((step, helper))] = float(rng.uniform(0.3, 1.2))


def _some_pairs(
    rng: np.random.Generator, steps: list[Setting], count: int
) -> Iterator[tuple[Setting, Setting]]:
    pairs = [pair for pair in combinations(steps, 2) if pair[0][0] != pair[1][0]]
    for at in rng.choice(len(pairs), min(count, len(pairs)), replace=False):
        yield pairs[int(at)]


def _with_default(space: Any) -> list[Route]:
    return list(dict.fromkeys([Route(), *space]))


def _outcome(route: Route, recipe: Recipe, space: Any, rng: np.random.Generator) -> Trial:
    settings = {(t.knob.name, route.as_dict().get(t.knob.name, t.knob.default)) for t in space.terms}
    log_speed = sum(recipe.effects.get(setting, 0.0) for setting in settings)
    log_speed += sum(effect for pair, effect in recipe.pairs.items() if pair <= settings)
    speed = math.exp(log_speed + float(rng.normal(0, NOISE)))
    if any(rule <= settings for rule in recipe.crashes):
        return Trial(route, failure=Failure(Outcome.CRASHED, "SIGSEGV", "build"))
    if any(rule <= settings for rule in recipe.broken):
        return Trial(route, accepted=False, verdict="not finite", loss=math.inf)
    accepted = not any(rule <= settings for rule in recipe.inaccurate)
    return Trial(route, accepted=accepted, speed=speed, loss=0.0 if accepted else 1.0)


def _scaled(trial: Trial, base: float) -> Trial:
    if trial.speed is None:
        return trial
    speed = trial.speed / base
    width = math.exp(1.96 * NOISE)
    return replace(trial, speed=speed, low=speed / width, high=speed * width)


class Wide:
    """200 on/off knobs, of which 5 matter, 2 crash, 3 break accuracy and 2 only help together.

    All 5 help, or `harms` of them harm.

    Too many routes to list: outcomes are computed when asked for. `best` is the speed without noise.
    """

    def __init__(self, seed: int, harms: int = 0, knobs: int = 200) -> None:
        self._rng = np.random.default_rng([8, seed])
        names = [f"-k{number}" for number in range(knobs)]
        self.space = space_of({"name": n, "values": ["on", "off"], "default": "on"} for n in names)
        chosen = [names[int(at)] for at in self._rng.choice(knobs, 12, replace=False)]
        self.recipe = Recipe()
        for name in chosen[:5]:
            self.recipe.effects[name, "off"] = float(self._rng.uniform(0.04, 0.3))
        for name in chosen[:harms]:
            self.recipe.effects[name, "off"] *= -1
        self.recipe.crashes = [frozenset({(name, "off")}) for name in chosen[5:7]]
        self.recipe.inaccurate = [frozenset({(name, "off")}) for name in chosen[7:10]]
        self.recipe.pairs = {frozenset((name, "off") for name in chosen[10:]): 0.3}
        self.name, self.best = (
            f"wide-{seed}",
            math.exp(sum(effect for effect in self.recipe.effects.values() if effect > 0) + 0.3),
        )
        self._known: dict[Route, Trial] = {}

    @property
    def trials(self) -> Mapping[Route, Trial]:
        return self

    def __getitem__(self, route: Route) -> Trial:
        if route not in self._known:
            self._known[route] = _outcome(route, self.recipe, self.space, self._rng)
        return self._known[route]
