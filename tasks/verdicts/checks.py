"""What the worker does to judge an engine's outputs: run it on every input set and compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from routetune.tasks.arrays import Array, arrays_digest, load_arrays
from routetune.tasks.engines.base import Runner
from routetune.tasks.engines.steps import RunError, engine_from, loaded
from routetune.tasks.verdicts.accuracy import compare_outputs
from routetune.tasks.verdicts.losses import is_number, losses
from routetune.tasks.verdicts.metrics import MetricError, task_loss

#: The role of input sets that are run only to see whether outputs move with the inputs.
PROBE = "probe"

Set = Mapping[str, Any]


def check(
    backend: str,
    engine: Mapping[str, Any],
    path: str,
    device: str,
    settings: Mapping[str, Any],
    sets: Sequence[Set],
    comparing: Mapping[str, Any],
    task: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Losses of all metrics, per input set and output.

    Args:
        sets: one dict per input set: "name", "role", the arrays files "inputs" and "outputs", and that of
            "labels" where the task needs them and there are any.
        comparing: see `rules.comparing`.
        task: the metric of whole input sets, where the target has one; see `metrics.task_loss`.

    Raises:
        RunError: the engine does not load, or not run.
        MetricError: the metric of whole input sets gave no number.
    """
    report, seen = [], []
    with loaded(backend, engine_from(path, engine), device, settings) as runner:
        for one in sets:
            candidate = infer(runner, load_arrays(Path(one["inputs"])), one["name"])
            seen.append({name: _Seen.of(array) for name, array in candidate.items()})
            if one["role"] != PROBE:
                report.append(_compared(one, candidate, comparing, task))
    _mark_stuck(report, sets, seen, comparing)
    return report


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is kept of an output to tell whether it comes again."""

    shape: tuple[int, ...]
    dtype: Any
    digest: str

    @classmethod
    def of(cls, array: Array) -> _Seen:
        return cls(array.shape, array.dtype, arrays_digest({"": array}))


def try_metric(sets: Sequence[Set], task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The metric of whole input sets on the reference beside itself, so that its faults show before a build.

    Raises:
        MetricError: as `check`; or two calls with the same arrays gave two losses.
    """
    found = []
    for one in sets:
        reference, labels = _reference(one["outputs"]), _labels(one)
        first, second = (task_loss(task, one["name"], reference, reference, labels) for _ in range(2))
        if first != second:
            raise MetricError(
                f"metric {task['metric']!r} on input set {one['name']!r} gives {first['loss']} and then "
                f"{second['loss']} for the same arrays; seed whatever it draws"
            )
        found.append({"set": one["name"], "loss": first["loss"]})
    return found


def infer(runner: Runner, inputs: Mapping[str, Array], set_name: str) -> dict[str, Array]:
    """Run the engine once. Raises RunError: it does not run; the message is the library's."""
    try:
        return runner.infer(inputs)
    except MemoryError:
        raise
    except Exception as error:
        raise RunError(f"the engine does not run on input set {set_name!r}: {error}") from error


def _compared(
    one: Set, candidate: dict[str, Array], comparing: Mapping[str, Any], task: Mapping[str, Any] | None
) -> dict[str, Any]:
    reference = _reference(one["outputs"])
    outputs = compare_outputs(reference, candidate, **comparing)
    report: dict[str, Any] = {"set": one["name"], "outputs": outputs}
    if task is not None:
        # A metric is not asked about outputs that fail whatever it says.
        fails = any("problem" in entry or entry["non_finite_candidate"] for entry in outputs.values())
        report["task"] = (
            {"loss": "inf"} if fails else task_loss(task, one["name"], reference, candidate, _labels(one))
        )
    return report


def _mark_stuck(
    report: list[dict[str, Any]],
    sets: Sequence[Set],
    seen: Sequence[Mapping[str, _Seen]],
    comparing: Mapping[str, Any],
) -> None:
    """Mark each output that never changes from one input set to another, while the reference's does.

    The reference changes where it moves beyond atol + rtol * |reference| somewhere: who rounds more coarsely
    than that may well stand still.
    """
    for name in seen[0]:
        alike: dict[Any, list[int]] = {}
        for at, outputs in enumerate(seen):
            if name in outputs:
                alike.setdefault((outputs[name].shape, outputs[name].dtype), []).append(at)
        if any(
            seen[at][name].digest != seen[group[0]][name].digest for group in alike.values() for at in group
        ):
            continue
        pairs = ((sets[group[0]], sets[at]) for group in alike.values() for at in group[1:])
        for first, second in pairs:
            if _moves(first["outputs"], second["outputs"], name, comparing):
                _mark(report, name, [first["name"], second["name"]])
                break


def _mark(report: list[dict[str, Any]], name: str, pair: list[str]) -> None:
    for one in report:
        entry = one["outputs"].get(name)
        if entry is not None and "problem" not in entry:
            entry["stuck"] = pair


def _moves(first: str, second: str, name: str, comparing: Mapping[str, Any]) -> bool:
    own = comparing["outputs"].get(name, {})
    atol, rtol = (float(own.get(bound, comparing[bound])) for bound in ("atol", "rtol"))
    return _moves_beyond(first, second, name, atol, rtol)


@lru_cache(maxsize=256)
def _moves_beyond(first: str, second: str, name: str, atol: float, rtol: float) -> bool:
    a, b = (_reference(path).get(name) for path in (first, second))
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype or not is_number(a.dtype):
        return False
    return losses(a, b, atol, rtol).mismatches > 0


@lru_cache(maxsize=8)
def _reference(path: str) -> dict[str, Array]:
    # Named by its digest, so the path never means other bytes; kept since every trial reads the same.
    return load_arrays(Path(path))


def _labels(one: Set) -> Array | None:
    return load_arrays(Path(one["labels"]))["labels"] if one.get("labels") else None
