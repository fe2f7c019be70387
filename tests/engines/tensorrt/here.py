"""Whether TensorRT itself, with a GPU, is here: what `pytest -m tensorrt` needs."""

from __future__ import annotations

from functools import cache

from routetune.tasks.engines import cuda
from routetune.tasks.engines.tensorrt.library import library, tensorrt_found
from routetune.tasks.errors import BadInput


@cache
def why_not() -> str:
    """What is missing, or ""."""
    if not tensorrt_found():
        return "TensorRT is not installed (pip install 'routetune[tensorrt]')"
    if not cuda.present():
        return "TensorRT is installed, but NVML sees no GPU"
    try:
        library()
    except BadInput as reason:
        return str(reason)
    return ""
