"""The weights that no engine of a model can do without: its least size, whatever a route does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from routetune.tasks.targets.sidecars import is_external, raw_size

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

#: Computed from weights alone, these give as many bytes or more, so that folding them saves nothing.
_AS_LARGE = frozenset(
    {"DequantizeLinear", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
)
#: What these say of an input may be known before the input is.
_OF_SHAPES = frozenset({"Shape", "Size"})


def kept_bytes(model: ModelProto) -> int:
    """Bytes of the weights that are read together with something that depends on the inputs.

    A lower bound. What only constants are computed from may be folded to something smaller, such as weights
    converted to 16 bits; what a function of the model's own reads may be folded inside it; what no output
    needs may be left out. None of it counts.
    """
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    inputs = {value.name for value in model.graph.input} - weights.keys()
    functions = {(function.domain, function.name) for function in model.functions}
    sources = _rearranged(model.graph)
    kept = set()
    for node in _live(model.graph, inputs):
        if (node.domain, node.op_type) not in functions:
            kept |= {_origin(name, sources) for name in node.input}
    return sum(_size(weights[name]) for name in kept & weights.keys())


def _live(graph: GraphProto, live: set[str]) -> Iterator[NodeProto]:
    """The nodes that an output needs and that depend on the values `live`, and those in their inner graphs.

    An inner graph whose node is not live may be folded as a whole. Nodes may stand in any order.
    """
    nodes, readers = _needed(graph), defaultdict(list)
    for at, node in enumerate(nodes):
        for name in node.input if node.op_type not in _OF_SHAPES else ():
            readers[name].append(at)
    live, waiting = set(live), list(live)
    found: set[int] = set()
    while waiting:
        for at in set(readers.pop(waiting.pop(), ())) - found:
            found.add(at)
            live.update(nodes[at].output)
            waiting.extend(nodes[at].output)
    for at in found:
        yield nodes[at]
        for body in _bodies(nodes[at]):
            yield from _live(body, live | {value.name for value in body.input})


def _needed(graph: GraphProto) -> list[NodeProto]:
    """The nodes that an output of the graph needs."""
    makers = {name: at for at, node in enumerate(graph.node) for name in node.output if name}
    waiting, found = [value.name for value in graph.output], set()
    while waiting:
        at = makers.get(waiting.pop())
        if at is not None and at not in found:
            found.add(at)
            waiting.extend(_reads(graph.node[at]))
    return [graph.node[at] for at in sorted(found)]


def _reads(node: NodeProto) -> Iterator[str]:
    """Every name that a node takes, also inside its inner graphs."""
    yield from node.input
    for body in _bodies(node):
        yield from (value.name for value in body.output)
        for inner in body.node:
            yield from _reads(inner)


def _bodies(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _rearranged(graph: GraphProto) -> dict[str, str]:
    """Value -> the value that a node only rearranges to it."""
    return {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type in _AS_LARGE and not node.domain and node.input and node.output
    }


def _origin(name: str, sources: dict[str, str]) -> str:
    """What a value was before it was rearranged; the way there is made short for who comes next."""
    origin = name
    while origin in sources:
        origin = sources[origin]
    while name in sources:
        following = sources[name]
        sources[name] = origin
        name = following
    return origin


def _size(tensor: TensorProto) -> int:
    return raw_size(tensor, "") if is_external(tensor) else len(tensor.raw_data)
