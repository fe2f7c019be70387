"""The form in which a model is rewritten: the same function, as the libraries that rewrite it expect it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from routetune.tasks.engines.base import BuildError
from routetune.tasks.targets.operators import nodes
from routetune.tasks.targets.places import CHANNEL_OPSET, free_name

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

#: From this version of the format on, constants need not be inputs too; before it, all of them are constants.
FREE_CONSTANTS = 4
#: How names end that onnxruntime.quantization makes up.
_MADE_UP = re.compile(
    r"(?i)(quantizelinear(_(in|out)put)?|_(scale|zero_point|quant|quantized|mul|matmul|cast|add))(_[0-9]+)?$"
)


def normalise(model: ModelProto) -> None:
    """Spell out what rewriting libraries overlook; constants must be in the model, not beside it."""
    for node in nodes(model.graph):
        node.domain = _plain(node.domain)
        while node.input and not node.input[-1]:  # an input left out by an empty name
            node.input.pop()
    for entry in model.opset_import:
        entry.domain = _plain(entry.domain)
    if model.ir_version < FREE_CONSTANTS:
        constants = {one.name for one in model.graph.initializer}
        keep(model.graph.input, [one for one in model.graph.input if one.name not in constants])
        model.ir_version = FREE_CONSTANTS
    for node in model.graph.node:
        if node.op_type == "Gemm" and len(node.input) == 3:
            _multiply_bias(model, node)


def free_suffixes(model: ModelProto, kept: Collection[str]) -> None:
    """Rename what is called as the quantiser calls what it adds: it does not look whether a name is free.

    Args:
        kept: nodes whose names stay.
    """
    graph = model.graph
    ends = {value.name for value in (*graph.input, *graph.output)}
    taken = tensors(model)
    renamed = {
        name: free_name(f"{name}_given", taken) for name in sorted(taken - ends) if _MADE_UP.search(name)
    }
    rename(model, renamed)
    names = {node.name for node in graph.node}
    for node in graph.node:
        if node.name not in kept and _MADE_UP.search(node.name):
            names.add(free := free_name(f"{node.name}_given", names))
            node.name = free


def raised(model: ModelProto, least: int) -> ModelProto:
    """The model in an opset that has what Q/DQ needs, `least` or above; as it is, where it is in one.

    Raises BuildError where the library cannot convert it.
    """
    from onnx import version_converter

    opset = next((entry.version for entry in model.opset_import if not _plain(entry.domain)), 0)
    if opset >= least:
        return model
    wanted = max(least, CHANNEL_OPSET)
    try:
        converted: ModelProto = version_converter.convert_version(model, wanted)
    except Exception as error:
        raise BuildError(
            f"the model is of opset {opset} and cannot be converted to {wanted}, which Q/DQ needs: "
            f"{error}; export it for opset {wanted} or above"
        ) from error
    return converted


def outputs_by_nodes(model: ModelProto) -> None:
    """Let a node give every output that is a constant: what is rewritten may not be an output."""
    from onnx import helper

    outputs = {one.name for one in model.graph.output}
    for constant in [one for one in model.graph.initializer if one.name in outputs]:
        name = constant.name
        rename(model, {name: free_name(f"{name}_constant", tensors(model))})
        model.graph.node.append(helper.make_node("Identity", [constant.name], [name], f"{name}_given"))


def captured(model: ModelProto) -> set[str]:
    """Tensors that nodes in branches and loop bodies read, their own ones included."""
    inner = Counter(name for node in nodes(model.graph) for name in node.input)
    inner.subtract(name for node in model.graph.node for name in node.input)
    return set(+inner)


def tensors(model: ModelProto) -> set[str]:
    """What nodes give, inputs and constants."""
    made = {name for node in model.graph.node for name in node.output}
    return made | {value.name for value in (*model.graph.input, *model.graph.initializer)}


def halves(model: ModelProto) -> set[str]:
    """Tensors of 16-bit floats, of those whose types are known."""
    from onnx import TensorProto

    graph, half = model.graph, TensorProto.FLOAT16
    values = (*graph.input, *graph.value_info, *graph.output)
    found = {one.name for one in values if one.type.tensor_type.elem_type == half}
    return found | {one.name for one in graph.initializer if one.data_type == half}


def rename(model: ModelProto, names: Mapping[str, str]) -> None:
    """Call tensors otherwise wherever they are made, read and declared; those of the graph's ends stay."""
    for node in nodes(model.graph):
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for value in (*model.graph.initializer, *model.graph.value_info):
        value.name = names.get(value.name, value.name)


def keep(field: Any, some: Iterable[Any]) -> None:
    """Leave only some of a repeated field; to remove one by one compares each with all before it."""
    kept = list(some)
    del field[:]
    field.extend(kept)


def _plain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _multiply_bias(model: ModelProto, node: NodeProto) -> None:
    """Multiply a Gemm's constant C by beta: ONNX Runtime's quantiser drops beta with C as it was."""
    from onnx import numpy_helper

    beta = next((one for one in node.attribute if one.name == "beta"), None)
    if beta is None or beta.f == 1:
        return
    found = next((one for one in model.graph.initializer if one.name == node.input[2]), None)
    if found is None:
        return
    values = numpy_helper.to_array(found)
    name = free_name(f"{node.output[0]}_bias", tensors(model))  # others may read the constant
    model.graph.initializer.append(numpy_helper.from_array((values * beta.f).astype(values.dtype), name))
    node.input[2] = name
    beta.f = 1.0
