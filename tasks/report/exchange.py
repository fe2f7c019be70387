"""Trials to and from other tools: trtexec's and Torch-TensorRT's tuning logs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from routetune.tasks.canonical import to_float
from routetune.tasks.engines.base import open_backend
from routetune.tasks.errors import BadInput
from routetune.tasks.reading import LOG, read_bounded
from routetune.tasks.routes.knob import KnobDatabase
from routetune.tasks.routes.tuning_log import LoggedTrial, dump_log, parse_log, parse_tokens
from routetune.tasks.store import Store
from routetune.tasks.subject import resolve
from routetune.tasks.targets.devices import plain
from routetune.tasks.targets.schema import Target, load_target
from routetune.tasks.trial import Outcome

#: Outcomes that the other tools call a crash.
_CRASHES = (Outcome.CRASHED, Outcome.KILLED, Outcome.OUT_OF_MEMORY, Outcome.TIMED_OUT, Outcome.FAILED)


def import_trials(file: Path, target_file: Path | None, store: Store) -> dict[str, Any]:
    """Keep the trials of a tuning log as priors, and name what cannot be used.

    Args:
        target_file: the target that they are for, whose backend's knobs the routes are then checked against.

    Raises:
        BadInput: the file cannot be read, or nothing in it can be used.
    """
    try:
        log = parse_log(read_bounded(file, "tuning log", LOG).decode())
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"tuning log {file} cannot be read: {error}") from error
    if not log.trials:
        why = log.problems[0] if log.problems else "it holds no iteration"
        raise BadInput(f"tuning log {file} holds no trial that could be used: {why}")
    target = None if target_file is None else load_target(target_file)
    problems = [*log.problems, *(_doubts(log.header, log.trials, _database(target)) if target else ())]
    name = target.name if target else None
    store.priors.add(log, file.name, name)
    return {
        "file": str(file),
        "target": name,
        "tuner_version": log.header.get("tuner_version"),
        "trials": len(log.trials),
        "usable": sum(trial.usable for trial in log.trials),
        "crashed": sum(trial.crashed for trial in log.trials),
        "problems": problems,
    }


def export_trials(target_file: Path, store: Store, run: str | None = None) -> str:
    """The trials of a target's latest run, or of another, as a tuning log.

    Raises:
        BadInput: there are no trials.
    """
    target = load_target(target_file)
    rows = store.records.read(run=run, target=target.name).to_pylist()
    if not rows:
        what = f"run {run!r}" if run else "any run"
        raise BadInput(f"there are no trials of target {target.name!r} of {what} in {store.name}")
    latest = run or max(rows, key=lambda row: row["finished_at"])["run"]
    rows = [row for row in rows if row["run"] == latest]
    control = median(_times(rows, "control_ns") or [0.0])
    trials = [_logged(row, target.accuracy.metric, control) for row in rows]
    return dump_log(_header(target, _database(target)), trials)


def _database(target: Target) -> KnobDatabase:
    backend, device = resolve(target)
    return open_backend(backend).knobs(plain(device))


def _doubts(
    header: Mapping[str, Any], trials: tuple[LoggedTrial, ...], database: KnobDatabase
) -> Iterator[str]:
    """What the routes of a log name that is not in the database, each once."""
    version = header.get("tuner_version")
    if version is not None and version not in database.version.split(", "):
        yield f"the log is of tuner {version}, today's is {database.version}: defaults may differ"
    seen: set[str] = set()
    for trial in trials:
        for name, value in trial.route.items():
            try:
                database.route({name: value})
            except BadInput as problem:
                if f"{name}={value}" not in seen:
                    seen.add(f"{name}={value}")
                    yield f"routes with {name}={value} will not be tried: {problem}"


def _header(target: Target, database: KnobDatabase) -> dict[str, Any]:
    """The first line, with the fields of trtexec's and in their order."""
    accuracy, expression = target.accuracy, " ".join(target.search.routes)
    compiler = [f"{knob.name}={knob.default}" for knob in database.values() if knob.name[0] == "-"]
    arguments = ["trtexec", f"--onnx={target.model}", f"--tuneBuildRoutes={expression}"]
    return {
        "tuner_version": database.version.split(", ")[0],
        "accuracy_algorithm": accuracy.metric,
        "accuracy_parameter": {
            "atol": accuracy.atol,
            "rtol": accuracy.rtol,
            "epsilon": min(accuracy.tolerance, 1.7976931348623157e308),
        },
        "searching_algorithm": target.search.algorithm,
        "command_line": f"routetune tune {target.path}",
        "default_build_route": " ".join(compiler),
        "tuning_expr": expression,
        "files": {"onnx": str(target.model)},
        "argv": arguments,
    }


def _logged(row: Mapping[str, Any], metric: str, control: float) -> LoggedTrial:
    times = _times([row], "candidate_ns")
    # The default route is the control: it has no timing of its own, only that beside the others.
    own = median(times) if times else control if row["speed"] == 1.0 else None
    crashed = row["outcome"] in _CRASHES
    bad = row["outcome"] in (Outcome.INACCURATE, Outcome.FLAKY) or crashed
    return LoggedTrial(
        parse_tokens(row["route"]),
        None if not own else own / 1e6,
        crashed,
        row["reason"] if bad else "",
        _losses(row["losses"], metric),
    )


def _times(rows: list[Any], side: str) -> list[float]:
    """The median of every round, in nanoseconds; dropped rounds left out."""
    return [
        float(median(one[side]))
        for row in rows
        if row["timing"]
        for one in json.loads(row["timing"])["rounds"]
        if one[side] and not one["dropped"]
    ]


def _losses(text: str | None, metric: str) -> dict[str, float]:
    """Output -> its worst loss over the input sets; losses that are not finite are left out."""
    worst: dict[str, float] = {}
    for one in json.loads(text) if text else ():
        for name, entry in one["outputs"].items():
            loss = to_float(entry.get("losses", {}).get(metric, "nan"))
            if loss - loss == 0.0:
                worst[name] = max(loss, worst.get(name, loss))
    return worst
