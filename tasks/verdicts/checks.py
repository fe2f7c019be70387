"""What the worker does to judge an engine's outputs: run it on every input set and compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from routetune.tasks.arrays import Array, load_arrays
from routetune.tasks.engines.base import Runner
from routetune.tasks.engines.steps import RunError, engine_from, loaded
from routetune.tasks.verdicts.accuracy import compare_outputs
from routetune.tasks.verdicts.losses import is_number, losses
from routetune.tasks.verdicts.metrics import MetricError, accuracy_drop, task_loss

#: The role of input sets that are run only to see whether outputs move with the inputs.
PROBE = "probe"

#: The reference counts as moving where an element changes by more than STILL + STILL * |element|. Who rounds
#: more coarsely than that may well stand still.
STILL = 1e-5

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
    scores: str | None = None,
    repeat: bool = False,
) -> list[dict[str, Any]]:
    """Losses of all metrics, per input set and output.

    Args:
        sets: one dict per input set: "name", "role", the arrays files "inputs" and "outputs", and that of
            "labels" where the task needs them and there are any.
        comparing: see `rules.comparing`.
        task: the metric of whole input sets, where the target has one; see `metrics.task_loss`.
        scores: the output that labels belong to: where a set has labels that fit it, "top1" says how many
            rows either side has right, whatever the metric.
        repeat: run the engine once more on each set; "repeat" is how the second outputs differ from the
            first.

    Raises:
        RunError: the engine does not load, or not run.
        MetricError: the metric of whole input sets gave no number.
    """
    report, watch, judge = [], _Watch(), _Judge(comparing, task, scores)
    with loaded(backend, engine_from(path, engine), device, settings) as runner:
        for one in sets:
            inputs = load_arrays(Path(one["inputs"]))
            outputs = infer(runner, inputs, one["name"])
            watch.see(one, outputs)
            if one["role"] != PROBE:
                again = infer(runner, inputs, one["name"]) if repeat else None
                report.append(judge.report(one, outputs, again))
    watch.mark(report)
    return report


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


@dataclass(frozen=True, slots=True)
class _Judge:
    """Compares an engine's outputs on one input set with the reference's; the fields are those of `check`."""

    comparing: Mapping[str, Any]
    task: Mapping[str, Any] | None
    scores: str | None

    def report(self, one: Set, candidate: dict[str, Array], again: dict[str, Array] | None) -> dict[str, Any]:
        """What `check` tells of the set; `again` are the outputs of a second run on it, if there was one."""
        found = self._compared(one, candidate) | self._top1(one, candidate)
        if again is not None:
            found["repeat"] = compare_outputs(candidate, again, **self.comparing)
        return found

    def _compared(self, one: Set, candidate: dict[str, Array]) -> dict[str, Any]:
        reference = _reference(one["outputs"])
        outputs = compare_outputs(reference, candidate, **self.comparing)
        found: dict[str, Any] = {"set": one["name"], "outputs": outputs}
        if self.task is not None:
            # A metric is not asked about outputs that fail whatever it says.
            fails = any("problem" in entry or entry["non_finite_candidate"] for entry in outputs.values())
            given = (self.task, one["name"], reference, candidate, _labels(one))
            found["task"] = {"loss": "inf"} if fails else task_loss(*given)
        return found

    def _top1(self, one: Set, candidate: Mapping[str, Array]) -> dict[str, Any]:
        """{"top1": ...} as `metrics.accuracy_drop` tells it; {} without labels that fit the output."""
        labels, reference, scores = _labels(one), _reference(one["outputs"]), self.scores
        if labels is None or scores is None or scores not in candidate or scores not in reference:
            return {}
        if candidate[scores].shape != reference[scores].shape:
            return {}
        try:
            return {"top1": accuracy_drop(reference[scores], candidate[scores], labels, 1, one["name"])}
        except MetricError:
            return {}  # labels of another kind, for a metric of the user's own


class _Watch:
    """Finds outputs that never change from one input set to another, while the reference's do.

    Of each output the first array of a shape is kept until another one differs from it, which nearly always
    is the next.
    """

    def __init__(self) -> None:
        self._first: dict[tuple[Any, ...], tuple[Set, Array]] = {}
        self._pairs: dict[str, list[tuple[Set, Set]]] = {}
        self._moved: set[str] = set()

    def see(self, one: Set, outputs: Mapping[str, Array]) -> None:
        for name, array in outputs.items():
            if name in self._moved:
                continue
            first, earlier = self._first.setdefault((name, array.shape, array.dtype), (one, array))
            if first is one:
                continue
            if _same(earlier, array):
                self._pairs.setdefault(name, []).append((first, one))
                continue
            self._moved.add(name)
            self._first = {key: value for key, value in self._first.items() if key[0] != name}

    def mark(self, report: list[dict[str, Any]]) -> None:
        """Note "stuck", two input sets that show it, on such outputs.

        Whatever the target's own bounds are: a wide one must not hide an engine that computes nothing.
        """
        for name, pairs in self._pairs.items():
            if name in self._moved:
                continue
            for first, second in pairs:
                if _moves(first["outputs"], second["outputs"], name):
                    _mark(report, name, [first["name"], second["name"]])
                    break


def _same(a: Array, b: Array, piece: int = 1 << 20) -> bool:
    """Whether two arrays of one shape and type have the same bytes; mostly told by the first piece."""
    sides = [np.ascontiguousarray(side).reshape(-1).view(np.uint8) for side in (a, b)]
    return all(
        np.array_equal(sides[0][start : start + piece], sides[1][start : start + piece])
        for start in range(0, len(sides[0]), piece)
    )


def _mark(report: list[dict[str, Any]], name: str, pair: list[str]) -> None:
    for one in report:
        entry = one["outputs"].get(name)
        if entry is not None and "problem" not in entry:
            entry["stuck"] = pair


@lru_cache(maxsize=256)
def _moves(first: str, second: str, name: str) -> bool:
    a, b = (_reference(path).get(name) for path in (first, second))
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype or not is_number(a.dtype):
        return False
    return losses(a, b, STILL, STILL).mismatches > 0


@lru_cache(maxsize=8)
def _reference(path: str) -> dict[str, Array]:
    # Named by its digest, so the path never means other bytes; kept since every trial reads the same.
    return load_arrays(Path(path))


def _labels(one: Set) -> Array | None:
    return load_arrays(Path(one["labels"]))["labels"] if one.get("labels") else None
