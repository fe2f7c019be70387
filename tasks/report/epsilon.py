"""What helps a person to choose ε: losses to hold it against, and what each step costs in the task itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from routetune.tasks.canonical import number
from routetune.tasks.report.staircase import Staircase, open_staircase, told
from routetune.tasks.routes.tuning_log import parse_tokens
from routetune.tasks.targets.places import DYNAMIC, FUSED, HALF
from routetune.tasks.verdicts.thresholds import dial_of, threshold

if TYPE_CHECKING:
    from routetune.tasks.store import Store

#: Knobs that rewrite the model begin so; HALF and DYNAMIC stand for all that is left.
PLACE = "@"


def epsilon(path: Path, store: Store, metric: str | None, run: str | None) -> dict[str, Any]:
    """The answer of `routetune epsilon`: that of `frontier`, with "marks" and the lowest top-1 accuracies.

    Raises:
        BadInput: as `staircase.frontier`.
    """
    return weighed(open_staircase(path, store, metric, run))


def weighed(stairs: Staircase) -> dict[str, Any]:
    """A staircase as plain JSON, with losses to hold ε against and the lowest top-1 accuracy at each step."""
    answer = told(stairs, [])
    for plain, lowest in zip(reversed(answer["steps"]), _lowest(stairs), strict=True):
        plain["lowest_top1"] = lowest
    del answer["answers"]
    return answer | {"marks": _marks(stairs)}


def _lowest(stairs: Staircase) -> list[float | None]:
    """The lowest top-1 accuracy of the routes eligible at each step, from the smallest ε up."""
    at_step = [
        min((share for index in step.leaving if (share := stairs.top1[index]) is not None), default=math.nan)
        for step in reversed(stairs.steps)
    ]
    found = np.fmin.accumulate(np.array(at_step, dtype=np.float64)).tolist()
    return [None if math.isnan(share) else share for share in found]


def _marks(stairs: Staircase) -> list[dict[str, Any]]:
    """Losses of routes that a person knows; None where the run did not try such a route."""
    found = [_repeat(stairs)]
    known = {
        "the default route": stairs.default,
        "float16 throughout": _half(stairs),
        "8 bits, scaled while running": _dynamic(stairs),
        "most places in 8 bits": _quantised(stairs),
    }
    for name, at in known.items():
        mark: dict[str, Any] = {"name": name, "route": None, "loss": None, "top1": None}
        if at is not None:
            route, loss = stairs.rows[at]["route"], stairs.thresholds[at]
            told_loss = None if math.isnan(loss) else number(loss)
            mark |= {"route": route, "loss": told_loss, "top1": stairs.top1[at]}
        found.append(mark)
    return found


def _repeat(stairs: Staircase) -> dict[str, Any]:
    """How far the default route's outputs are from those of a second run of the same engine."""
    report = None if stairs.default is None else stairs.reports[stairs.default]
    mark: dict[str, Any] = {"name": "the default route, run twice", "route": "", "loss": None, "top1": None}
    dial = dial_of(stairs.target.accuracy, stairs.metric)
    if report is None or not dial.rules.default.of_pairs or any("repeat" not in one for one in report):
        return mark
    again = [{"set": one["set"], "outputs": one["repeat"]} for one in report]
    return mark | {"loss": number(threshold(again, dial))}


def _half(stairs: Staircase) -> int | None:
    """The route of half precision throughout, with as few other knobs as there is one."""
    return _plainest(stairs, [{HALF} == _places(row).keys() for row in stairs.rows])


def _quantised(stairs: Staircase) -> int | None:
    """The route with the most places on, with as few other knobs as there is one."""
    counts = [len(_places(row).keys() - {HALF, DYNAMIC}) for row in stairs.rows]
    most = max(counts, default=0)
    return _plainest(stairs, [most > 0 and count == most for count in counts])


def _dynamic(stairs: Staircase) -> int | None:
    return _plainest(stairs, [{DYNAMIC} == _places(row).keys() for row in stairs.rows])


def _places(row: Mapping[str, Any]) -> dict[str, str]:
    """The places of a route that lower precision, which FUSED does not."""
    settings = parse_tokens(row["route"]).items()
    return {name: value for name, value in settings if name.startswith(PLACE) and name != FUSED}


def _plainest(stairs: Staircase, wanted: Sequence[bool]) -> int | None:
    """The index of the wanted route that names the fewest knobs, the first of equals."""
    found = [at for at, is_wanted in enumerate(wanted) if is_wanted]
    return min(found, key=lambda at: len(stairs.rows[at]["route"].split()), default=None)
