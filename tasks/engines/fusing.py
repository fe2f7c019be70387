"""Attention and its like as single operators of ONNX Runtime's own, by onnxscript, the extra "fusions".

ONNX Runtime's own optimizer knows the graphs of older exporters; this library those of today's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from routetune.tasks.engines.base import BuildError
from routetune.tasks.engines.normal import FREE_CONSTANTS, keep
from routetune.tasks.errors import BadInput
from routetune.tasks.targets import fusions

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

#: A domain that no pattern looks for.
_ASIDE = "routetune.aside"
#: Where the operators are that things are fused to.
_OWN = "com.microsoft"


def fused(model: ModelProto, besides: Collection[str]) -> ModelProto:
    """The model with all that the library can fuse, but for the nodes `besides`: a product of quantised
    matrices would become part of an operator that computes in floats.

    Where there is nothing to fuse, the model as it is, though the library would fold and reorder some of it:
    a knob that does nothing must give the same engine. Inputs and outputs stay, in their order; a constant
    that can be overridden by an input can no more where it became part of a fused operator.

    Args:
        model: its nodes in an order that they can run in.

    Raises:
        BadInput: the library is not installed.
        BuildError: an input of the model is an output too.
    """
    if not fusions.version():
        raise BadInput(f"attention cannot be fused: {fusions.ADVICE}")
    import onnx_ir
    from onnxscript.rewriter import ort_fusions
    from routetune.tasks.engines.heads import part_keys

    both = {value.name for value in model.graph.input} & {value.name for value in model.graph.output}
    if both:
        raise BuildError(f"input {min(both)!r} is an output too, which what fuses attention cannot take")
    with _shown(model, besides):
        shown = onnx_ir.from_proto(model)
        part_keys(shown)
        found, _ = ort_fusions.optimize_for_ort(shown)
        changed: ModelProto = onnx_ir.to_proto(found)
    if _own(changed) == _own(model):
        return model
    _restore(changed, model)
    return changed


@contextmanager
def _shown(model: ModelProto, besides: Collection[str]) -> Iterator[None]:
    """The model as the library shall see it: nodes set aside, and no constants among the inputs."""
    inputs, constants = list(model.graph.input), {one.name for one in model.graph.initializer}
    aside = [node for node in model.graph.node if node.name in besides]
    domains = [node.domain for node in aside]
    keep(model.graph.input, [value for value in inputs if value.name not in constants])
    model.opset_import.add(domain=_ASIDE, version=1)
    for node in aside:
        node.domain = _ASIDE
    try:
        yield
    finally:
        for node, domain in zip(aside, domains, strict=True):
            _set_domain(node, domain)
        del model.opset_import[-1]
        keep(model.graph.input, inputs)


def _set_domain(node: NodeProto, domain: str) -> None:
    node.domain = domain
    if not domain:  # an empty field takes room, and the same model must be the same bytes
        node.ClearField("domain")


def _own(model: ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node if node.domain == _OWN)


def _restore(changed: ModelProto, model: ModelProto) -> None:
    """Give a fused model the inputs, and the nodes that were set aside, as the model has them."""
    domains = {node.name: node.domain for node in model.graph.node}
    for node in changed.graph.node:
        if node.domain == _ASIDE:
            _set_domain(node, domains[node.name])
    for entry in [entry for entry in changed.opset_import if entry.domain == _ASIDE]:
        changed.opset_import.remove(entry)
    before = {one.name for one in model.graph.initializer}
    left = {one.name for one in changed.graph.initializer}
    inputs = [value for value in model.graph.input if value.name in left or value.name not in before]
    keep(changed.graph.input, inputs)
    changed.ir_version = max(changed.ir_version, FREE_CONSTANTS)
