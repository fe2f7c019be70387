"""The CUDA libraries that ONNX Runtime's CUDA provider computes with, and their versions.

The libraries are asked, not the packages that they may have come in: what the loader finds is what computes.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from functools import cache

from routetune.tasks.targets.gpu import UNKNOWN


def versions_on_cuda() -> dict[str, str]:
    """The package of the build, the CUDA it was built for, and the versions of what is loaded.

    A library that cannot be loaded or asked is UNKNOWN: then nothing can be said of what a result rests on.
    """
    from onnxruntime.capi import build_and_package_info as build

    built_for = str(getattr(build, "cuda_version", "") or UNKNOWN)
    preload()
    return {
        "onnxruntime package": str(getattr(build, "package_name", UNKNOWN)),
        "onnxruntime cuda": built_for,
        "cudart": _cudart(built_for.partition(".")[0]),
        "cudnn": _cudnn(),
    }


@cache
def preload() -> None:
    """Load CUDA and cuDNN from the wheels beside the library where there are some, as the provider will."""
    import onnxruntime

    if hasattr(onnxruntime, "preload_dlls"):
        with contextlib.redirect_stdout(
            sys.stderr
        ):  # it prints what it does not find; stdout is the answer's
            onnxruntime.preload_dlls()


def _cudart(major: str) -> str:
    """cudaRuntimeGetVersion: 1000 * major + 10 * minor."""
    try:
        version = ctypes.c_int()
        if ctypes.CDLL(f"libcudart.so.{major}").cudaRuntimeGetVersion(ctypes.byref(version)):
            return UNKNOWN
    except (OSError, AttributeError):
        return UNKNOWN
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _cudnn() -> str:
    """cudnnGetVersion: 10000 * major + 100 * minor + patch, from cuDNN 9 on, the oldest that is supported."""
    try:
        ask = ctypes.CDLL("libcudnn.so.9").cudnnGetVersion
    except (OSError, AttributeError):
        return UNKNOWN
    ask.restype = ctypes.c_size_t
    version = int(ask())
    return f"{version // 10000}.{version % 10000 // 100}.{version % 100}"
