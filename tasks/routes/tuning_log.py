"""Tuning logs: the JSON-lines files of trtexec's --tuningCacheFile, which Torch-TensorRT writes too.

The first line describes the run, each further line one iteration:

    {"tuner_version": "2.19.15", "accuracy_algorithm": "l0", "tuning_expr": "-copy_ppg=[on|off]", ...}
    {"iter": 0, "build_route": "-copy_ppg=on", "crash": false, "error_message": "",
     "accuracy_loss": {"y": 0.0}, "gpu_time": 0.61}

`gpu_time` is in milliseconds, null after a crash; `accuracy_loss` maps outputs to losses, or is one number,
or null.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from routetune.tasks.canonical import dumps, number
from routetune.tasks.routes.knob import FAMILIES


@dataclass(frozen=True, slots=True)
class LoggedTrial:
    """One iteration.

    Attributes:
        route: knob name -> value as written, defaults included.
        milliseconds: mean time of one inference on the GPU; None when there is none.
        crashed: the build or the run did not come to its end.
        error: the other tool's words; with `crashed` false it means that accuracy was not good enough.
        losses: output -> loss; "" stands for all of them together.
    """

    route: dict[str, str]
    milliseconds: float | None
    crashed: bool = False
    error: str = ""
    losses: dict[str, float] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """Whether it ran, was accurate enough for whoever wrote the log, and was timed."""
        return not self.crashed and not self.error and self.milliseconds is not None


@dataclass(frozen=True, slots=True)
class TuningLog:
    """A whole file.

    Attributes:
        header: the first line, {} when the file begins with an iteration.
        trials: in the order of the file; of an iteration written twice, the later line.
        problems: one sentence for each thing that could not be used, with its line.
    """

    header: dict[str, Any]
    trials: tuple[LoggedTrial, ...]
    problems: tuple[str, ...] = ()


def parse_log(text: str) -> TuningLog:
    """Read a log; what cannot be used is named and does not keep the rest from being used."""
    header: dict[str, Any] = {}
    trials: dict[Any, LoggedTrial] = {}
    problems: list[str] = []
    for index, line in enumerate(text.split("\n"), start=1):  # strings may hold other ends of lines
        if not line.strip():
            continue
        try:
            content = json.loads(line)
            if not isinstance(content, dict):
                raise ValueError(f"expected an object, found {type(content).__name__}")
            if "build_route" not in content and not trials and not header:
                header = _header(line)
                continue
            trial, doubts = _trial(content)
        except (ValueError, RecursionError, TypeError) as error:
            problems.append(f"line {index}: {error}")
            continue
        problems += [f"line {index}: {doubt}" for doubt in doubts]
        iteration = content.get("iter")
        trials[iteration if isinstance(iteration, int | str) else f"line {index}"] = trial
    return TuningLog(header, tuple(trials.values()), tuple(problems))


def dump_log(header: Mapping[str, Any], trials: Iterable[LoggedTrial]) -> str:
    """The text of a log, with the fields in trtexec's order; strict JSON."""
    lines = [json.dumps(dict(header), allow_nan=False)]
    lines += [json.dumps(_line(index, trial), allow_nan=False) for index, trial in enumerate(trials)]
    return "\n".join(lines) + "\n"


def parse_tokens(text: str) -> dict[str, str]:
    """ "-a=on -b=2" as knob name -> value; only the form is checked. Raises ValueError."""
    route: dict[str, str] = {}
    for token in text.split():
        name, equals, value = token.partition("=")
        if not equals or not value or name[:1] not in FAMILIES or len(name) < 2:
            raise ValueError(f"token {token!r:.80} of the route is not of the form -name=value")
        if name in route:
            raise ValueError(f"knob {name:.80} is in the route twice")
        route[name] = value
    return route


def _trial(content: Mapping[str, Any]) -> tuple[LoggedTrial, list[str]]:
    route = content.get("build_route")
    if not isinstance(route, str):
        raise ValueError(f'"build_route" must be a string, found {route!r:.80}')
    doubts: list[str] = []
    milliseconds = _time(content.get("gpu_time"), doubts)
    losses = _losses(content.get("accuracy_loss"), doubts)
    crashed = content.get("crash", False)
    if not isinstance(crashed, bool):
        doubts.append(f'"crash" is {crashed!r}, neither true nor false; taken as a crash')
        crashed = True
    error = content.get("error_message") or ""
    return LoggedTrial(parse_tokens(route), milliseconds, crashed, str(error), losses), doubts


def _header(line: str) -> dict[str, Any]:
    """The first line. What strict JSON has no number for (NaN, 1e999) is kept as it is written.

    Raises:
        TypeError: it is nested too deeply to be kept.
    """
    header: dict[str, Any] = json.loads(line, parse_constant=str, parse_float=_finite)
    dumps(header)
    return header


def _finite(text: str) -> float | str:
    return value if math.isfinite(value := float(text)) else text


def _time(value: Any, doubts: list[str]) -> float | None:
    if value is None:
        return None
    if not _is_number(value) or not 0 < value < math.inf:
        doubts.append(f'"gpu_time" {value!r:.80} is no time in milliseconds; the route counts as not timed')
        return None
    return float(value)


def _is_number(value: Any) -> bool:
    """Whether it is one that a float can hold; JSON's whole numbers have no bound."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) <= sys.float_info.max


def _losses(value: Any, doubts: list[str]) -> dict[str, float]:
    if value is None:
        return {}
    given = value if isinstance(value, Mapping) else {"": value}
    losses = {}
    for name, loss in given.items():
        if not _is_number(loss):
            doubts.append(
                f'"accuracy_loss" of {name or "all outputs"!r} is {loss!r:.80}, no number; left out'
            )
        else:
            losses[str(name)] = float(loss)
    return losses


def _line(index: int, trial: LoggedTrial) -> dict[str, Any]:
    losses = {name: number(loss) for name, loss in trial.losses.items()}
    return {
        "iter": index,
        "build_route": " ".join(f"{name}={value}" for name, value in trial.route.items()),
        "crash": trial.crashed,
        "error_message": trial.error,
        "accuracy_loss": None if trial.crashed or not losses else losses,
        "gpu_time": None if trial.crashed else trial.milliseconds,
    }
