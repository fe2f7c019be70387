"""Bring weights that a compiled model keeps in the source model's sidecar files into the model itself.

ONNX Runtime writes weights that no rewrite touched as the references they were. They point beside the
source model, where nobody looks for them once the engine has moved to the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from routetune.tasks.engines.base import BuildError

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

#: What one serialised message may hold; an engine is one.
LIMIT = 2**31 - 1
#: At most what a field's tag and length take.
_OVERHEAD = 16


def embed(model: ModelProto, folder: Path) -> bool:
    """Read every value kept in another file into `model`; returns whether there was any.

    Args:
        model: changed in place.
        folder: where the source model lies, links not followed: its sidecars are named from there.

    Raises:
        BuildError: the engine would be too large for one file, or a sidecar is too short.
        OSError: a sidecar cannot be read.
    """
    outside = _outside(model)
    if not outside:
        return False
    places = [_place(tensor) for tensor in outside]
    lengths = [_length(folder, *place) for place in places]
    total = model.ByteSize() + sum(lengths) + _OVERHEAD * len(outside)
    if total > LIMIT:
        raise BuildError(
            f"the engine would take {total} bytes, and one ONNX file holds at most {LIMIT}; "
            "models with more weights than that cannot be compiled to one file yet"
        )
    for tensor, (location, offset, _), length in zip(outside, places, lengths, strict=True):
        tensor.raw_data = _read(folder / location, offset, length)
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
    return True


def external_bytes(model: ModelProto, folder: Path) -> int:
    """Bytes of the model's tensors that lie in sidecars. Raises OSError: one is not there."""
    return sum(_length(folder, *_place(tensor)) for tensor in _outside(model))


def _outside(model: ModelProto) -> list[TensorProto]:
    from onnx import TensorProto

    return [tensor for tensor in _tensors(model) if tensor.data_location == TensorProto.EXTERNAL]


def _place(tensor: TensorProto) -> tuple[str, int, int | None]:
    """Where the values are: file, offset, length (None: to the end)."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    length = entries.get("length")
    return entries["location"], int(entries.get("offset", 0)), None if length is None else int(length)


def _length(folder: Path, location: str, offset: int, length: int | None) -> int:
    if length is not None:
        return length
    return (folder / location).stat().st_size - offset


def _read(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(length)
    if len(data) != length:
        raise BuildError(f"sidecar {path.name} of the model ends after {len(data)} of {length} bytes")
    return data


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    yield from _of_graph(model.graph)
    for function in model.functions:
        yield from _of_nodes(function.node)
        yield from _of_attributes(function.attribute_proto)


def _of_graph(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        yield from _of_attributes(node.attribute)


def _of_attributes(attributes: Iterable[AttributeProto]) -> Iterator[TensorProto]:
    for entry in attributes:
        yield from (entry.t, *entry.tensors)
        for graph in (entry.g, *entry.graphs):
            yield from _of_graph(graph)
