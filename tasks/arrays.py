"""Named arrays in files: plain .npz, without pickle, for every dtype and every name ONNX allows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from routetune.tasks import canonical

Array = np.ndarray[Any, Any]

#: The member that names the others: ONNX names may hold slashes, or be one that numpy keeps for itself.
_INDEX = "index"


def save_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays to `path`; equal arrays give equal bytes."""
    index = [{"name": name, "dtype": array.dtype.name} for name, array in arrays.items()]
    members = {f"array{i}": _storable(array) for i, array in enumerate(arrays.values())}
    members[_INDEX] = np.frombuffer(json.dumps(index).encode(), np.uint8)
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **members)


def load_arrays(path: Path) -> dict[str, Array]:
    """Read what `save_arrays` wrote, in the same order, each array in memory of its own."""
    with np.load(path, allow_pickle=False) as archive:
        index = json.loads(archive[_INDEX].tobytes())
        return {
            entry["name"]: _restored(archive[f"array{i}"], entry["dtype"]) for i, entry in enumerate(index)
        }


def arrays_digest(arrays: Mapping[str, Array]) -> str:
    """SHA-256 over the names, types, shapes and bytes of arrays, whatever their order."""
    hasher = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        little = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
        hasher.update(canonical.dumps([name, little.dtype.str, list(array.shape)]).encode("ascii"))
        hasher.update(little.reshape(-1).view(np.uint8).data if little.size else b"")
    return hasher.hexdigest()


def _storable(array: Array) -> Array:
    # numpy's format has no name for the dtypes of ml_dtypes; their bits travel as integers.
    array = np.asarray(array)
    if array.dtype.type.__module__ != "ml_dtypes":
        return array
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def _restored(array: Array, dtype: str) -> Array:
    if array.dtype.name == dtype:
        return array
    import ml_dtypes

    return array.view(getattr(ml_dtypes, dtype))
