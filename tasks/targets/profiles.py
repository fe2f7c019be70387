"""Profiles against the model: every dynamic dimension has its range, and every range fits the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from routetune.tasks.errors import BadInput
from routetune.tasks.targets.problems import nearest
from routetune.tasks.targets.shapes import Profile, ShapeRange

if TYPE_CHECKING:
    from routetune.tasks.targets.model import TensorInfo
    from routetune.tasks.targets.schema import Target

CORNERS = ("min", "opt", "max")

Shapes = Mapping[str, tuple[int, ...]]


def complete_profiles(target: Target, inputs: Mapping[str, TensorInfo]) -> tuple[Profile, ...]:
    """The target's profiles with the inputs of fixed shape filled in; one of fixed shapes where it has none.

    Raises:
        BadInput: an input with dynamic dimensions has no shapes; shapes are given for what is no input, have
            another rank, contradict a fixed dimension, or give one symbol two sizes.
    """
    written = target.profiles or (Profile(shapes={}),)
    several = len(written) > 1
    return tuple(
        _complete(profile, inputs, f"{target.path}: {f'profile {index}' if several else '[shapes]'}")
        for index, profile in enumerate(written)
    )


def corner(profile: Profile, name: str) -> dict[str, tuple[int, ...]]:
    """The shape of every input at the corner "min", "opt" or "max"."""
    return {tensor: getattr(shape, name) for tensor, shape in profile.shapes.items()}


def misfit(name: str, shape: tuple[int, ...], tensor: TensorInfo, profile: Profile) -> str:
    """Why an array of this shape cannot be the input `name` under `profile`; "" where it can."""
    allowed = profile.shapes[name]
    if len(shape) != len(allowed.min):
        return f"{name!r} has {len(shape)} dimensions, not {len(allowed.min)}"
    for axis, size in enumerate(shape):
        low, high = allowed.min[axis], allowed.max[axis]
        if low <= size <= high:
            continue
        where = f"{name!r}: dimension {_named(tensor, axis)} is {size}"
        if tensor.shape is not None and isinstance(tensor.shape[axis], int):
            return f"{where}, but the model fixes it to {tensor.shape[axis]}"
        edge = f"above the profile's max {high}" if size > high else f"below the profile's min {low}"
        return f"{where}, {edge}"
    return ""


def disagreement(shapes: Shapes, inputs: Mapping[str, TensorInfo]) -> str:
    """Which symbol of the model would have two sizes under `shapes`; "" where none has.

    By the ONNX standard one symbol is one size throughout a graph.
    """
    seen: dict[str, tuple[int, str, int]] = {}
    for name, shape in shapes.items():
        for axis, symbol in enumerate(inputs[name].shape or ()):
            if not isinstance(symbol, str):
                continue
            first = seen.setdefault(symbol, (shape[axis], name, axis))
            if first[0] != shape[axis]:
                return (
                    f"{symbol!r} is one dimension of the model, but it is {first[0]} in {first[1]!r} "
                    f"(dimension {first[2]}) and {shape[axis]} in {name!r} (dimension {axis})"
                )
    return ""


def _complete(profile: Profile, inputs: Mapping[str, TensorInfo], where: str) -> Profile:
    for name in profile.shapes:
        if name not in inputs:
            raise BadInput(
                f"{where}: {name!r} is not an input of the model{nearest(name, inputs)}; its inputs are "
                f"{', '.join(inputs) or '(none)'}"
            )
    missing = [tensor for name, tensor in inputs.items() if tensor.dynamic and name not in profile.shapes]
    if missing:
        raise BadInput(f"{where} must give min, opt and max for {'; '.join(map(_needs, missing))}")
    shapes = {}
    for name, tensor in inputs.items():
        shapes[name] = profile.shapes.get(name) or _fixed(tensor)
        _check_against_model(shapes[name], tensor, where)
    complete = Profile(weight=profile.weight, shapes=shapes)
    for place in CORNERS:
        reason = disagreement(corner(complete, place), inputs)
        if reason:
            raise BadInput(f"{where}: at {place} {reason}")
    return complete


def _check_against_model(shape: ShapeRange, tensor: TensorInfo, where: str) -> None:
    if tensor.shape is None:
        return
    if len(shape.opt) != len(tensor.shape):
        raise BadInput(
            f"{where}: {tensor.name!r} is given {len(shape.opt)} dimensions, but the model gives it "
            f"{len(tensor.shape)}"
        )
    for axis, size in enumerate(tensor.shape):
        given = {shape.min[axis], shape.opt[axis], shape.max[axis]}
        if isinstance(size, int) and given != {size}:
            wrong = next(iter(sorted(given - {size})))
            raise BadInput(
                f"{where}: dimension {axis} of {tensor.name!r} is given as {wrong}, but the model fixes it "
                f"to {size}"
            )


def _fixed(tensor: TensorInfo) -> ShapeRange:
    shape = tuple(size for size in tensor.shape or () if isinstance(size, int))
    return ShapeRange(min=shape, opt=shape, max=shape)


def _needs(tensor: TensorInfo) -> str:
    if tensor.shape is None:
        return f"input {tensor.name!r}, of which the model does not state the shape at all"
    dynamic = [axis for axis, size in enumerate(tensor.shape) if not isinstance(size, int)]
    named = ", ".join(_named(tensor, axis) for axis in dynamic)
    return f"input {tensor.name!r}, whose dimension{'s' * (len(dynamic) > 1)} {named} can vary"


def _named(tensor: TensorInfo, axis: int) -> str:
    """ "2 ('h')", or "2" for a dimension without a symbol."""
    symbol = tensor.shape[axis] if tensor.shape is not None else None
    return f"{axis} ({symbol!r})" if isinstance(symbol, str) else str(axis)
