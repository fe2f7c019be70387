"""Wiring: that the graphs of a model have an order in which they can be run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from routetune.tasks.errors import BadInput
from routetune.tasks.targets.operators import nodes

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto


def check_wiring(model: ModelProto, path: Path) -> None:
    """Refuse, once for all routes, a graph that no runtime can order.

    Raises:
        BadInput: a value is made twice in one graph, or depends on itself.
    """
    for graph in _graphs(model):
        made = [name for node in graph.node for name in node.output if name]
        twice = next((name for name, count in Counter(made).items() if count > 1), None)
        if twice is not None:
            raise BadInput(f"model {path}: {twice!r} is the output of several nodes; give each its own name")
        if (name := _in_cycle(graph)) is not None:
            raise BadInput(f"model {path}: {name!r} depends on itself; a graph of ONNX has no cycles")


def _graphs(model: ModelProto) -> Iterator[GraphProto]:
    yield model.graph
    for node in nodes(model.graph):
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g
            yield from attribute.graphs


def _in_cycle(graph: GraphProto) -> str | None:
    """An output in or behind a cycle of the graph itself, or None: Kahn's order, without recursion.

    What the graphs inside a node take from around them does not count; the runtime judges that.
    """
    makers = {name: at for at, node in enumerate(graph.node) for name in node.output if name}
    readers: dict[int, list[int]] = defaultdict(list)
    waiting = [0] * len(graph.node)
    for at, node in enumerate(graph.node):
        for name in node.input:
            if name in makers:
                readers[makers[name]].append(at)
                waiting[at] += 1
    ready = [at for at, count in enumerate(waiting) if count == 0]
    while ready:
        for reader in readers[ready.pop()]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                ready.append(reader)
    stuck = next((at for at, count in enumerate(waiting) if count), None)
    return None if stuck is None else next(iter(graph.node[stuck].output), "(unnamed)")
