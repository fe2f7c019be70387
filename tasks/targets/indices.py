"""Index inputs: the graph inputs whose values select rows of a table held in the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from routetune.tasks.targets.operators import nodes

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

#: Operators that hand on every element of their first input with its value unchanged.
_WHOLE = frozenset({"Cast", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
#: Operators that hand on only some elements, so that a bad value elsewhere does no harm.
_PART = frozenset({"Gather", "GatherElements", "GatherND", "Slice", "Split"})
#: Operators whose output has the shape of their first input.
_SAME_SHAPE = frozenset({"Cast", "DequantizeLinear", "Identity", "QuantizeLinear"})


@dataclass(frozen=True, slots=True)
class IndexRange:
    """The values an index input may take: 0 to rows - 1, and for most operators from -rows on, from the end.

    Attributes:
        rows: size of the table along the indexed axis.
        table: name of the table.
        signed: negative indices are allowed too.
        certain: every element of the input always is an index. Otherwise (a branch, a slice) a value outside
            may be harmless: the range serves to draw values, not to refuse a user's.
    """

    rows: int
    table: str
    signed: bool
    certain: bool


def index_ranges(model: ModelProto) -> dict[str, IndexRange]:
    """Input name -> the range its values must keep to, for inputs that reach the indices of a lookup.

    Followed are Gather, GatherElements and onnxruntime's EmbedLayerNormalization over tables whose shape is a
    constant of the model, back through operators that hand values on. Where one input indexes several tables
    the smallest decides.
    """
    graph = _Graph(model.graph)
    found: dict[str, IndexRange] = {}
    for node in nodes(model.graph):
        for indices, table, axis, signed in _lookups(node):
            shape = graph.shape(table)
            origin = graph.origin(indices)
            if shape is None or origin is None or not -len(shape) <= axis < len(shape):
                continue
            source, whole = origin
            certain = whole and graph.always_runs(node)
            entry = IndexRange(shape[axis], table, signed, certain)
            known = found.get(source)
            if known is None or (not entry.certain, entry.rows) < (not known.certain, known.rows):
                found[source] = entry
    return found


class _Graph:
    """Who produces what, in a graph and those inside it; ONNX forbids that inner names hide outer ones."""

    def __init__(self, graph: GraphProto) -> None:
        self.producers = {name: node for node in nodes(graph) for name in node.output if name}
        self.outer = {name for node in graph.node for name in node.output}
        self.constants = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        self.inputs = {value.name for value in graph.input} - set(self.constants)

    def always_runs(self, node: NodeProto) -> bool:
        """Whether the node stands outside every branch and loop body."""
        return not self.outer.isdisjoint(node.output)

    def origin(self, name: str) -> tuple[str, bool] | None:
        """The graph input whose values arrive at `name`, and whether all of them do; None if none does."""
        whole = True
        for _ in range(1000):  # a bound, since nothing has checked yet that the graph has no cycle
            if name in self.inputs:
                return name, whole
            node = self.producers.get(name)
            if node is None or node.domain not in ("", "ai.onnx") or not node.input:
                return None
            if node.op_type not in _WHOLE | _PART:
                return None
            whole = whole and node.op_type in _WHOLE and self.always_runs(node)
            name = node.input[0]
        return None

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a constant of the model, also of a converted one; None where `name` is no constant."""
        order: list[list[int]] = []
        for _ in range(1000):
            node = self.producers.get(name)
            if name in self.constants or (node is not None and node.op_type == "Constant"):
                shape = self.constants.get(name) or _constant_shape(node)
                return _permuted(shape, order)
            if node is None or not node.input or node.op_type not in _SAME_SHAPE | {"Transpose"}:
                return None
            if node.op_type == "Transpose":
                order.append(_integers(node, "perm"))
            name = node.input[0]
        return None


def _permuted(shape: tuple[int, ...] | None, order: list[list[int]]) -> tuple[int, ...] | None:
    """The shape after the transpositions, of which the last is first in `order`; no axes: all reversed."""
    for axes in reversed(order):
        if shape is None or (axes and sorted(axes) != list(range(len(shape)))):
            return None
        shape = tuple(shape[axis] for axis in axes) if axes else shape[::-1]
    return shape


def _lookups(node: NodeProto) -> Iterator[tuple[str, str, int, bool]]:
    """(indices, table, axis, negative indices allowed) of every table lookup that `node` does."""
    names = list(node.input)
    if node.domain in ("", "ai.onnx") and node.op_type in ("Gather", "GatherElements") and len(names) == 2:
        yield names[1], names[0], next(iter(_integers(node, "axis")), 0), True
    if node.domain == "com.microsoft" and node.op_type == "EmbedLayerNormalization" and len(names) >= 5:
        # inputs: input_ids, segment_ids, word, position and segment embedding, ...; checked from 0 up only
        yield names[0], names[2], 0, False
        if names[1]:
            yield names[1], names[4], 0, False


def _integers(node: NodeProto, name: str) -> list[int]:
    for attribute in node.attribute:
        if attribute.name == name:
            return list(attribute.ints) or [attribute.i]
    return []


def _constant_shape(node: NodeProto | None) -> tuple[int, ...] | None:
    for attribute in node.attribute if node is not None else ():
        if attribute.name == "value":
            return tuple(attribute.t.dims)
    return None
