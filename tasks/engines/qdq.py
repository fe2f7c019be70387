"""Rewriting a calibrated model for one placement: Q/DQ, dynamic 8-bit integers, fusions, 16-bit floats.

A worker's step. The result is an ordinary ONNX model that any backend builds from.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from routetune.tasks.engines.base import BuildError
from routetune.tasks.engines.calibration import ACTIVATIONS
from routetune.tasks.engines.fusing import fused
from routetune.tasks.engines.normal import captured, halves, keep, raised, rename, tensors
from routetune.tasks.errors import BadInput
from routetune.tasks.targets.operators import nodes as every_node
from routetune.tasks.targets.places import HALF_OPSET, OPERATORS

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

#: What the library puts behind the name of a Gemm that it makes a MatMul of.
_PRODUCT = "_MatMul"
#: Operators that 16-bit floats must leave alone, since their scales have 32 bits: ONNX's, and ONNX Runtime's.
_INTEGER = re.compile(r"Q[A-Z].*|(Dynamic)?Quantize.*|DequantizeLinear|.*Integer(ToFloat)?")


def rewrite(
    prepared: str, ranges: str, placement: Mapping[str, Any], settings: Mapping[str, Any], output: str
) -> dict[str, Any]:
    """Write the model of one placement.

    Args:
        prepared, ranges: what `calibration.calibrate` wrote.
        placement: "nodes" that get Q/DQ; "dynamic", "half", "fused": whether the rest is changed too.
        settings: as `Quantization.settings` gives them.
        output: the file to write.

    Returns: "digest" (SHA-256, hex) and "size" in bytes of the file.

    Raises:
        BuildError: a library refuses to rewrite the model so.
        BadInput, OSError: the machine lacks something; it says nothing of the placement.
    """
    from routetune.tasks.engines.onnxruntime.sidecars import LIMIT

    try:
        model = _rewritten(prepared, ranges, placement, settings, Path(f"{output}.scratch"))
        if model.ByteSize() > LIMIT:
            raise BuildError(
                f"the rewritten model would take {model.ByteSize()} bytes, more than one file holds"
            )
        part = Path(f"{output}.part")  # what has its name is whole
        content = model.SerializeToString(deterministic=True)
        part.write_bytes(content)
        part.replace(output)
    except (BuildError, BadInput, MemoryError, OSError):
        raise
    except Exception as error:
        raise BuildError(f"the model cannot be rewritten so: {error}") from error
    return {"digest": hashlib.sha256(content).hexdigest(), "size": len(content)}


def _rewritten(
    prepared: str,
    ranges: str,
    placement: Mapping[str, Any],
    settings: Mapping[str, Any],
    scratch: Path,
) -> ModelProto:
    """The model with all that a placement asks for, its nodes in an order that they can run in."""
    import onnx
    from onnxruntime.quantization.onnx_model import ONNXModel

    model = onnx.load(prepared)
    # An output that is an input too would be read as what a node gives, by each of the libraries.
    inputs = {value.name for value in model.graph.input}
    outputs = list(model.graph.output)
    keep(model.graph.output, [value for value in outputs if value.name not in inputs])
    quantised = with_activations(model, placement["nodes"])
    if placement["dynamic"]:
        model = _dynamic(model, quantised, settings, scratch)
        left = {node.name for node in model.graph.node}
        quantised = [name if name in left else f"{name}{_PRODUCT}" for name in quantised]
    if placement["nodes"]:
        model = _static(model, quantised, json.loads(Path(ranges).read_text()), settings)
    if placement["fused"]:
        ONNXModel(model).topological_sort()
        model = fused(model, quantised)
    if placement["half"]:
        changed = placement["nodes"] or placement["dynamic"] or placement["fused"]
        model = _half(model, quantised, as_prepared=not changed)
    ONNXModel(model).topological_sort()  # new nodes were put at the end
    made = {value.name: value for value in model.graph.output}
    keep(model.graph.output, [made.get(value.name, value) for value in outputs])
    return model


def with_activations(model: ModelProto, nodes: Sequence[str]) -> list[str]:
    """The nodes, each with the activations that it alone feeds: together they become one integer operator."""
    readers: dict[str, list[NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    constants = {one.name: one for one in model.graph.initializer}
    inner = captured(model)
    read_elsewhere = inner | {value.name for value in model.graph.output}
    found = set(nodes)
    for node in model.graph.node:  # in topological order, so that chains of activations are followed
        fed = readers.get(node.output[0], []) if node.output[0] not in read_elsewhere else []
        if node.name in found and len(fed) == 1 and _may_go(fed[0], constants, inner):
            found.add(fed[0].name)
    return [node.name for node in model.graph.node if node.name in found]


def _may_go(node: NodeProto, constants: Mapping[str, Any], inner: Collection[str]) -> bool:
    """Whether a node is an activation that the ends of a quantised range can stand for.

    Such a range holds 0; and what a branch reads is not taken through Q/DQ.
    """
    from onnx import numpy_helper

    if node.op_type not in ACTIVATIONS or node.output[0] in inner:
        return False
    low, high = [*node.input[1:], "", ""][:2]  # a Relu has none
    if not {low, high} - {""} <= constants.keys():
        return False
    before = {one.name: one.f for one in node.attribute}  # where opsets below 11 have them
    least, most = (
        float(numpy_helper.to_array(constants[end])) if end else before.get(name, 0.0)
        for name, end in (("min", low), ("max", high))
    )
    return least <= 0 <= most


def _static(
    model: ModelProto, nodes: list[str], ranges: Mapping[str, list[float]], settings: Mapping[str, Any]
) -> ModelProto:
    """Q/DQ around the nodes."""
    from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

    half = halves(model)
    if half.intersection(
        name for node in model.graph.node if node.name in nodes for name in (*node.input, *node.output)
    ):
        model = raised(model, HALF_OPSET)
    # The library takes a scale's type from that of the ends, and a scale has the type of its tensor.
    kinds = dict.fromkeys(half, np.float16)
    ends = {name: tuple(kinds.get(name, np.float32)(end) for end in pair) for name, pair in ranges.items()}
    quantizer = QDQQuantizer(
        model,
        settings["per_channel"],
        settings["reduce_range"],
        _kind(settings["weights"]),
        _kind(settings["activations"]),
        TensorsData(CalibrationMethod.MinMax, ends),
        nodes,
        [],
        [*OPERATORS, *ACTIVATIONS],
        _options(settings),
    )
    quantizer.quantize_model()
    quantised: ModelProto = quantizer.model.model
    return quantised


def _options(settings: Mapping[str, Any]) -> dict[str, Any]:
    # A product of matrices goes on as float: what follows adds to it or normalises it, and ONNX Runtime has
    # an operator that gives floats at no cost.
    quiet = ["MatMul"] if settings["outputs"] else [*OPERATORS, *ACTIVATIONS]
    return {
        "ActivationSymmetric": settings["symmetric"],
        "WeightSymmetric": True,
        "QuantizeBias": settings["biases"],
        "QDQKeepRemovableActivations": not settings["outputs"],
        "OpTypesToExcludeOutputQuantization": quiet,
    }


def _kind(name: str) -> Any:
    from onnxruntime.quantization import QuantType

    return {"uint8": QuantType.QUInt8, "int8": QuantType.QInt8}[name]


def _dynamic(model: ModelProto, besides: list[str], settings: Mapping[str, Any], scratch: Path) -> ModelProto:
    """Products with constant matrices in 8 bits, their inputs scaled while running."""
    import onnx
    from onnxruntime.quantization import quantize_dynamic

    left_out = halves(model)  # what scales while running takes 32-bit floats alone
    if settings["per_channel"]:  # the library has a scale for each column of a matrix, and for nothing else
        left_out |= {one.name for one in model.graph.initializer if len(one.dims) != 2}
    products = [node for node in model.graph.node if node.op_type in ("MatMul", "Gemm")]
    free = [node for node in products if not left_out & set(node.input[:2])]
    chosen = [node.name for node in free if node.name not in besides]
    if not chosen:  # to the library no names are all names
        return model
    # Every Gemm is made a MatMul and an Add before, and only then looked for.
    chosen += [f"{name}{_PRODUCT}" for name in chosen]
    quantize_dynamic(
        model,
        scratch,
        op_types_to_quantize=["MatMul"],
        nodes_to_quantize=chosen,
        per_channel=settings["per_channel"],
        reduce_range=settings["reduce_range"],
        weight_type=_kind(settings["weights"]),
    )
    changed: ModelProto = onnx.load(scratch)
    scratch.unlink()
    _set_apart(changed, tensors(model))
    return changed


def _set_apart(model: ModelProto, known: set[str]) -> None:
    """Give what is not known names of its own: Q/DQ makes up the same, "x_scale" and "x_QuantizeLinear"."""
    rename(model, {name: f"{name}_dynamic" for name in tensors(model) - known})
    for node in model.graph.node:
        if node.op_type == "DynamicQuantizeLinear":
            node.name += "_dynamic"


def _half(model: ModelProto, besides: list[str], as_prepared: bool) -> ModelProto:
    """16-bit floats wherever nothing is quantised; inputs and outputs keep their types.

    Args:
        as_prepared: nothing was changed yet, so that all types are as `calibration.prepare` inferred them; to
            infer them again takes as long as the rest.
    """
    from onnxruntime.transformers import float16

    # A declared type is taken for a tensor that is computed, and cast back for what must have 32 bits.
    constants = {one.name for one in model.graph.initializer}
    keep(model.graph.value_info, [one for one in model.graph.value_info if one.name not in constants])
    integer = {node.op_type for node in model.graph.node if _INTEGER.fullmatch(node.op_type)}
    blocked = {*float16.DEFAULT_OP_BLOCK_LIST, *integer}
    known = {node.name for node in model.graph.node}
    changed: ModelProto = float16.convert_float_to_float16(
        model,
        keep_io_types=True,
        disable_shape_infer=as_prepared,
        op_block_list=[*blocked],
        node_block_list=besides,
    )
    _once(changed)
    _as_they_were(changed, blocked, known)
    _join(changed, {*besides, *(node.name for node in model.graph.node if _INTEGER.fullmatch(node.op_type))})
    return changed


def _as_they_were(model: ModelProto, blocked: Collection[str], known: Collection[str]) -> None:
    """Let operators that were left alone give the model's outputs themselves: the library has their results
    taken for 16-bit floats and cast back, which they are not. Nodes that were there before stay."""
    makers = {name: node for node in model.graph.node for name in node.output}
    outputs = {value.name for value in model.graph.output}
    for cast in [node for node in model.graph.node if node.op_type == "Cast" and node.output[0] in outputs]:
        maker, name = makers.get(cast.input[0]), cast.input[0]
        if maker is None or maker.op_type not in blocked or cast.name in known:
            continue
        model.graph.node.remove(cast)
        keep(model.graph.value_info, [one for one in model.graph.value_info if one.name != name])
        rename(model, {name: cast.output[0]})


def _once(model: ModelProto) -> None:
    """Drop what is written a second time: before 1.32 the library casts a tensor back for each node that
    reads it in 32 bits, all under the same names, and no compiler takes that."""
    nodes = list(model.graph.node)
    first = {tuple(node.output): node for node in reversed(nodes)}
    of_each = [(node, first[tuple(node.output)]) for node in nodes]
    keep(model.graph.node, [node for node, one in of_each if node is one or node != one])
    keep(model.graph.value_info, {one.name: one for one in model.graph.value_info}.values())


def _join(model: ModelProto, kept: set[str]) -> None:
    """Drop casts to 16 bits and back between two nodes that were kept: no compiler looks past them."""
    makers = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            back = makers.get(name)
            there = makers.get(back.input[0]) if back is not None and back.op_type == "Cast" else None
            first = makers.get(there.input[0]) if there is not None and there.op_type == "Cast" else None
            if there is not None and first is not None and {node.name, first.name} <= kept:
                node.input[index] = there.input[0]
    for _ in range(2):  # the way back first, then the way there
        read = {name for node in every_node(model.graph) for name in node.input}
        read |= {value.name for value in model.graph.output}
        for node in [one for one in model.graph.node if one.op_type == "Cast" and one.output[0] not in read]:
            model.graph.node.remove(node)
