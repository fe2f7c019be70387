"""Operators of a model: which it uses, and whether anything installed can define them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from routetune.tasks.errors import BadInput
from routetune.tasks.targets.problems import nearest

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

#: Domains whose operators onnxruntime itself registers. Their names are left for the backend to judge.
BACKEND_DOMAINS = frozenset(
    {"com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc", "com.microsoft.experimental"}
)
#: Operators that onnxruntime registers in ONNX's own domain, at every opset, though ONNX has no such schema.
BACKEND_OPERATORS = frozenset(
    {
        "Affine",
        "Crop",
        "DisentangledAttention_TRT",
        "DynamicSlice",
        "EfficientNMS_TRT",
        "GRUUnit",
        "GivenTensorFill",
        "ImageScaler",
        "LayerNormalization",
        "MultilevelCropAndResize_TRT",
        "ParametricSoftplus",
        "PyramidROIAlign_TRT",
        "Scale",
        "ScaledTanh",
        "SimplifiedLayerNormalization",
    }
)


def nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Every node of the graph and of the graphs inside its nodes (branches and loop bodies)."""
    yield from _nodes(graph.node)


def count_operators(model: ModelProto) -> dict[str, int]:
    """How often each operator occurs, as "Conv" or "com.microsoft:Gelu"; bodies of functions not counted."""
    found = Counter(_label(_domain(node.domain), node.op_type) for node in nodes(model.graph))
    return dict(sorted(found.items()))


def check_operators(model: ModelProto, path: Path, plugins: bool) -> None:
    """Refuse operators that nothing can define, once for the whole model.

    With `plugins` an unknown operator may come from one of them, so only the opsets are checked.

    Raises:
        BadInput: naming every unknown operator with its domain, the opset that the installed onnx is too old
            for, or the domain that the model uses and does not import.
    """
    functions = {(_domain(function.domain), function.name) for function in model.functions}
    scopes: list[tuple[Iterable[NodeProto], Mapping[str, int]]] = [
        (nodes(model.graph), _imports(model, path)),
        *((_nodes(function.node), _imports(function, path)) for function in model.functions),
    ]
    unknown: dict[str, list[str]] = {}
    for scope, imports in scopes:
        for node in scope:
            domain = _domain(node.domain)
            if (domain, node.op_type) in functions:
                continue
            reason = _unknown(domain, node.op_type, imports)
            if reason:
                unknown.setdefault(reason, []).append(node.name or next(iter(node.output), "(unnamed)"))
    if unknown and not plugins:
        found = "; ".join(
            f"{reason}: node {names[0]!r}" + (f" and {len(names) - 1} more" if len(names) > 1 else "")
            for reason, names in unknown.items()
        )
        raise BadInput(
            f"model {path} cannot be built by any route: {found}; correct the model, or name the library "
            "that implements the operator under plugins in [engine]"
        )


def _nodes(found: Iterable[NodeProto]) -> Iterator[NodeProto]:
    for node in found:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g.node)
            for graph in attribute.graphs:
                yield from _nodes(graph.node)


def _imports(scope: object, path: Path) -> dict[str, int]:
    """Domain -> opset that a model or function imports, none newer than the installed onnx knows."""
    import onnx

    imports = {_domain(entry.domain): entry.version for entry in scope.opset_import}  # type: ignore[attr-defined]
    for domain, (_, newest) in _onnx_opsets().items():
        if imports.get(domain, 0) > newest:
            raise BadInput(
                f"model {path} imports opset {imports[domain]} of domain {domain or 'ai.onnx'!r}, but the "
                f"installed onnx {onnx.__version__} knows opsets up to {newest}; install a newer onnx and "
                "backend, or export for an older opset"
            )
    return imports


def _unknown(domain: str, operator: str, imports: Mapping[str, int]) -> str:
    """Why no installed definition fits the operator, or "" where one does."""
    from onnx import defs

    shown = f"operator {operator!r} of domain {domain or 'ai.onnx'!r}"
    if domain in BACKEND_DOMAINS or (domain == "" and operator in BACKEND_OPERATORS):
        return ""
    if domain not in _onnx_opsets():
        return f"{shown} is unknown"
    if domain not in imports:
        return f"{shown} is used, but the model imports no opset of that domain"
    if defs.has(operator, imports[domain], domain):
        return ""
    if defs.has(operator, domain):
        return f"{shown} does not exist yet in opset {imports[domain]}, which the model imports"
    known = {schema.name for schema in defs.get_all_schemas() if schema.domain == domain}
    return f"{shown} is unknown{nearest(operator, sorted(known))}"


def _onnx_opsets() -> Mapping[str, tuple[int, int]]:
    """Domain -> oldest and newest opset that the installed onnx defines."""
    from onnx import defs

    opsets: Mapping[str, tuple[int, int]] = defs.C.schema_version_map()
    return opsets


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _label(domain: str, operator: str) -> str:
    return f"{domain}:{operator}" if domain else operator
