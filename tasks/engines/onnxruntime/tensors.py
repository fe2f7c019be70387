"""Element types of ONNX Runtime tensors, as NumPy sees them and as they lie in memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from routetune.tasks.errors import BadInput

Array = np.ndarray[Any, Any]

#: Fills buffers of types that have no NaN: unlikely as a whole tensor, though one value of it may be right.
SENTINEL_BYTE = 0xA5


class Unwritten(RuntimeError):
    """A kernel left part of an output as it was before, where no value of the type could show it."""


#: The library's name of a type -> its number in ONNX, and its NumPy dtype.
_TYPES: dict[str, tuple[int, Any]] = {
    "float": (1, np.float32),
    "uint8": (2, np.uint8),
    "int8": (3, np.int8),
    "uint16": (4, np.uint16),
    "int16": (5, np.int16),
    "int32": (6, np.int32),
    "int64": (7, np.int64),
    "bool": (9, np.bool_),
    "float16": (10, np.float16),
    "double": (11, np.float64),
    "uint32": (12, np.uint32),
    "uint64": (13, np.uint64),
    "bfloat16": (16, ml_dtypes.bfloat16),
    "float8e4m3fn": (17, ml_dtypes.float8_e4m3fn),
    "float8e4m3fnuz": (18, ml_dtypes.float8_e4m3fnuz),
    "float8e5m2": (19, ml_dtypes.float8_e5m2),
    "float8e5m2fnuz": (20, ml_dtypes.float8_e5m2fnuz),
    "uint4": (21, ml_dtypes.uint4),
    "int4": (22, ml_dtypes.int4),
}
_TWO_IN_A_BYTE = ("uint4", "int4")


@dataclass(frozen=True, slots=True)
class Element:
    """The element type of one input or output.

    Attributes:
        onnx_type: its number in ONNX.
        dtype: its NumPy dtype.
        halves: two elements share a byte in the library's memory, where NumPy gives each its own.
    """

    onnx_type: int
    dtype: np.dtype[Any]
    halves: bool = False

    def sentinel(self, shape: Sequence[int]) -> Array:
        """Memory for an output of this shape, filled so that a value nobody wrote can be told.

        Floats are NaN; all else has 0xA5 in each byte, which is no boolean: `unpacked` refuses it there.
        """
        if self.halves:
            return np.full(self._bytes(shape), SENTINEL_BYTE, np.uint8)
        buffer = np.empty(shape, self.dtype)
        if self.dtype.kind in "iub":
            buffer.reshape(-1).view(np.uint8).fill(SENTINEL_BYTE)
        else:
            buffer.fill(np.nan)
        return buffer

    def packed(self, array: Array) -> Array:
        """The array as the library wants it in memory."""
        if not self.halves:
            return array
        digits = array.reshape(-1).astype(np.int8).view(np.uint8) & 0xF
        digits = np.pad(digits, (0, digits.size % 2))
        packed: Array = digits[0::2] | digits[1::2] << 4
        return packed

    def unpacked(self, buffer: Array, shape: Sequence[int]) -> Array:
        """What the library left in memory as an array of this shape.

        Raises:
            Unwritten: a boolean is neither true nor false.
        """
        if self.dtype.kind == "b" and (left := int(np.count_nonzero(buffer.view(np.uint8) > 1))):
            raise Unwritten(f"{left} of {buffer.size} booleans of an output were never written")
        if not self.halves:
            return buffer
        digits = np.stack([buffer & 0xF, buffer >> 4], axis=-1).reshape(-1)[: prod(shape)]
        if self.dtype.name == "int4":
            digits = (digits ^ 8).astype(np.int8) - 8
        return digits.astype(self.dtype).reshape(shape)

    def copied(self, value: Any) -> Array:
        """A copy of what an OrtValue on the CPU holds."""
        shape = tuple(value.shape())
        size = self._bytes(shape)
        raw = (
            np.frombuffer(ctypes.string_at(value.data_ptr(), size), np.uint8)
            if size
            else np.empty(0, np.uint8)
        )
        if self.halves:
            return self.unpacked(raw, shape)
        return raw.copy().view(self.dtype).reshape(shape)

    def _bytes(self, shape: Sequence[int]) -> int:
        count = prod(shape)
        return (count + 1) // 2 if self.halves else count * self.dtype.itemsize


def element_of(name: str, kind: str) -> Element:
    """The element type behind the library's word for an input or output, such as "tensor(float)".

    Raises:
        BadInput: strings, sequences, maps, optional values and types that NumPy cannot hold.
    """
    word = kind.removeprefix("tensor(").removesuffix(")")
    if f"tensor({word})" != kind or word not in _TYPES:
        known = ", ".join(_TYPES)
        raise BadInput(f"{name!r} is {kind}; inputs and outputs must be tensors of one of: {known}")
    number, dtype = _TYPES[word]
    return Element(number, np.dtype(dtype), word in _TWO_IN_A_BYTE)
