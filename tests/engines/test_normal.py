"""Graphs as exporters and people write them, which the rewriting libraries overlook: all compute the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
from routetune.tasks.targets.quantization import Quantization

from tests.engines.rewriting import Arrays, calibrated, rewritten
from tests.engines.test_qdq import run

RNG = np.random.default_rng(0)
IMAGE = {"x": RNG.standard_normal((1, 3, 8, 8)).astype(np.float32)}
BRANCH = IMAGE | {"b": np.array(False)}
ROWS = {"x": RNG.standard_normal((3, 6)).astype(np.float32)}
FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16


def value(name: str, shape: Sequence[int] | None, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def weight(name: str, *shape: int, kind: Any = np.float32) -> TensorProto:
    return numpy_helper.from_array(RNG.standard_normal(shape).astype(kind), name)


CONV, PRODUCT = weight("w", 4, 3, 3, 3), [weight("w", 6, 5), weight("c", 5)]
CONVOLUTION = helper.make_node("Conv", ["x", "w"], ["h"], "place")
RELU = helper.make_node("Relu", ["h"], ["r"], "relu")


def model(
    nodes: Sequence[Any],
    feeds: Arrays,
    outputs: Sequence[Any],
    constants: Sequence[Any],
    ir: int = 8,
    **more: Any,
) -> onnx.ModelProto:
    kinds = {np.dtype(np.float32): FLOAT, np.dtype(np.float16): HALF, np.dtype(bool): TensorProto.BOOL}
    inputs = [value(name, array.shape, kinds[array.dtype]) for name, array in feeds.items()]
    if ir < 4:
        inputs += [value(one.name, one.dims) for one in constants]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    opsets = more.get("opsets", [helper.make_opsetid("", 17)])
    return helper.make_model(graph, ir_version=ir, opset_imports=opsets)


def branch(read: str) -> Any:
    """An If whose bodies read a tensor of the graph around them."""
    bodies = {
        name: helper.make_graph([helper.make_node(op, [read], [name])], name, [], [value(name, None)])
        for name, op in (("then_branch", "Neg"), ("else_branch", "Identity"))
    }
    return helper.make_node("If", ["b"], ["z"], "if", **bodies)


def product(**attributes: Any) -> Any:
    return helper.make_node("Gemm", ["x", "w", "c"], ["y"], "place", **attributes)


def clipped(low: float, high: float) -> onnx.ModelProto:
    ends = [numpy_helper.from_array(np.float32(end), name) for name, end in (("low", low), ("high", high))]
    clip = helper.make_node("Clip", ["h", "low", "high"], ["y"], "clip")
    return model([CONVOLUTION, clip], IMAGE, [value("y", None)], [CONV, *ends])


def halves(opset: int) -> tuple[onnx.ModelProto, Arrays]:
    """A convolution and a product in 16-bit floats, which Q/DQ takes from opset 19 on."""
    feeds = {"x": IMAGE["x"].astype(np.float16)}
    nodes = [
        *(CONVOLUTION, RELU, helper.make_node("Flatten", ["r"], ["f"], "flat")),
        helper.make_node("Gemm", ["f", "v", "c"], ["y"], "dense"),
    ]
    shapes = {"w": (4, 3, 3, 3), "v": (144, 5), "c": (5,)}
    constants = [weight(name, *shape, kind=np.float16) for name, shape in shapes.items()]
    opsets = [helper.make_opsetid("", opset)]
    return model(nodes, feeds, [value("y", None, HALF)], constants, opsets=opsets), feeds


Z, Y = value("z", None), value("y", None)
ONNX = helper.make_opsetid("ai.onnx", 17)
NAMED = helper.make_node("Gemm", ["x", "w"], ["y"], "place", domain="ai.onnx")
OMITTED = helper.make_node("Gemm", ["x", "w", ""], ["y"], "place")
CASES: dict[str, tuple[onnx.ModelProto, Arrays]] = {
    "a branch reads the activation": (model([CONVOLUTION, RELU, branch("r")], BRANCH, [Z], [CONV]), BRANCH),
    "a branch reads the place beside its activation": (
        model([CONVOLUTION, RELU, branch("h")], BRANCH, [value("r", None), Z], [CONV]),
        BRANCH,
    ),
    "only a branch reads the place": (model([CONVOLUTION, branch("h")], BRANCH, [Z], [CONV]), BRANCH),
    "beta": (model([product(beta=0.5)], ROWS, [Y], PRODUCT), ROWS),
    "beta, of a bias that others read": (
        model([product(beta=2.0), helper.make_node("Neg", ["c"], ["z"])], ROWS, [Y, Z], PRODUCT),
        ROWS,
    ),
    "beta, of a bias with the name that it would get": (
        model(
            [helper.make_node("Gemm", ["x", "w", "y_bias"], ["y"], "place", beta=0.5)],
            ROWS,
            [Y],
            [PRODUCT[0], weight("y_bias", 5)],
        ),
        ROWS,
    ),
    "clip above zero": (clipped(0.5, 0.7), IMAGE),
    "clip above zero, of an old opset": (
        model(
            [CONVOLUTION, helper.make_node("Clip", ["h"], ["y"], "clip", min=0.5, max=0.7)],
            IMAGE,
            [Y],
            [CONV],
            opsets=[helper.make_opsetid("", 10)],
        ),
        IMAGE,
    ),
    "clip below zero": (clipped(-0.7, -0.5), IMAGE),
    "clip around zero": (clipped(-0.7, 0.5), IMAGE),
    "constants are inputs": (model([product()], ROWS, [Y], PRODUCT, ir=3), ROWS),
    "an input left out by an empty name": (model([OMITTED], ROWS, [Y], PRODUCT[:1]), ROWS),
    "the domain spelt out": (model([NAMED], ROWS, [Y], PRODUCT[:1], opsets=[ONNX]), ROWS),
    "16-bit floats of an opset whose Q/DQ takes none": halves(13),
    "16-bit floats of an opset whose Q/DQ takes them": halves(19),
    "an output is an input": (model([product()], ROWS, [value("x", (3, 6)), Y], PRODUCT), ROWS),
    "an output is a constant": (model([product()], ROWS, [Y, value("c", (5,))], PRODUCT), ROWS),
    "an output is the weight": (model([product()], ROWS, [value("w", (6, 5)), Y], PRODUCT), ROWS),
}
PLACEMENTS = {
    "place": {"nodes": ["place"]},
    "half": {"half": True},
    "dynamic": {"dynamic": True},
    "place and half": {"nodes": ["place"], "half": True},
}


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("case", CASES)
def test_what_is_rewritten_computes_the_same(case: str, placement: str, tmp_path: Path) -> None:
    made, feeds = CASES[case]
    source = tmp_path / "model.onnx"
    source.write_bytes(made.SerializeToString())
    names = [one.name for one in made.graph.output]
    wanted = run(source, feeds, as_written=True)
    files = calibrated(source, tmp_path, [feeds])
    changed = rewritten(files, tmp_path / "changed.onnx", **PLACEMENTS[placement])
    assert [one.name for one in onnx.load(changed).graph.output] == names
    for as_written in (True, False):
        found = run(changed, feeds, as_written)
        for name, array, one in zip(names, wanted, found, strict=True):
            assert np.linalg.norm(one - array) / np.linalg.norm(array) < 0.03, (name, as_written)


def test_a_model_in_16_bits_is_prepared_without_the_casts_of_a_cpu(tmp_path: Path) -> None:
    feeds = {"x": ROWS["x"].astype(np.float16)}
    constants = [weight("w", 6, 5, kind=np.float16), weight("c", 5, kind=np.float16)]
    source = tmp_path / "model.onnx"
    onnx.save(model([product()], feeds, [value("y", None, HALF)], constants), source)
    files = calibrated(source, tmp_path, [feeds])
    prepared = onnx.load(files["prepared"])
    assert [node.op_type for node in prepared.graph.node] == ["Gemm"]
    changed = rewritten(files, tmp_path / "changed.onnx", half=True)
    assert np.array_equal(run(changed, feeds), run(source, feeds))


@pytest.mark.parametrize("shape", [(6,), (2, 6, 5)])
def test_with_a_scale_for_each_channel_only_matrices_are_scaled_while_running(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    """The library's scales fit the columns of a matrix, and no runtime takes them for anything else."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"], "matrix"),
        helper.make_node("MatMul", ["x", "v"], ["z"], "other"),
    ]
    source = tmp_path / "model.onnx"
    onnx.save(model(nodes, ROWS, [Y, Z], [weight("w", 6, 5), weight("v", *shape)]), source)
    files = calibrated(source, tmp_path, [ROWS], per_channel=True)
    settings = Quantization(per_channel=True).settings("onnxruntime")
    changed = rewritten(files, tmp_path / "changed.onnx", settings=settings, dynamic=True)
    kinds = [node.op_type for node in onnx.load(changed).graph.node]
    assert kinds.count("MatMulInteger") == kinds.count("MatMul") == 1
    (scaled, left), (wanted, same) = run(changed, ROWS), run(source, ROWS)
    assert np.linalg.norm(scaled - wanted) / np.linalg.norm(wanted) < 0.03
    assert np.array_equal(left, same)


@pytest.mark.parametrize("placement", [*PLACEMENTS, "both"])
@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_the_rest_of_a_model_that_is_partly_quantised(form: str, placement: str, tmp_path: Path) -> None:
    """As the same library has written it: what is added must not take the names of what is there."""
    nodes = [
        *(CONVOLUTION, helper.make_node("Sigmoid", ["h"], ["s"], "sigmoid")),
        helper.make_node("Conv", ["s", "v"], ["t"], "second"),
        helper.make_node("Mul", ["t", "t"], ["m"], "square"),
        helper.make_node("Conv", ["m", "u"], ["y"], "third"),
    ]
    constants = [CONV, weight("v", 4, 4, 3, 3), weight("u", 4, 4, 1, 1)]
    whole = tmp_path / "whole.onnx"
    onnx.save(model(nodes, IMAGE, [Y], constants), whole)
    source = tmp_path / "model.onnx"
    quantize_static(
        whole,
        source,
        Reader(),
        quant_format=QuantFormat[form],
        nodes_to_exclude=["place", "third"],
    )
    wanted = run(source, IMAGE, as_written=True)
    files = calibrated(source, tmp_path, [IMAGE])
    asked = {"nodes": ["place", "third"]} if placement == "both" else PLACEMENTS[placement]
    changed = rewritten(files, tmp_path / "changed.onnx", **asked)
    onnx.checker.check_model(changed)
    if "nodes" in asked:
        kinds = [node.op_type for node in onnx.load(changed).graph.node]
        before = [node.op_type for node in onnx.load(source).graph.node]
        assert kinds.count("QuantizeLinear") > before.count("QuantizeLinear")
    for one, array in zip(run(changed, IMAGE), wanted, strict=True):
        assert np.linalg.norm(one - array) / np.linalg.norm(array) < 0.05


class Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self.feeds = iter([IMAGE])

    def get_next(self) -> Arrays | None:
        return next(self.feeds, None)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", ["x_scale", "x_QuantizeLinear_Output", "w_quantized", "x_zero_point"])
def test_tensors_that_are_called_as_what_is_added(name: str, placement: str, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w", "c"], [name], "place"),
        helper.make_node("Neg", [name], ["y"], "place_quant"),
    ]
    source = tmp_path / "model.onnx"
    onnx.save(model(nodes, ROWS, [Y], PRODUCT), source)
    files = calibrated(source, tmp_path, [ROWS])
    changed = rewritten(files, tmp_path / "changed.onnx", **PLACEMENTS[placement])
    (found,), (wanted,) = run(changed, ROWS), run(source, ROWS)
    assert np.linalg.norm(found - wanted) / np.linalg.norm(wanted) < 0.03


def test_trees_give_the_outputs_themselves_where_the_rest_has_16_bits(tmp_path: Path) -> None:
    """They compute in 32 bits and are left alone; what they give must not be taken for 16-bit floats."""
    tree = helper.make_node(
        "TreeEnsembleRegressor",
        ["h"],
        ["y"],
        "tree",
        domain="ai.onnx.ml",
        nodes_treeids=[0, 0, 0],
        nodes_nodeids=[0, 1, 2],
        nodes_featureids=[0, 0, 0],
        nodes_values=[0.0, 0.0, 0.0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[2, 0, 0],
        target_treeids=[0, 0],
        target_nodeids=[1, 2],
        target_ids=[0, 0],
        target_weights=[-1.5, 2.5],
        n_targets=1,
    )
    nodes = [helper.make_node("Gemm", ["x", "w", "c"], ["h"], "place"), tree]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    source = tmp_path / "model.onnx"
    onnx.save(model(nodes, ROWS, [Y], PRODUCT, opsets=opsets), source)
    changed = rewritten(calibrated(source, tmp_path, [ROWS]), tmp_path / "changed.onnx", half=True)
    assert np.array_equal(run(changed, ROWS)[0], run(source, ROWS)[0])


@pytest.mark.parametrize("maker", ["TopK", "QuantizeLinear"])
def test_casts_of_the_models_own_stay_where_the_rest_has_16_bits(maker: str, tmp_path: Path) -> None:
    """Behind an operator that is left alone, at an output: as detectors end."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], "place")]
    constants = [weight("w", 6, 5)]
    if maker == "TopK":
        nodes.append(helper.make_node("TopK", ["h", "k"], ["best", "at"], "top"))
        constants.append(numpy_helper.from_array(np.array([2]), "k"))
    else:
        nodes.append(helper.make_node("QuantizeLinear", ["h", "s", "n"], ["at"], "integers"))
        constants += [numpy_helper.from_array(np.float32(0.1), "s"), numpy_helper.from_array(np.int8(0), "n")]
    nodes.append(helper.make_node("Cast", ["at"], ["y"], "own", to=TensorProto.INT32))
    source = tmp_path / "model.onnx"
    onnx.save(model(nodes, ROWS, [value("y", None, TensorProto.INT32)], constants), source)
    changed = rewritten(calibrated(source, tmp_path, [ROWS]), tmp_path / "changed.onnx", half=True)
    (found,), (wanted,) = run(changed, ROWS), run(source, ROWS)
    assert found.dtype == np.int32 and np.abs(found - wanted).max() <= (0 if maker == "TopK" else 1)
