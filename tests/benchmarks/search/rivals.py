"""Searches that are not ours, to replay beside: plain Optuna, as its tutorial has it, and Kernel Tuner."""

from __future__ import annotations

import json
import math
import random
import tempfile
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from routetune.tasks.routes.route import Route
from routetune.tasks.routes.space import RouteSpace
from routetune.tasks.trial import Trial

from tests.benchmarks.search.landscape import Landscape

optuna.logging.set_verbosity(optuna.logging.ERROR)


class PlainOptuna:
    """TPE with its defaults and no constraints: what may not win is told as a failed trial.

    Routes that it asks for again cost no build, since any tool remembers them; after 50 in a row it ends.
    """

    name = "optuna"
    total = None

    def __init__(self, space: RouteSpace, seed: int = 0) -> None:
        self._space = space
        self._study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
        self._told: dict[Route, Trial] = {}
        self._asked: dict[Route, list[Any]] = {}

    def ask(self, n: int) -> list[Route]:
        for _ in range(50):
            trial = self._study.ask()
            for term in self._space.terms:
                trial.suggest_categorical(term.knob.name, term.values)
            route = self._space.route(trial.params)
            if route not in self._told:
                self._asked[route] = [trial]
                return [route]
            self._tell(trial, self._told[route])
        return []

    def tell(self, trials: Sequence[Trial]) -> None:
        for told in trials:
            self._told[told.route] = told
            for asked in self._asked.pop(told.route, []):
                self._tell(asked, told)

    def _tell(self, asked: Any, told: Trial) -> None:
        if told.eligible and told.speed:
            self._study.tell(asked, math.log(told.speed))
        else:
            self._study.tell(asked, state=optuna.trial.TrialState.FAIL)

    def explain(self) -> str:
        return "optuna: TPE with its defaults"


class Listed:
    """Routes in an order that was settled before."""

    name = "listed"
    total = None

    def __init__(self, routes: Iterable[Route]) -> None:
        self._left = list(dict.fromkeys(routes))

    def ask(self, n: int) -> list[Route]:
        batch, self._left = self._left[:n], self._left[n:]
        return batch

    def tell(self, trials: Sequence[Trial]) -> None:
        told = {trial.route for trial in trials}
        self._left = [route for route in self._left if route not in told]

    def explain(self) -> str:
        return "a list"


def kernel_tuner(landscape: Landscape, seed: int, limit: int) -> Listed:
    """Kernel Tuner's genetic algorithm with its defaults, in its simulation mode on a cache file.

    Its file has one entry for each configuration; what may not win, or is excluded, is a failed one there.
    """
    import kernel_tuner

    terms = landscape.space.terms
    names = {f"k{at}": list(range(len(term.values))) for at, term in enumerate(terms)}
    random.seed(seed)
    np.random.seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "cache.json")
        file.write_text(json.dumps(_cache(landscape, names)))
        found, _ = kernel_tuner.tune_kernel(
            "route", "", 1, [], names, lang="C", simulation_mode=True, cache=str(file), quiet=True,
            strategy="genetic_algorithm", strategy_options={"max_fevals": limit},
        )  # fmt: skip
    values = [{t.knob.name: t.values[one[n]] for n, t in zip(names, terms, strict=True)} for one in found]
    return Listed(landscape.space.route(one) for one in values if landscape.space.allows(one))


def _cache(landscape: Landscape, names: dict[str, list[int]]) -> dict[str, Any]:
    entries = {}
    for at in product(*names.values()):
        terms = zip(landscape.space.terms, at, strict=True)
        trial = landscape.trials.get(landscape.space.route({t.knob.name: t.values[i] for t, i in terms}))
        speed = trial.speed if trial is not None and trial.eligible else None
        entries[",".join(map(str, at))] = dict(zip(names, at, strict=True)) | {
            "time": 1 / speed if speed else "RuntimeFailedConfig",
            **dict.fromkeys(("compile_time", "verification_time", "benchmark_time"), 0),
        }
    head = {"device_name": "landscape", "kernel_name": "route", "problem_size": 1, "objective": "time"}
    return head | {"tune_params_keys": list(names), "tune_params": names, "cache": entries}
