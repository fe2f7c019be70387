"""Sample files as reproducible bytes.

The scripts beside this file are held to one rule: run again, they write the same bytes. So random numbers
come from a frozen generator and from arithmetic that IEEE 754 rounds the same way everywhere, and archives
carry no time of day.
"""

from __future__ import annotations

import io
import os
import uuid
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx

    Floats = np.ndarray[Any, np.dtype[np.float32]]


def uniform(random: np.random.RandomState, shape: tuple[int, ...], low: float, high: float) -> Floats:
    """Draw float32 values of `shape` between `low` and `high`.

    `RandomState`, because NumPy promises its stream never changes (NEP 19), and not that of `Generator`;
    uniform and not normal, because a normal draw goes through the platform's logarithm.
    """
    return (low + (high - low) * random.random_sample(shape)).astype(np.float32)


def he_uniform(random: np.random.RandomState, shape: tuple[int, ...], fan_in: int) -> Floats:
    """Draw float32 weights of variance 2 / fan_in, uniformly (He et al. 2015, arXiv:1502.01852, eq. 10)."""
    bound = float(np.sqrt(6.0 / fan_in))
    return uniform(random, shape, -bound, bound)


def write_model(model: onnx.ModelProto, path: Path) -> Path:
    """Check `model` in full and write it to `path`.

    Raises:
        onnx.checker.ValidationError: the model is not valid ONNX.
        onnx.shape_inference.InferenceError: its shapes contradict one another.
    """
    import onnx

    onnx.checker.check_model(model, full_check=True)
    return write(model.SerializeToString(deterministic=True), path)


def write_arrays(arrays: Mapping[str, np.ndarray[Any, Any]], path: Path) -> Path:
    """Write `arrays` to the npz file `path`; unlike `numpy.savez`, with the same date on every member."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), member.getvalue())
    return write(buffer.getvalue(), path)


def write(data: bytes, path: Path) -> Path:
    """Write `data` to `path`, its folder included; readers see the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own for each writer: two processes may make the same sample at once.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
