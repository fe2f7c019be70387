"""The identity of a compiled graph: equal for models that compute the same thing the same way.

The file's bytes will not do: they hold names that the optimiser makes up, documentation, and things in an
order that is not always the same. The normal form leaves these out. Names within the graph are replaced by
numbers in order of first use; a one-to-one renaming cannot make two different graphs equal.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from routetune.tasks.canonical import digest

if TYPE_CHECKING:
    from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

Json = Any

#: Bytes from which a tensor is worth a thread.
_LARGE = 1 << 20


def identity(model: ModelProto, knobs: Mapping[str, str]) -> str:
    """SHA-256, hex, of a compiled model's normal form, `beside` the settings applied at load.

    Counted: operators, attributes, weights, the order of nodes, inputs and outputs with their names, shapes
    that the compiler wrote down, versions. Not counted: names of nodes and inner tensors, documentation,
    producer, metadata, the order of attributes and of weights, functions and weights that nothing uses.
    """
    return beside(digest(_Normal().model(model)), knobs)


def beside(known_by: str, settings: Mapping[str, str]) -> str:
    """The identity of an engine under more settings applied at load: theirs stands behind a dash."""
    return f"{known_by}-{digest(dict(settings))}" if settings else known_by


class _Normal:
    """One walk over a model; holds the numbers given to names."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._kept: set[str] = set()

    def model(self, model: ModelProto) -> Json:
        graph = model.graph
        self._kept = {value.name for value in (*graph.input, *graph.output)}
        normal = {
            "ir": model.ir_version,
            "opsets": sorted([entry.domain, entry.version] for entry in model.opset_import),
            "graph": self.graph(graph),
        }
        functions = {(entry.domain, entry.name, entry.overload): entry for entry in model.functions}
        used = _used_functions(graph.node, functions)
        return {**normal, "functions": [_Normal().function(functions[key]) for key in sorted(used)]}

    def graph(self, graph: GraphProto) -> Json:
        inputs = [[self.name(value.name), self.type(value.type)] for value in graph.input]
        nodes = [self.node(node) for node in graph.node]
        outputs = [[self.name(value.name), self.type(value.type)] for value in graph.output]
        names = [weight.name for weight in graph.initializer]
        weights = dict(zip(names, _tensors(graph.initializer), strict=True))
        weights |= {weight.values.name: _sparse(weight) for weight in graph.sparse_initializer}
        shapes = {value.name: self.type(value.type) for value in graph.value_info}
        return {
            "inputs": inputs,
            "outputs": outputs,
            "nodes": nodes,
            "weights": self._by_name(weights),
            "shapes": self._by_name(shapes),
        }

    def function(self, function: FunctionProto) -> Json:
        return {
            "name": [function.domain, function.name, function.overload],
            "inputs": [self.name(name) for name in function.input],
            "nodes": [self.node(node) for node in function.node],
            "outputs": [self.name(name) for name in function.output],
            "attributes": sorted(function.attribute),
            "defaults": self.attributes(function.attribute_proto),
            "opsets": sorted([entry.domain, entry.version] for entry in function.opset_import),
        }

    def node(self, node: NodeProto) -> Json:
        # Inputs before subgraphs before outputs: the order of first use.
        inputs = [self.name(name) for name in node.input]
        attributes = self.attributes(node.attribute)
        outputs = [self.name(name) for name in node.output]
        return [node.domain, node.op_type, node.overload, inputs, attributes, outputs]

    def attributes(self, attributes: Iterable[AttributeProto]) -> Json:
        return [self.attribute(entry) for entry in sorted(attributes, key=lambda entry: entry.name)]

    def attribute(self, entry: AttributeProto) -> Json:
        values: list[Json] = [
            entry.f.hex() if entry.HasField("f") else None,
            entry.i,
            entry.s.hex(),
            [value.hex() for value in entry.floats],
            list(entry.ints),
            [value.hex() for value in entry.strings],
            [_tensor(value) for value in (*([entry.t] if entry.HasField("t") else []), *entry.tensors)],
            [self.graph(value) for value in (*([entry.g] if entry.HasField("g") else []), *entry.graphs)],
            [_sparse(value) for value in entry.sparse_tensors],
            [self.type(value) for value in entry.type_protos],
        ]
        if entry.HasField("sparse_tensor"):
            values.append(_sparse(entry.sparse_tensor))
        if entry.HasField("tp"):
            values.append(self.type(entry.tp))
        return [entry.name, entry.type, entry.ref_attr_name, values]

    def name(self, name: str) -> str | int:
        if not name or name in self._kept:
            return name
        return self._numbers.setdefault(name, len(self._numbers))

    def type(self, kind: TypeProto) -> Json:
        if not kind.HasField("tensor_type"):
            return kind.SerializeToString(deterministic=True).hex()
        tensor = kind.tensor_type
        if not tensor.HasField("shape"):
            return [tensor.elem_type]
        shape = [
            size.dim_value if size.HasField("dim_value") else size.dim_param for size in tensor.shape.dim
        ]
        return [tensor.elem_type, shape]

    def _by_name(self, values: Mapping[str, Json]) -> Json:
        """Values with the name of each, in the order of names; those of unused names are left out."""
        kept = [[name, value] for name, value in values.items() if name in self._kept]
        inner = [[self._numbers[name], value] for name, value in values.items() if name in self._numbers]
        return [sorted(kept, key=lambda pair: pair[0]), sorted(inner, key=lambda pair: pair[0])]


def _used_functions(
    nodes: Iterable[NodeProto], functions: Mapping[tuple[str, str, str], FunctionProto]
) -> set[tuple[str, str, str]]:
    """The functions that these nodes call, directly or not."""
    used: set[tuple[str, str, str]] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        key = (node.domain, node.op_type, node.overload)
        if key in functions and key not in used:
            used.add(key)
            waiting.extend(functions[key].node)
        for entry in node.attribute:
            for graph in (*([entry.g] if entry.HasField("g") else []), *entry.graphs):
                waiting.extend(graph.node)
    return used


def _tensors(tensors: Sequence[TensorProto]) -> list[Json]:
    """`_tensor` of each. Hashing releases the GIL, and a large model is little else than large tensors."""
    large = [tensor.ByteSize() >= _LARGE for tensor in tensors]
    with ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0)))) as pool:
        hashed = pool.map(_tensor, itertools.compress(tensors, large))
        return [
            next(hashed) if is_large else _tensor(one) for one, is_large in zip(tensors, large, strict=True)
        ]


def _tensor(tensor: TensorProto) -> Json:
    """Type, shape and a digest of the values; raises ValueError for values in another file."""
    from onnx import TensorProto, numpy_helper

    if tensor.data_location == TensorProto.EXTERNAL:
        raise ValueError(f"tensor {tensor.name!r} keeps its values in another file")
    if tensor.data_type == TensorProto.STRING:
        return [tensor.data_type, list(tensor.dims), [value.hex() for value in tensor.string_data]]
    data = tensor.raw_data if tensor.HasField("raw_data") else numpy_helper.to_array(tensor).tobytes()
    return [tensor.data_type, list(tensor.dims), hashlib.sha256(data).hexdigest()]


def _sparse(tensor: Any) -> Json:
    return [_tensor(tensor.values), _tensor(tensor.indices), list(tensor.dims)]
