"""What ONNX Runtime, cuDNN and cuBLAS say when memory does not suffice."""

from __future__ import annotations

import re

_SAID = (
    "Failed to allocate memory",
    "is smaller than requested bytes",
    "out of memory",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
_ASKED = re.compile(r"requested (?:buffer of size|bytes of) (\d+)")
#: More bytes than any machine has. Kernels that misread their own buffers ask for such sizes.
_MOST = 1 << 48


def lacks_memory(said: str) -> bool:
    """Whether an error says that memory is short; what asks for more than any machine has is broken."""
    asked = [int(size) for size in _ASKED.findall(said)]
    return any(text in said for text in _SAID) and not any(size > _MOST for size in asked)
