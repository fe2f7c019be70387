"""How alike two subjects are, so that what helped one is tried early on the other, and no more than that."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from routetune.tasks.targets.model import ModelInfo

#: What a factor counts where one of the two says nothing of it.
UNTOLD = 0.5
#: The same kind of device by another maker or of another generation.
SAME_KIND = 0.5
#: Another version of the compiler.
OTHER_VERSION = 0.8
#: Of the environment, what tells a device's generation; more of it equal is more alike.
_GPU = ("gpu.name", "gpu.capability")
_CPU = ("cpu.model", "cpu.architecture", "cpu.cores")

ModelTraits = Mapping[str, Any]
Bound = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Likeness:
    """Four factors from 0 (nothing alike) to 1 (the same): operators, shapes, device, version."""

    operators: float
    shapes: float
    device: float
    version: float

    @property
    def total(self) -> float:
        """Their product, to three digits."""
        return round(self.operators * self.shapes * self.device * self.version, 3)

    def to_json(self) -> dict[str, float]:
        return {name: round(value, 3) for name, value in asdict(self).items()}


def traits_of(model: ModelInfo) -> dict[str, Any]:
    """What is kept of a model to compare others with: operators, types and ranks, size; plain JSON.

    Returns {"operators": name -> count, "inputs": name -> dtype, "outputs": [dtype and rank, ...], "bytes"}.
    """
    return {
        "operators": dict(model.operators),
        "inputs": {name: tensor.dtype for name, tensor in model.inputs.items()},
        "outputs": sorted(
            f"{tensor.dtype} {'?' if tensor.shape is None else len(tensor.shape)}"
            for tensor in model.outputs.values()
        ),
        "bytes": model.size_bytes,
    }


def likeness(mine: Bound, theirs: Bound, model: ModelTraits | None, other: ModelTraits | None) -> Likeness:
    """How alike two subjects are.

    Args:
        mine, theirs: bound-to dicts (see `binding.bound_to`).
        model, other: traits of their models, None where none were kept.
    """
    here, there = mine["environment"], theirs.get("environment", {})
    return Likeness(
        operators=_operators(mine, theirs, model, other),
        shapes=_shapes(mine, theirs, model, other),
        device=_device(here, there),
        version=_version(here, there),
    )


def _operators(mine: Bound, theirs: Bound, model: ModelTraits | None, other: ModelTraits | None) -> float:
    """Shared operators over all (the weighted Jaccard index of the counts)."""
    if mine["target"].get("model") == theirs.get("target", {}).get("model"):
        return 1.0
    if model is None or other is None:
        return UNTOLD
    return _overlap(Counter(model["operators"]), Counter(other["operators"]))


def _shapes(mine: Bound, theirs: Bound, model: ModelTraits | None, other: ModelTraits | None) -> float:
    """Types in common, times how near the amounts of data are: a factor of 16 halves it."""
    ours, others = _amount(mine), _amount(theirs)
    near: float = UNTOLD if not ours or not others else math.exp2(-abs(math.log2(ours / others)) / 4)
    if model is None or other is None:
        return near
    kinds = (Counter([*one["inputs"].values(), *one["outputs"]]) for one in (model, other))
    return near * _overlap(*kinds)


def _amount(bound: Bound) -> int:
    """Elements of all inputs at the opt shapes of the first profile; 0 where none is told."""
    profile = bound.get("target", {}).get("profiles", {}).get("0", {})
    return sum(math.prod(shape["opt"]) for shape in profile.values())


def _device(here: Mapping[str, Any], there: Mapping[str, Any]) -> float:
    """0 for another backend or kind of device; else by how much of the device is the same."""
    if any(here.get(name) != there.get(name) for name in ("backend", "device")):
        return 0.0
    fields: tuple[str, ...] = _GPU if here["device"] == "cuda" else _CPU
    same = sum(bool(here.get(name) == there.get(name)) for name in fields)
    return SAME_KIND + (1 - SAME_KIND) * same / len(fields)


def _version(here: Mapping[str, Any], there: Mapping[str, Any]) -> float:
    name = f"version.{here['backend']}"
    return 1.0 if here.get(name) == there.get(name) else OTHER_VERSION


def _overlap(one: Counter[str], other: Counter[str]) -> float:
    return (one & other).total() / max((one | other).total(), 1)
