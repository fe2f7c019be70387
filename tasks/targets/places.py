"""Places: the nodes of a model that can compute in lower precision, under names that a route can hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

#: The operators in whose arithmetic there is something to gain.
OPERATORS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
#: The first opset with QuantizeLinear, with a scale for each channel, and with 16-bit floats.
FIRST_OPSET, CHANNEL_OPSET, HALF_OPSET = 10, 13, 19
#: Names that are no node's: the whole model at once.
DYNAMIC, HALF, FUSED = "@dynamic", "@fp16", "@fused"

_FIRST_NUMBER = re.compile(r".*?\d+")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_./:-]+")


@dataclass(frozen=True, slots=True)
class Place:
    """A knob's worth of nodes.

    Attributes:
        name: with its sign, "@conv1"; unique in the model.
        nodes: names of the nodes, as `node_names` gives them.
        help: what it is, in words.
    """

    name: str
    nodes: tuple[str, ...]
    help: str


def node_names(graph: GraphProto) -> list[str]:
    """A name for every node of the graph itself: its own where it has one that no earlier node has.

    Exporters leave names out or repeat them, and only named nodes can be chosen. The same graph always
    gives the same names.
    """
    taken = {node.name for node in graph.node}
    seen: set[str] = set()
    names = []
    for index, node in enumerate(graph.node):
        name = node.name
        if not name or name in seen:
            name = free_name(f"{name or node.op_type}_{index}", taken | seen)
        seen.add(name)
        names.append(name)
    return names


def places_of(model: ModelProto, grouping: str) -> tuple[Place, ...]:
    """The places of a model in the order of its nodes.

    Args:
        grouping: "node", a place for each node; "type", one for each operator; "block", one for all nodes
            whose names are alike up to their first number, such as "layer.3" of "layer.3.attention.query".
    """
    groups: dict[str, list[str]] = {}
    for name, node in _quantisable(model.graph):
        keys = {"node": f"{node.op_type} {name}", "type": f"all {node.op_type}", "block": _block(name)}
        groups.setdefault(keys[grouping], []).append(name)
    places: dict[str, Place] = {}
    for number, (key, group) in enumerate(groups.items()):
        named = {"node": group[0], "type": key.replace("all ", "type."), "block": f"block.{number}"}
        name = free_name(f"@{_NOT_PLAIN.sub('_', named[grouping])}", {DYNAMIC, HALF, FUSED, *places})
        what = key if grouping != "block" else f"the {len(group)} nodes of {key}: {_some(group)}"
        places[name] = Place(name, tuple(group), f"Q/DQ around {what}.")
    return tuple(places.values())


def names_places(expressions: Iterable[str]) -> bool:
    """Whether a route expression holds a place, so that results depend on how the model is rewritten."""
    return any(token.startswith("@") for text in expressions for token in text.split())


def names_fusing(expressions: Iterable[str]) -> bool:
    """Whether a route expression holds FUSED, by its name or by a glob."""
    tokens = (token.partition("=")[0] for text in expressions for token in text.split())
    return any(token.startswith("@") and fnmatchcase(FUSED, token) for token in tokens)


def _quantisable(graph: GraphProto) -> Iterator[tuple[str, NodeProto]]:
    """Nodes that are not quantised yet, with their names."""
    quantised = {name for node in graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    for name, node in zip(node_names(graph), graph.node, strict=True):
        plain = node.op_type in OPERATORS and node.domain in ("", "ai.onnx")
        if plain and not quantised.intersection(node.input):
            yield name, node


def _block(name: str) -> str:
    found = _FIRST_NUMBER.match(name)
    return found[0] if found else name


def free_name(name: str, taken: set[str]) -> str:
    """The name, or the first that follows it and is free."""
    free, number = name, 2
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    return free


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")
