"""Attention and its like as single operators of ONNX Runtime's own, by onnxscript, the extra "fusions".

ONNX Runtime's own optimizer knows the graphs of older exporters; this library those of today's. What it finds
nothing in stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from routetune.tasks.engines.base import BuildError
from routetune.tasks.targets import fusions

if TYPE_CHECKING:
    from onnx import ModelProto


#: A domain that no pattern looks for.
_ASIDE = "routetune.aside"


def fused(model: ModelProto, besides: Collection[str]) -> ModelProto:
    """The model with all that the library can fuse, but for the nodes `besides`: a product of quantised
    matrices would become part of an operator that computes in floats.

    Args:
        model: its nodes in an order that they can run in. It is changed.

    Raises:
        BuildError: the library is not installed.
    """
    if not fusions.version():
        raise BuildError(f"attention cannot be fused: {fusions.ADVICE}")
    import onnx_ir
    from onnxscript.rewriter import ort_fusions

    for node in model.graph.node:
        if node.name in besides:
            node.domain = _ASIDE
    model.opset_import.add(domain=_ASIDE, version=1)
    found, _ = ort_fusions.optimize_for_ort(onnx_ir.from_proto(model))
    changed: ModelProto = onnx_ir.to_proto(found)
    for node in changed.graph.node:
        if node.domain == _ASIDE:
            node.domain = ""
    kept = [entry for entry in changed.opset_import if entry.domain != _ASIDE]
    del changed.opset_import[:]
    changed.opset_import.extend(kept)
    return changed
