"""Whether attention can be fused here, and by what: the extra "fusions"."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from routetune.tasks.targets.model import ModelInfo

#: How to get what is missing.
ADVICE = "it needs the extra 'fusions': pip install 'routetune[fusions]'"
#: Both decide what becomes of a model.
_LIBRARIES = ("onnxscript", "onnx-ir")


def version() -> str:
    """The libraries that fuse, with their versions; "" where one is not installed."""
    try:
        return ", ".join(f"{name} {metadata.version(name)}" for name in _LIBRARIES)
    except metadata.PackageNotFoundError:
        return ""


def has_attention(model: ModelInfo, backend: str) -> bool:
    """Whether there may be something to fuse, for a backend that has the operators: ONNX Runtime's own."""
    return backend == "onnxruntime" and "Softmax" in model.operators
