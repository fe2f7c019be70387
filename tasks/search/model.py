"""Optuna's tree-structured Parzen estimator, told what failed by constraints."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from routetune.tasks.errors import BadInput
from routetune.tasks.search.informed import Informed

if TYPE_CHECKING:
    import optuna
    from routetune.tasks.routes.route import Route
    from routetune.tasks.routes.space import RouteSpace
    from routetune.tasks.search.informed import Known
    from routetune.tasks.trial import Trial

#: Drawn before the estimator begins.
STARTUP = 6
#: Asks in a row that may hit what was tried already; then the first candidate of our own is taken.
REPEATS = 5


class Model(Informed):
    """Optuna by its ask and tell. A fresh study is told everything for each choice, so that it resumes from
    trials alone; those of earlier runs are told like its own.

    Raises:
        BadInput: Optuna is not installed.
    """

    name = "model"

    def __init__(self, space: RouteSpace, seed: int = 0, at_once: int = 1) -> None:
        super().__init__(space, seed, at_once)
        _library()

    def _pick(self, known: Known, pool: Sequence[Route], awaited: Sequence[Route]) -> Route:
        study = self._study(known)
        for _ in range(REPEATS):
            values = study.ask(self._distributions()).params
            if self.space.allows(values):
                route = self.space.route(values)
                if route not in self._told and route not in awaited:
                    return route
        return pool[int(self.generator(known, awaited).integers(len(pool)))]

    def _study(self, known: Known) -> optuna.Study:
        library = _library()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of options that Optuna calls experimental
            sampler = library.samplers.TPESampler(
                seed=self.seed * 100_003 + len(known),
                multivariate=True,
                n_startup_trials=STARTUP,
                constraints_func=lambda _: [0.0],  # turns constraints on; trials bring theirs along
            )
        study: optuna.Study = library.create_study(sampler=sampler, direction="maximize")
        spread = self._distributions()
        for code, trial in known:
            if all(at < len(term.values) for at, term in zip(code, self.space.terms, strict=True)):
                study.add_trial(_as_told(self._full(trial.route), spread, trial))
        return study

    def _distributions(self) -> dict[str, Any]:
        optuna = _library()
        return {
            term.knob.name: optuna.distributions.CategoricalDistribution(term.values)
            for term in self.space.terms
        }

    def _how(self) -> str:
        return "Optuna's TPE with what failed as constraints"


def _library() -> Any:
    try:
        import optuna
    except ModuleNotFoundError:
        raise BadInput(
            'search algorithm "model" needs Optuna, which is not installed: pip install "routetune[search]"'
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _as_told(values: dict[str, str], spread: dict[str, Any], trial: Trial) -> Any:
    optuna = _library()
    sound = trial.speed is not None and math.isfinite(trial.speed) and trial.speed > 0
    value = math.log(trial.speed) if sound and trial.speed is not None else -5.0
    return optuna.trial.create_trial(
        params=values,
        distributions=spread,
        value=value,
        system_attrs={"constraints": [0.0 if trial.eligible and sound else 1.0]},
    )
