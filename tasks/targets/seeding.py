"""Seeding: input values drawn from the target's seed, the same on every machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from routetune.tasks import canonical
from routetune.tasks.errors import BadInput

if TYPE_CHECKING:
    from routetune.tasks.targets.indices import IndexRange
    from routetune.tasks.targets.model import TensorInfo
    from routetune.tasks.targets.schema import Target

Array = np.ndarray[Any, Any]


def seeded_array(
    tensor: TensorInfo, shape: tuple[int, ...], set_name: str, target: Target, index: IndexRange | None
) -> Array:
    """One input of one seeded set.

    Where `reference.ranges` names the input: uniform between the ends, both included for integers. Else an
    index input is drawn over its whole table, other integers are 0 or 1, as in a mask, booleans are
    fair coins, and floats are standard normal.

    Raises:
        BadInput: the range does not fit the input's type.
    """
    dtype = np.dtype(tensor.dtype)
    rng = _generator(target.reference.seed, set_name, tensor.name)
    bounds = target.reference.ranges.get(tensor.name)
    if bounds is None and index is not None:
        return np.asarray(rng.integers(0, max(1, min(index.rows, _exact(dtype))), size=shape)).astype(dtype)
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, size=shape)).astype(dtype)
    if _is_whole(dtype):
        low, high = _whole(bounds or (0, 1), dtype, tensor.name, target)
        wide = dtype if dtype.kind in "iu" else np.dtype(np.int8)
        return np.asarray(rng.integers(low, high, size=shape, dtype=wide, endpoint=True)).astype(dtype)
    if bounds is None:
        return np.asarray(rng.standard_normal(size=shape)).astype(dtype)
    low, high = bounds
    if max(abs(low), abs(high)) > float(_limits(dtype).max):
        raise BadInput(_outside(tensor.name, target, f"the finite values of {dtype.name}"))
    share = rng.random(size=shape)
    return np.asarray(np.clip(low * (1 - share) + high * share, low, high)).astype(dtype)


def _generator(seed: int, set_name: str, input_name: str) -> np.random.Generator:
    """A stream of its own for each input of each set, so that adding an input leaves the others alone."""
    entropy = int(canonical.digest([seed, set_name, input_name]), 16)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))


def _exact(dtype: np.dtype[Any]) -> int:
    """How many whole numbers from 0 on the type holds exactly; more would wrap or round out of the table."""
    if dtype.kind == "b":
        return 2
    if _is_whole(dtype):
        return int(_limits(dtype).max) + 1
    return int(2 ** (_limits(dtype).nmant + 1))


def _limits(dtype: np.dtype[Any]) -> Any:
    """numpy's iinfo or finfo, also of the types that numpy does not have itself."""
    import ml_dtypes

    describe: Any = ml_dtypes.iinfo if _is_whole(dtype) else ml_dtypes.finfo
    return describe(dtype)


def _is_whole(dtype: np.dtype[Any]) -> bool:
    """Whether the type is of whole numbers; NumPy does not know what ml_dtypes' own are."""
    return dtype.kind in "iu" or dtype.name in ("int4", "uint4")


def _whole(bounds: tuple[Any, Any], dtype: np.dtype[Any], name: str, target: Target) -> tuple[int, int]:
    limits = _limits(dtype)
    if any(end != int(end) or not limits.min <= end <= limits.max for end in bounds):
        raise BadInput(_outside(name, target, f"the whole numbers of {dtype.name}"))
    return int(bounds[0]), int(bounds[1])


def _outside(name: str, target: Target, allowed: str) -> str:
    bounds = list(target.reference.ranges[name])
    return f"{target.path}: reference.ranges.{name} = {bounds} must lie within {allowed}, the input's type"
