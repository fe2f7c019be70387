"""Metrics that judge an input set as a whole: the drop in task accuracy, and a function of the user's own.

The user's function is code that is executed. It runs in the worker process only, with its target's folder
first on the import path while it is imported and called; it gets read-only views of the arrays, so that it
cannot change what later candidates are compared with.
"""

from __future__ import annotations

import hashlib
import math
import numbers
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from routetune.tasks.arrays import Array
from routetune.tasks.canonical import number
from routetune.tasks.verdicts.rules import DROP
from routetune.tasks.verdicts.topk import best, comparable

Outputs = Mapping[str, Array]


class MetricError(Exception):
    """The metric gave no number; the message names it, the input set and what it did instead."""


def task_loss(
    task: Mapping[str, Any], set_name: str, reference: Outputs, candidate: Outputs, labels: Array | None
) -> dict[str, Any]:
    """The loss of one input set as plain JSON: "loss", and for the drop what it is made of.

    Args:
        task: {"metric": "accuracy_drop", "scores": output, "k": int}, or what `CustomMetric.to_order` gives.
        labels: None where the set has none, as sets that were drawn.

    Raises:
        MetricError: the labels do not fit the output, or the user's function raised, or gave no number.
    """
    if task["metric"] == DROP:
        name = task["scores"]
        where = f"metric {DROP} on input set {set_name!r}, output {name!r}"
        return accuracy_drop(reference[name], candidate[name], labels, task["k"], where)
    where = f"metric {task['metric']!r} on input set {set_name!r}"
    return {"loss": number(_custom(task, reference, candidate, labels, where))}


def accuracy_drop(
    reference: Array, candidate: Array, labels: Array | None, k: int, where: str
) -> dict[str, Any]:
    """Share of rows that the reference has right, less the share that the candidate has right.

    A row is right when its label is among its k best scores. Rows with a negative label do not count. Without
    labels the reference's best class stands in for them: then the drop is the share of rows on which the
    candidate disagrees, which (for k = 1) is never less than what it loses, whatever the labels.
    """
    if reference.ndim == 0 or reference.shape[-1] < 2:
        raise MetricError(
            f"{where}: scores must have one column for each of two or more classes, found shape "
            f"{list(reference.shape)}; use a metric of your own"
        )
    sides = [comparable(side.reshape(-1, side.shape[-1])) for side in (reference, candidate)]
    classes = reference.shape[-1]
    wanted = sides[0].argmax(axis=1) if labels is None else _classes(labels, reference.shape, where)
    counted = np.flatnonzero(wanted >= 0)
    if not counted.size:
        raise MetricError(f"{where}: no row has a label")
    if wanted.max() >= classes:
        raise MetricError(f"{where}: label {wanted.max()} is not one of {classes} classes")
    right = []
    for side in sides:
        scores = side[counted]
        if scores.dtype.kind == "f":  # a score that is not a number is nobody's best
            scores = np.where(np.isnan(scores), -np.inf, scores)
        chosen = best(scores, min(k, classes))
        right.append(int(chosen[np.arange(len(scores)), wanted[counted]].sum()))
    rows = int(counted.size)
    return {
        "loss": (right[0] - right[1]) / rows,
        "reference": right[0] / rows,
        "candidate": right[1] / rows,
        "rows": rows,
        "labels": labels is not None,
    }


def _classes(labels: Array, shape: tuple[int, ...], where: str) -> Array:
    """The labels as one class number for each row; also from one-hot rows."""
    if labels.dtype.kind not in "biuf" or not np.isfinite(labels).all():
        raise MetricError(f"{where}: labels must be class numbers or one-hot rows, found {_told(labels)}")
    if labels.shape == shape:
        rows = labels.reshape(-1, shape[-1])
        unclear = np.flatnonzero((rows == rows.max(axis=1, keepdims=True)).sum(axis=1) != 1)
        if unclear.size:
            raise MetricError(
                f"{where}: labels of the scores' shape must have one largest value in each row, that of the "
                f"class; row {unclear[0]} has several"
            )
        return np.asarray(rows.argmax(axis=1))
    if labels.shape not in (shape[:-1], (*shape[:-1], 1)):
        raise MetricError(
            f"{where}: labels of shape {list(labels.shape)} do not fit scores of shape {list(shape)}; "
            f"expected {list(shape[:-1])} class numbers, or {list(shape)}"
        )
    flat = labels.reshape(-1)
    if not np.array_equal(flat, np.floor(flat)) or (abs(flat.astype(np.float64)) >= 2.0**63).any():
        raise MetricError(f"{where}: labels must be class numbers, found {_told(labels)}")
    return flat.astype(np.int64)


def _told(labels: Array) -> str:
    """The type of labels, and the first that is not finite."""
    bad = labels[~np.isfinite(labels)] if labels.dtype.kind == "f" else labels[:0]
    return f"{bad.reshape(-1)[0]} among {labels.dtype.name}" if bad.size else str(labels.dtype)


def _custom(
    task: Mapping[str, Any], reference: Outputs, candidate: Outputs, labels: Array | None, where: str
) -> float:
    function = _imported(task["metric"], task["folder"], task["file"], task["file_digest"])
    views = [{name: _read_only(array) for name, array in side.items()} for side in (reference, candidate)]
    with _first_on_path(task["folder"]):
        try:
            loss = function(*views, None if labels is None else _read_only(labels))
        except MemoryError:
            raise
        except (Exception, SystemExit) as error:
            none = "; this input set has no labels, so it was given None" if labels is None else ""
            raise MetricError(f"{where} raised {type(error).__name__}: {error}{none}") from error
    return _checked(loss, where)


def _checked(loss: Any, where: str) -> float:
    """The loss as a float; infinite is allowed, since no tolerance but inf admits it."""
    if isinstance(loss, bool | np.bool_) or not isinstance(loss, numbers.Real):
        raise MetricError(f"{where} must give a number, found {loss!r:.80} of type {type(loss).__name__}")
    try:
        value = float(loss)
    except OverflowError as error:
        raise MetricError(f"{where} must give a number that losses can be ordered by: {error}") from error
    if math.isnan(value) or value == -math.inf:
        raise MetricError(f"{where} must give a number that losses can be ordered by, found {value}")
    return value


@lru_cache(maxsize=8)
def _imported(name: str, folder: str, file: str, digest: str) -> Callable[..., Any]:
    """The function, imported from the very file that was read before.

    Raises:
        MetricError: the import fails, or finds another file, or the file has changed since.
    """
    module_name, _, attribute = name.partition(":")
    where = f"metric {name!r}"
    if hashlib.sha256(Path(file).read_bytes()).hexdigest() != digest:
        raise MetricError(f"{where}: {file} was changed since this run began; run again")
    with _first_on_path(folder):
        try:
            module = import_module(module_name)
            function = getattr(module, attribute)
        except MemoryError:
            raise
        except (Exception, SystemExit) as error:
            raise MetricError(f"{where} cannot be imported: {type(error).__name__}: {error}") from error
    found = Path(module.__file__ or "").resolve()
    if found != Path(file):
        raise MetricError(
            f"{where}: Python imports {found} under that name, not {file}; give the module another name"
        )
    if not callable(function):
        raise MetricError(f"{where} is a {type(function).__name__}, not a function")
    loaded: Callable[..., Any] = function
    return loaded


@contextmanager
def _first_on_path(folder: str) -> Iterator[None]:
    sys.path.insert(0, folder)
    # Bytecode is matched to its source by time and size, which an edit within a second may not change.
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before
        if folder in sys.path:
            sys.path.remove(folder)


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view
