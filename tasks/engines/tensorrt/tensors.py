"""Element types of TensorRT's inputs and outputs, as NumPy sees them and as they lie in memory."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from routetune.tasks.engines.onnxruntime.tensors import Element
from routetune.tasks.errors import BadInput

#: Member of trt.DataType -> its number in ONNX, NumPy dtype, and whether two elements share a byte.
TYPES: dict[str, tuple[int, object, bool]] = {
    "FLOAT": (1, np.float32, False),
    "HALF": (10, np.float16, False),
    "BF16": (16, ml_dtypes.bfloat16, False),
    "INT8": (3, np.int8, False),
    "UINT8": (2, np.uint8, False),
    "INT32": (6, np.int32, False),
    "INT64": (7, np.int64, False),
    "BOOL": (9, np.bool_, False),
    "FP8": (17, ml_dtypes.float8_e4m3fn, False),
    "INT4": (22, ml_dtypes.int4, True),
}


def element_of(name: str, kind: str) -> Element:
    """The element type behind a member of trt.DataType, such as "FLOAT".

    Raises:
        BadInput: FP4 and E8M0, which TensorRT uses within an engine and not at its edges.
    """
    if kind not in TYPES:
        raise BadInput(f"{name!r} is {kind}; inputs and outputs must be one of: {', '.join(TYPES)}")
    number, dtype, halves = TYPES[kind]
    return Element(number, np.dtype(dtype), halves)  # type: ignore[call-overload]
