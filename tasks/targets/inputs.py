"""Input sets: the arrays that references are made on, that accuracy is judged on and that are timed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from routetune.tasks import canonical
from routetune.tasks.arrays import arrays_digest
from routetune.tasks.errors import BadInput
from routetune.tasks.reading import check_fits
from routetune.tasks.targets.memo import Memo, no_memo
from routetune.tasks.targets.npz import as_bits, read_npz
from routetune.tasks.targets.problems import nearest
from routetune.tasks.targets.profiles import CORNERS, corner, disagreement, misfit
from routetune.tasks.targets.seeding import seeded_array

if TYPE_CHECKING:
    from routetune.tasks.targets.model import ModelInfo, TensorInfo
    from routetune.tasks.targets.schema import Target

Array = np.ndarray[Any, Any]
#: NumPy's own limit.
_MOST_DIMENSIONS = 64
Role = Literal["user", "seeded", "probe"]
#: What the names of drawn sets begin with.
_DRAWN = ("seeded-", "probe-", "fresh-")


@dataclass(frozen=True)
class InputSet:
    """One value for every input of the model.

    Attributes:
        name: unique among the sets of a target: the npz file's stem ("user-..." where that is like the name
            of a drawn set), or "seeded-...".
        arrays: by input name, in the model's order; C-contiguous, in native byte order.
        role: whether the user gave the values or they were drawn; a probe's outputs are not judged.
        labels: the array that `reference.labels` names, where the user's file holds one.
    """

    name: str
    arrays: dict[str, Array]
    role: Role
    labels: Array | None = None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: array.shape for name, array in self.arrays.items()}

    @property
    def digest(self) -> str:
        """SHA-256 over the arrays' names, types, shapes and bytes; the set's name and labels do not count."""
        return arrays_digest(self.arrays)


def input_sets(target: Target, model: ModelInfo) -> list[InputSet]:
    """The user's sets as given, or `reference.samples` seeded ones at every opt; then the corners.

    A corner (min, opt or max of a profile) is added, seeded, where no set has its shapes already: an engine
    that is right at one batch size may be wrong at another.

    Raises:
        BadInput: a file cannot be read, or an array is missing, superfluous, of another type, outside every
            profile, or holds an index outside its table. The message names input and dimension.
    """
    sets = _named_apart([_user_set(path, target, model) for path in target.reference.inputs or ()])
    if not sets:
        for index in range(len(model.profiles)):
            for sample in range(target.reference.samples):
                sets.append(_seeded_set(f"seeded-p{index}-opt-{sample}", index, "opt", target, model))
    for index, profile in enumerate(model.profiles):
        for place in CORNERS:
            shapes = corner(profile, place)
            if not any(known.shapes == shapes for known in sets):
                sets.append(_seeded_set(f"seeded-p{index}-{place}", index, place, target, model))
    return sets


def timing_set(target: Target, model: ModelInfo, sets: Sequence[InputSet]) -> InputSet:
    """The set that is timed: at opt of the timed profile, a user's where one has exactly that shape."""
    shapes = corner(model.profiles[target.timed_profile], "opt")
    fitting = [candidate for candidate in sets if candidate.shapes == shapes]
    users = [candidate for candidate in fitting if candidate.role == "user"]
    return next(iter(users or fitting))


def seeded_arrays(
    name: str, shapes: Mapping[str, tuple[int, ...]], target: Target, model: ModelInfo
) -> dict[str, Array]:
    """Values of these shapes for every input, drawn for the set of this name.

    Raises:
        BadInput: a range of the target's does not fit an input's type, or goes beyond a table; or an input is
            larger than what fits into memory.
    """
    for tensor in model.inputs.values():
        _check_size(shapes[tensor.name], tensor, target)
    arrays = {
        tensor.name: seeded_array(tensor, shapes[tensor.name], name, target, model.indices.get(tensor.name))
        for tensor in model.inputs.values()
    }
    _check_indices(arrays, model, f"drawn by reference.ranges of {target.path}")
    return arrays


def inputs_digest(target: Target, memo: Memo = no_memo) -> dict[str, str | None]:
    """{"inputs": ..., "labels": ...}: what the user's files hold, as digests; None where there are none.

    Drawn sets are not generated for it: seed, samples, ranges and profiles, which stand in the target, define
    them. The zip container of a file (times, compression) does not count.

    Raises:
        BadInput: a file cannot be read.
    """
    labels_name = target.reference.labels
    inputs: list[str] = []
    labels: list[str] = []
    for path in target.reference.inputs or ():
        what = f"arrays and labels {labels_name}"
        of_arrays, of_labels = memo(what, path, partial(_digests, path, labels_name))
        inputs.append(of_arrays)
        if of_labels is not None:
            labels.append(of_labels)
    return {
        "inputs": canonical.digest(inputs) if inputs else None,
        "labels": canonical.digest(labels) if labels else None,
    }


def _digests(path: Path, labels_name: str | None) -> tuple[list[str | None], list[Path]]:
    """Digests of the inputs and of the labels in one file, and that file."""
    arrays = read_npz(path)
    labels = arrays.pop(labels_name, None) if labels_name is not None else None
    return [arrays_digest(arrays), None if labels is None else arrays_digest({"labels": labels})], [path]


def _user_set(path: Path, target: Target, model: ModelInfo) -> InputSet:
    found = read_npz(path)
    labels = None
    if target.reference.labels is not None:
        if target.reference.labels not in found:
            raise BadInput(
                f"{target.path}: reference.labels = {target.reference.labels!r} is not an array of {path}, "
                f"which holds {', '.join(found) or 'nothing'}"
            )
        labels = found.pop(target.reference.labels)
    missing = [name for name in model.inputs if name not in found]
    if missing:
        raise BadInput(
            f"{path} lacks the input {missing[0]!r} of the model{nearest(missing[0], found)}; it holds "
            f"{', '.join(found) or 'nothing'}"
        )
    for name in found:
        if name not in model.inputs:
            raise BadInput(
                f"{path} holds {name!r}, which is neither an input of the model ({', '.join(model.inputs)}) "
                "nor named by reference.labels; leave it out, or name it there"
            )
    arrays = {name: _typed(found[name], tensor, path) for name, tensor in model.inputs.items()}
    shapes = {name: array.shape for name, array in arrays.items()}
    reason = _unfit(shapes, model)
    if reason:
        raise BadInput(f"{path}: {reason}; change the inputs or the profile in {target.path}")
    _check_indices(arrays, model, f"in {path}")
    # Names of drawn sets are theirs: what is known of one must not be taken for the other's.
    name = f"user-{path.stem}" if path.stem.startswith(_DRAWN) else path.stem
    return InputSet(name, arrays, "user", labels)


def _typed(array: Array, tensor: TensorInfo, path: Path) -> Array:
    wanted = np.dtype(tensor.dtype)
    array = as_bits(array, tensor.dtype)
    if array.dtype.newbyteorder("=") != wanted:
        raise BadInput(
            f"{path}: {tensor.name!r} is an array of {array.dtype.name}, but the model takes {wanted.name}; "
            f"convert it with .astype({wanted.name!r})"
        )
    return np.asarray(array, dtype=wanted, order="C")


def _unfit(shapes: dict[str, tuple[int, ...]], model: ModelInfo) -> str:
    """Why the shapes fit no profile, as said of the first; "" where they fit one."""
    reasons = []
    for profile in model.profiles:
        found = (misfit(name, shape, model.inputs[name], profile) for name, shape in shapes.items())
        reasons.append(next((reason for reason in found if reason), ""))
    if "" in reasons:
        return disagreement(shapes, model.inputs)
    if len(reasons) == 1:
        return reasons[0]
    return f"it fits none of the {len(reasons)} profiles: of profile 0, {reasons[0]}"


def _check_size(shape: tuple[int, ...], tensor: TensorInfo, target: Target) -> None:
    where = f"{target.path}: input {tensor.name!r} of shape {list(shape)}"
    if len(shape) > _MOST_DIMENSIONS:
        raise BadInput(f"{where} has {len(shape)} dimensions; arrays have up to {_MOST_DIMENSIONS}")
    # Drawn as float64, then converted. NumPy counts a dimension of 0 as 1 when it looks whether all fits.
    elements = math.prod(size or 1 for size in shape)
    check_fits(elements * (8 + np.dtype(tensor.dtype).itemsize), where)


def _check_indices(arrays: Mapping[str, Array], model: ModelInfo, where: str) -> None:
    """Refuse values that would index outside a table (ONNX counts negative indices from its end)."""
    for name, allowed in model.indices.items():
        values = arrays[name]
        if not allowed.certain or values.size == 0:
            continue
        lowest = -allowed.rows if allowed.signed else 0
        outside = values[~((values > lowest - 1) & (values < allowed.rows))]
        if outside.size:
            negative = f"; negative ones, down to {lowest}, count from the end" if allowed.signed else ""
            raise BadInput(
                f"invalid input for {name}: {outside.flat[0]} is outside [0, {allowed.rows}) {where}; the "
                f"model uses it as an index into the {allowed.rows} rows of {allowed.table!r}{negative}"
            )


def _seeded_set(name: str, profile: int, place: str, target: Target, model: ModelInfo) -> InputSet:
    shapes = corner(model.profiles[profile], place)
    return InputSet(name, seeded_arrays(name, shapes, target, model), "seeded")


def _named_apart(sets: list[InputSet]) -> list[InputSet]:
    """The sets with names made unique: files of one stem in several folders get a number."""
    return [replace(one, name=name) for name, one in zip(_names(sets), sets, strict=True)]


def _names(sets: Sequence[InputSet]) -> Iterator[str]:
    taken: set[str] = set()
    for one in sets:
        name, number = one.name, 2
        while name in taken:
            name, number = f"{one.name}-{number}", number + 1
        taken.add(name)
        yield name
