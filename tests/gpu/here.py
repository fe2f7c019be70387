"""Whether ONNX Runtime's CUDA provider can be used here, and if not, why not."""

from __future__ import annotations

from functools import cache


@cache
def why_no_cuda() -> str:
    """Empty where it can be used; else the reason, for a skipped test."""
    import onnxruntime
    from routetune.tasks.engines import cuda

    if not cuda.present():
        return "NVML sees no GPU"
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return "this onnxruntime has no CUDA provider (pip install onnxruntime-gpu)"
    return ""
