"""Rewriting for a placement: Q/DQ exactly where they are asked for, as ONNX Runtime's own tool puts them."""

from __future__ import annotations

import hashlib
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from routetune.data import folder
from routetune.tasks.engines import qdq
from routetune.tasks.engines.base import BuildError
from routetune.tasks.engines.calibration import prepare
from routetune.tasks.targets.quantization import Quantization

from tests.engines import attention
from tests.engines.rewriting import SETTINGS, Arrays, calibrated, digits, rewritten

DIGITS = folder() / "models" / "digits_cnn.onnx"
PLACES = ("conv1", "conv2", "conv3", "classifier")


class Reader:
    def __init__(self, feeds: list[Arrays]) -> None:
        self.feeds = iter(feeds)

    def get_next(self) -> Arrays | None:
        return next(self.feeds, None)


def layers(opset: int = 17, **attributes: Any) -> onnx.ModelProto:
    """Conv + Relu, a Conv without, a Gemm + Relu, and a MatMul; weights of a fixed seed, dynamic batch."""
    rng = np.random.default_rng(5)

    def weight(name: str, *shape: int) -> TensorProto:
        scale = np.sqrt(np.prod(shape[1:]) or 1)
        return numpy_helper.from_array((rng.standard_normal(shape) / scale).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "second"),
        helper.make_node("Flatten", ["c2"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["g"], "dense", transB=1),
        helper.make_node("Relu", ["g"], ["r2"], "relu2"),
        helper.make_node("MatMul", ["r2", "w4"], ["y"], "last"),
    ]
    weights = [
        *(weight("w1", 8, 1, 3, 3), weight("b1", 8), weight("w2", 8, 8, 3, 3)),
        *(weight("w3", 32, 288), weight("b3", 32), weight("w4", 32, 10)),
    ]
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def stuck() -> onnx.ModelProto:
    """The same in an old opset, with a normalisation that later ones do not have any more."""
    model = layers(opset=8)
    constants = ["one", "zero", "zero", "one"]
    model.graph.node.append(
        helper.make_node("BatchNormalization", ["c2", *constants], ["n"], "norm", spatial=0)
    )
    for name, value in (("one", 1), ("zero", 0)):
        array = np.full((8, 6, 6), value, np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    model.graph.output.append(helper.make_tensor_value_info("n", TensorProto.FLOAT, ["batch", 8, 6, 6]))
    return model


def inputs(*sizes: int) -> list[Arrays]:
    rng = np.random.default_rng(6)
    return [{"x": rng.standard_normal((size, 1, 8, 8)).astype(np.float32)} for size in sizes or (16,)]


def run(path: Path, feeds: Arrays, as_written: bool = False) -> list[np.ndarray[Any, Any]]:
    """What a model computes; `as_written`: without operators of integers, whose sums saturate on some
    processors (x86 without VNNI)."""
    options = onnxruntime.SessionOptions()
    if as_written:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    results: list[np.ndarray[Any, Any]] = onnxruntime.InferenceSession(
        path, options, providers=["CPUExecutionProvider"]
    ).run(None, feeds)
    return results


def quantised_nodes(path: Path) -> set[str]:
    """Nodes whose data and weights both come out of a DequantizeLinear."""
    model = onnx.load(path)
    made = {name: node.op_type for node in model.graph.node for name in node.output}
    return {
        node.name
        for node in model.graph.node
        if node.op_type in ("Conv", "Gemm", "MatMul")
        and [made.get(name) for name in node.input[:2]] == ["DequantizeLinear"] * 2
    }


def test_a_rewrite_that_breaks_off_leaves_nothing_under_the_name_of_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there is built from. The fault is injected between two libraries, of which one writes files."""
    files, output = calibrated(DIGITS, tmp_path), tmp_path / "out.onnx"

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(qdq, "_half", broken)
    with pytest.raises(BuildError, match="cannot be rewritten so: broken"):
        rewritten(files, output, dynamic=True, half=True)
    assert not output.exists()
    monkeypatch.undo()
    rewritten(files, output, dynamic=True, half=True)
    assert {file.name for file in tmp_path.glob("out.onnx*")} == {"out.onnx"}


@pytest.mark.parametrize(
    "file", ["out.onnx.part", "out.onnx.scratch", "calibration.prepared", "calibration.ranges"]
)
def test_a_full_disk_says_nothing_of_the_model(file: str, tmp_path: Path) -> None:
    """It is no BuildError, which would be kept as the model's own."""
    full = tmp_path / file
    if file.startswith("calibration"):
        full.symlink_to("/dev/full")
        with pytest.raises(OSError, match="No space left"):
            calibrated(DIGITS, tmp_path)
        return
    files = calibrated(DIGITS, tmp_path)
    full.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        rewritten(files, tmp_path / "out.onnx", ("conv1",), dynamic=True)


def test_8_bits_while_running_and_q_dq_share_an_input(tmp_path: Path) -> None:
    """Both libraries make up names for the scale of a tensor, and the same ones."""
    files = calibrated(attention.saved(tmp_path), tmp_path, [attention.inputs()])
    path = rewritten(files, tmp_path / "out.onnx", ("query",), dynamic=True)
    found = onnx.load(path)
    assert quantised_nodes(path) == {"query"}
    assert sum(node.op_type == "MatMulInteger" for node in found.graph.node) == 3
    names = [name for node in found.graph.node for name in node.output]
    names += [one.name for one in found.graph.initializer]
    assert len(names) == len(set(names))
    expected = run(attention.saved(tmp_path), attention.inputs())[0]
    assert np.abs(run(path, attention.inputs())[0] - expected).max() < 0.1 * np.abs(expected).max()


def test_every_placement_has_qdq_exactly_where_it_was_asked_for(tmp_path: Path) -> None:
    files = calibrated(DIGITS, tmp_path)
    digests, losses = set(), {}
    expected = run(DIGITS, digits())[0]
    for count in range(5):
        for nodes in combinations(PLACES, count):
            path = rewritten(files, tmp_path / "out.onnx", nodes)
            assert quantised_nodes(path) == set(nodes)
            digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
            losses[nodes] = float(np.abs(run(path, digits())[0] - expected).max())
    assert len(digests) == 16
    assert losses[()] < 1e-4 < min(loss for nodes, loss in losses.items() if nodes)
    assert max(losses.values()) < 1


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(
    ("nodes", "followed"),
    [
        (["first"], ["first", "relu"]),
        (["second", "last"], ["second", "last"]),
        (["first", "second", "dense", "last"], ["first", "relu", "second", "dense", "relu2", "last"]),
    ],
    ids=["one", "two", "all"],
)
def test_outputs_are_those_of_the_libraries_own_tool(
    nodes: list[str], followed: list[str], per_channel: bool, tmp_path: Path
) -> None:
    """Calibrated once and emitted, against one whole call of quantize_static."""
    from onnxruntime.quantization import QuantType, quantize_static

    onnx.save(layers(), tmp_path / "m.onnx")
    quantize_static(
        tmp_path / "m.onnx",
        tmp_path / "direct.onnx",
        Reader(inputs()),
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=per_channel,
        nodes_to_quantize=followed,
        extra_options={"OpTypesToExcludeOutputQuantization": ["MatMul"]},
    )
    files = calibrated(tmp_path / "m.onnx", tmp_path, inputs(), per_channel)
    settings = Quantization(per_channel=per_channel).settings("onnxruntime")
    ours = rewritten(files, tmp_path / "ours.onnx", nodes, settings)
    for feeds in inputs(4, 9):
        assert np.array_equal(run(ours, feeds)[0], run(tmp_path / "direct.onnx", feeds)[0])


def test_the_users_files_stay_as_they_are_and_sidecars_do_not_grow(tmp_path: Path) -> None:
    source, work = tmp_path / "source", tmp_path / "work"
    source.mkdir()
    work.mkdir()
    onnx.save_model(
        layers(), source / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    onnx.save(layers(), work / "inline.onnx")
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    files = calibrated(source / "m.onnx", work, inputs())
    outputs = [rewritten(files, work / f"{node}.onnx", [node]) for node in ("first", "dense")]
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before
    assert {path.suffix for path in work.iterdir()} == {".onnx", ".npz", ".prepared", ".ranges"}
    inline = calibrated(work / "inline.onnx", work, inputs())
    for path in outputs:
        twin = rewritten(inline, work / "twin.onnx", [path.stem])
        assert np.array_equal(run(path, inputs()[0])[0], run(twin, inputs()[0])[0])


def test_a_model_of_more_than_one_file_can_hold_is_refused_before_it_is_read(tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    onnx.save_model(layers(), source, save_as_external_data=True, location="w.bin", size_threshold=0)
    model = onnx.load(source, load_external_data=False)
    (length,) = (one for one in model.graph.initializer[0].external_data if one.key == "length")
    length.value = str(2**31)
    onnx.save(model, source)
    with pytest.raises(BuildError, match=f"one ONNX file holds at most {2**31 - 1}"):
        prepare(source, tmp_path / "prepared", per_channel=False)


def test_dynamic_integers_are_those_of_the_libraries_own_tool(tmp_path: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic

    onnx.save(layers(), tmp_path / "m.onnx")
    quantize_dynamic(tmp_path / "m.onnx", tmp_path / "direct.onnx", op_types_to_quantize=["MatMul"])
    files = calibrated(tmp_path / "m.onnx", tmp_path, inputs())
    ours = rewritten(files, tmp_path / "ours.onnx", dynamic=True)
    operators = [node.op_type for node in onnx.load(ours).graph.node]
    assert operators.count("MatMulInteger") == 2 and "Gemm" not in operators
    assert np.array_equal(run(ours, inputs()[0])[0], run(tmp_path / "direct.onnx", inputs()[0])[0])


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("nodes", [[], ["second"], ["dense"], ["first", "dense", "last"]], ids=len)
def test_places_go_together(nodes: list[str], dynamic: bool, half: bool, tmp_path: Path) -> None:
    """Each changes what the others leave; inputs and outputs keep names, types and, nearly, values."""
    onnx.save(layers(), tmp_path / "m.onnx")
    files = calibrated(tmp_path / "m.onnx", tmp_path, inputs())
    path = rewritten(files, tmp_path / "out.onnx", nodes, dynamic=dynamic, half=half)
    model = onnx.load(path)
    onnx.checker.check_model(model)
    named = {name.removesuffix("_MatMul") for name in quantised_nodes(path)}
    assert named == set(nodes)
    integers = sum(node.op_type == "MatMulInteger" for node in model.graph.node)
    assert integers == (len({"dense", "last"} - set(nodes)) if dynamic else 0)
    halves = {node.name for node in model.graph.node if node.op_type == "Cast"}
    assert bool(halves) == half or dynamic  # which casts what it multiplied back to floats
    [output] = run(path, inputs()[0])
    [expected] = run(tmp_path / "m.onnx", inputs()[0])
    assert output.dtype == np.float32
    loss = float(np.abs(output - expected).max()) / float(np.abs(expected).max())
    assert (0 < loss < 0.1) == bool(nodes or dynamic or half)


@pytest.mark.parametrize("method", ["entropy", "percentile"])
def test_other_methods_find_other_ranges(method: str, tmp_path: Path) -> None:
    onnx.save(layers(), tmp_path / "m.onnx")
    feeds = inputs(16, 3)  # of several shapes, with one wild value
    feeds[0]["x"][0, 0, 0, 0] = 40
    found = []
    for name in ("minmax", method):
        place = tmp_path / name
        place.mkdir()
        files = calibrated(tmp_path / "m.onnx", place, feeds, method=name)
        found.append(rewritten(files, place / "out.onnx", ["first", "second"]))
    assert quantised_nodes(found[1]) == {"first", "second"}
    assert not np.array_equal(run(found[0], inputs()[0])[0], run(found[1], inputs()[0])[0])


def test_old_opsets_are_raised_or_named(tmp_path: Path) -> None:
    old = layers(opset=9)
    onnx.save(old, tmp_path / "old.onnx")
    files = calibrated(tmp_path / "old.onnx", tmp_path, inputs())
    path = rewritten(files, tmp_path / "out.onnx", ["second"], SETTINGS)
    assert quantised_nodes(path) == {"second"}
    onnx.save(stuck(), tmp_path / "stuck.onnx")
    with pytest.raises(BuildError, match=r"opset 8 and cannot be converted to 13.*export it for opset 13"):
        calibrated(tmp_path / "stuck.onnx", tmp_path, inputs())
