"""How far a recorded landscape can be trusted, and what of it can be used where its speeds cannot.

Accuracy is the same in every run of a route; a speed is measured, and on a busy machine measured badly. Where
it is, the fastest route on record is the one with the luckiest measurement, and no regret beside it says
anything of a search.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
from routetune.tasks.canonical import number
from routetune.tasks.routes.route import Route
from routetune.tasks.targets.judging import Accuracy
from routetune.tasks.trial import Trial
from routetune.tasks.verdicts.thresholds import dial_of, threshold

from tests.benchmarks.search.landscape import Landscape

#: A speed is sharp when its interval reaches no further than this to either side, as a log: the 5 % that the
#: goal allows 95 of 100 searches to stay below the best.
SHARP = 0.05
#: A landscape can show a regret of a few percent when this share of what was timed to the end is sharp; of
#: the contenders, where all were timed beside an anchor. Beside a default route that is unsteady itself one
#: lucky measurement can leave all contenders behind: seen were 3.46 where a duel had 1.75.
ENOUGH = 0.9
#: A route is a contender that may be this near to the best, as a share of it. How slow the others are exactly
#: moves no regret of a few percent.
NEAR = 0.8


def measured(landscape: Landscape) -> list[Trial]:
    """Routes with a measurement of their own: no alias, and not the control, which is 1 by definition."""
    return [t for r, t in landscape.trials.items() if r != Route() and not t.alias_of and t.speed]


def is_sharp(trial: Trial) -> bool:
    low, high = trial.low, trial.high
    return bool(low and high and math.isfinite(high) and math.log(high / low) <= 2 * SHARP)


def precision(landscape: Landscape) -> dict[str, Any]:
    """What was measured, and how well.

    `left_over` is the standard deviation of the log speeds around a least-squares fit of the effects of all
    values and of all pairs of values: what only three and more knobs together could explain, and noise.
    """
    own = measured(landscape)
    ended = [trial for trial in own if not trial.abandoned]
    no_interval = [t for t in ended if not (t.low and t.high and math.isfinite(t.high))]
    best = max((t for t in landscape.trials.values() if t.eligible), key=_speed, default=None)
    rivals = [trial for trial in ended if best and (trial.high or math.inf) >= NEAR * _speed(best)]
    deciding = rivals if landscape.about.get("anchor") else ended
    spread, left_over = _spread(landscape, own)
    return {
        "routes": len(landscape.trials),
        "eligible": sum(trial.eligible for trial in landscape.trials.values()),
        "default_eligible": landscape.default_is_eligible,
        "aliases": sum(bool(trial.alias_of) for trial in landscape.trials.values()),
        "measured": len(own),
        "abandoned": len(own) - len(ended),
        "no_interval": len(no_interval),
        "sharp_share": round(_sharp_share(ended), 3),
        "contenders": len(rivals),
        "sharp_contenders": round(_sharp_share(rivals), 3),
        "best": best and {"route": str(best.route), "speed": round(_speed(best), 3), "sharp": is_sharp(best)},
        "spread": round(spread, 3),
        "left_over": number(round(left_over, 3)),
        "fit_for_regret": bool(best and is_sharp(best) and _sharp_share(deciding) >= ENOUGH),
    }


def _sharp_share(trials: list[Trial]) -> float:
    return sum(map(is_sharp, trials)) / len(trials) if trials else 1.0


def judged(landscape: Landscape, metric: str, tolerance: float) -> Landscape:
    """The same routes and speeds under another accuracy rule, from the losses on record."""
    dial = dial_of(Accuracy(metric=metric, tolerance=tolerance))

    def again(trial: Trial) -> Trial:
        if trial.losses is None or trial.failure is not None:
            return trial
        loss = threshold(trial.losses, dial)
        return replace(trial, loss=loss, accepted=loss <= tolerance, verdict=f"{metric} {loss:.3g}")

    trials = {route: again(trial) for route, trial in landscape.trials.items()}
    about = dict(landscape.about) | {"judged": {"metric": metric, "tolerance": tolerance}}
    return Landscape(f"{landscape.name}, {metric} <= {tolerance:g}", landscape.space, trials, about)


def fitted(landscape: Landscape) -> Landscape:
    """The accuracy as recorded, with made-up speeds: a least-squares fit of values and pairs to the recorded.

    It has the make of a real landscape, and no noise; it is not the truth about its target.
    """
    own = measured(landscape)
    codes = _codes(landscape, list(landscape.trials))
    at = {route: row for row, route in enumerate(landscape.trials)}
    ids = {route.id: route for route in landscape.trials}
    columns = np.column_stack(list(_columns(codes)))
    rows = [at[trial.route] for trial in own]
    factors = np.linalg.lstsq(columns[rows], np.log([_speed(t) for t in own]), rcond=None)[0]
    logs = columns @ factors

    def smooth(trial: Trial) -> Trial:
        if not trial.speed:
            return trial
        same = ids.get(trial.alias_of or "", trial.route)
        speed = math.exp(logs[at[same]] - logs[at[Route()]])
        return replace(trial, speed=speed, low=speed, high=speed, abandoned=False)

    trials = {route: smooth(trial) for route, trial in landscape.trials.items()}
    about = dict(landscape.about) | {"source": "fitted"}
    return Landscape(landscape.name, landscape.space, trials, about)


def _speed(trial: Trial) -> float:
    return trial.speed or 0.0


def _spread(landscape: Landscape, own: list[Trial]) -> tuple[float, float]:
    """Standard deviations of the log speeds: around their mean, and around the fit of values and pairs."""
    logs = np.log([_speed(trial) for trial in own])
    columns = np.column_stack(list(_columns(_codes(landscape, [trial.route for trial in own]))))
    around = logs - columns @ np.linalg.lstsq(columns, logs, rcond=None)[0]
    free = len(logs) - int(np.linalg.matrix_rank(columns))
    return float(logs.std()), math.sqrt(float((around**2).sum()) / free) if free else math.nan


def _codes(landscape: Landscape, routes: list[Route]) -> np.ndarray[Any, Any]:
    """The values of all knobs, shape (routes, knobs)."""
    told = [route.as_dict() for route in routes]
    return np.array([[one.get(t.knob.name, t.knob.default) for t in landscape.space.terms] for one in told])


def _columns(codes: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    """The design of effects: a constant, each value but the first of each knob, and each two of them."""
    yield np.ones(len(codes))
    steps = [(at, codes[:, at] == v) for at in range(codes.shape[1]) for v in np.unique(codes[:, at])[1:]]
    for _, step in steps:
        yield step.astype(float)
    for (one, first), (other, second) in combinations(steps, 2):
        if one != other:
            yield (first & second).astype(float)
