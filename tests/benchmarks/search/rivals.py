"""Searches that are not ours, to replay beside: here plain Optuna, as its tutorial has it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import optuna
from routetune.tasks.routes.route import Route
from routetune.tasks.routes.space import RouteSpace
from routetune.tasks.trial import Trial

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
