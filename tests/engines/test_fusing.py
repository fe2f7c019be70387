"""Fusing attention: the same outputs by fewer operators, also beside Q/DQ and 16-bit floats."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from routetune.tasks.engines import fusing
from routetune.tasks.engines.base import BuildError
from routetune.tasks.engines.heads import part_keys
from routetune.tasks.errors import BadInput
from routetune.tasks.targets import fusions

from tests.engines.attention import HEADS, HIDDEN, LAYERS, attention, inputs, saved
from tests.engines.rewriting import calibrated, rewritten
from tests.engines.test_qdq import quantised_nodes, run

FILES = dict[str, str]


@pytest.fixture
def files(tmp_path: Path) -> FILES:
    return calibrated(saved(tmp_path), tmp_path, [inputs()])


def operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def off(path: Path, tmp_path: Path) -> float:
    expected = run(saved(tmp_path), inputs())[0]
    return float(np.abs(run(path, inputs())[0] - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("joined", [False, True])
def test_attention_becomes_one_operator_and_computes_the_same(
    joined: bool, half: bool, tmp_path: Path
) -> None:
    files = calibrated(saved(tmp_path, joined), tmp_path, [inputs()])
    path = rewritten(files, tmp_path / "out.onnx", fused=True, half=half)
    found = operators(path)
    assert found["Softmax"] == 0 and found["Attention"] + found["MultiHeadAttention"] == 1
    [node] = [n for n in onnx.load(path).graph.node if n.op_type in ("Attention", "MultiHeadAttention")]
    assert node.domain == "com.microsoft"
    assert [a.i for a in node.attribute if a.name == "num_heads"] == [HEADS]
    assert off(path, tmp_path) < (5e-3 if half else 1e-6)


@pytest.mark.parametrize(
    ("sizes", "shape", "outputs", "parts"),
    [
        ((6, 4, 5), (2, 3, 5, 4), "y", True),
        ((6, 4, 5), (3, 2, 4, 5), "y", False),  # the two that were turned are mixed
        ((6, 4, 5), (6, 20, 1), "y", False),
        (("n", 4, 5), (-1, 3, 5, 4), "y", False),
        ((6, 0, 4), (2, 3, 4, 0), "y", False),  # in another place a 0 copies another size
        ((6, 4, 5), (2, 3, 5, 4), "yz", False),  # what was turned is read elsewhere too
    ],
)
def test_keys_are_parted_where_that_is_the_same(
    sizes: tuple[int | str, ...], shape: tuple[int, ...], outputs: str, parts: bool, tmp_path: Path
) -> None:
    nodes = [
        helper.make_node("Transpose", ["keys"], ["turned"], "turn", perm=[0, 2, 1]),
        helper.make_node("Reshape", ["turned", "shape"], ["y"], "part", allowzero=int(0 in shape)),
        helper.make_node("Identity", ["turned"], ["z"], "also"),
    ][: 1 + len(outputs)]
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, size) for name, size in some]
        for some in ([("keys", sizes)], [(name, None) for name in outputs])
    ]
    kept = [numpy_helper.from_array(np.array(shape), "shape")]
    model = onnx.shape_inference.infer_shapes(
        helper.make_model(helper.make_graph(nodes, "keys", *ends, kept), ir_version=9)
    )
    parted = onnx_ir.from_proto(model)
    part_keys(parted)
    onnx.save(model, tmp_path / "before.onnx")
    onnx.save(onnx_ir.to_proto(parted), tmp_path / "after.onnx")
    drawn = np.random.default_rng(5).standard_normal([6 if size == "n" else size for size in sizes])
    feeds = {"keys": drawn.astype(np.float32)}
    before, after = (run(tmp_path / f"{name}.onnx", feeds) for name in ("before", "after"))
    for expected, found in zip(before, after, strict=True):
        np.testing.assert_array_equal(found, expected)
    perms = {tuple(a.ints) for node in onnx_ir.to_proto(parted).graph.node for a in node.attribute}
    assert ((0, 1, 3, 2) in perms) == parts


def test_the_same_bytes_in_every_process(files: FILES, tmp_path: Path) -> None:
    """Its digest is kept, and the model written again when it is wanted."""
    told = f"from tests.engines.rewriting import rewritten; from pathlib import Path; rewritten({files!r}, "
    digests = set()
    for seed in ("1", "2"):
        path = tmp_path / f"{seed}.onnx"
        code = f"{told}Path({str(path)!r}), fused=True, half=True)"
        subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONHASHSEED": seed})
        digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
    assert len(digests) == 1


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_that_is_quantised_stays_so(layer: str, files: FILES, tmp_path: Path) -> None:
    plain = rewritten(files, tmp_path / "plain.onnx", (layer,))
    both = rewritten(files, tmp_path / "both.onnx", (layer,), fused=True)
    assert quantised_nodes(both) == {layer}
    assert operators(both).total() < operators(plain).total()
    found, expected = (run(path, inputs(), as_written=True)[0] for path in (both, plain))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_fused_operators_compute_in_16_bit_floats_too(files: FILES, tmp_path: Path) -> None:
    path = rewritten(files, tmp_path / "out.onnx", fused=True, half=True)
    found = operators(path)
    assert found["Softmax"] == 0 and found["Attention"] + found["MultiHeadAttention"] == 1
    assert found["Cast"] == 2  # of the input and the output of the model
    assert TensorProto.FLOAT not in {one.data_type for one in onnx.load(path).graph.initializer}
    assert 1e-6 < off(path, tmp_path) < 1e-2


def test_scales_found_while_running_stay_beside_it(files: FILES, tmp_path: Path) -> None:
    path = rewritten(files, tmp_path / "out.onnx", fused=True, dynamic=True)
    assert operators(path)["MatMulInteger"] == len(LAYERS)
    assert off(path, tmp_path) < 0.1


@pytest.mark.parametrize("layers", [LAYERS, ("query",)])
def test_q_dq_fusions_and_16_bit_floats_go_together(
    layers: tuple[str, ...], files: FILES, tmp_path: Path
) -> None:
    path = rewritten(files, tmp_path / "out.onnx", layers, fused=True, half=True)
    plain = rewritten(files, tmp_path / "plain.onnx", layers, half=True)
    assert quantised_nodes(path) == set(layers)
    assert operators(path)["Softmax"] == 0 and operators(path)["Cast"] <= operators(plain)["Cast"]
    np.testing.assert_allclose(run(path, inputs())[0], run(plain, inputs())[0], rtol=0, atol=0.02)


def test_a_model_with_nothing_to_fuse_stays_as_it_is() -> None:
    """Also where the library would fold or reorder some of it: a knob that does nothing gives one engine."""
    model = attention()
    others = {"Softmax": "LogSoftmax", "Mul": "Add"}
    for node in model.graph.node:
        node.op_type = others.get(node.op_type, node.op_type)
    del model.graph.node[-2:]
    model.graph.output[0].name = "merged"
    model.graph.node.append(helper.make_node("Identity", ["scale"], ["unused"], "unused"))
    before = model.SerializeToString(deterministic=True)
    for besides in ((), ("query", "merge")):
        assert fusing.fused(model, besides).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("ir_version", [3, 8])
def test_inputs_that_have_a_constant_stay_inputs(ir_version: int, tmp_path: Path) -> None:
    """In version 3 of the format every constant is one."""
    model = attention()
    shown = {"w_merge", "b_norm"} if ir_version > 3 else {one.name for one in model.graph.initializer}
    constants = {one.name: one for one in model.graph.initializer}
    for name in sorted(shown):
        one = constants[name]
        model.graph.input.insert(0, helper.make_tensor_value_info(name, one.data_type, list(one.dims)))
    model.ir_version = ir_version
    found = fusing.fused(model, ())
    names = [value.name for value in found.graph.input]
    assert "x" in names and {"w_merge", "b_norm"} <= set(names)
    assert names == [value.name for value in model.graph.input if value.name in names]
    assert set(names) - {"x"} <= {one.name for one in found.graph.initializer}
    onnx.save(found, tmp_path / "out.onnx")
    bias = np.full(HIDDEN, 7, np.float32)
    plain, moved = (run(tmp_path / "out.onnx", inputs() | more)[0] for more in ({}, {"b_norm": bias}))
    expected = run(saved(tmp_path), inputs())[0]
    np.testing.assert_allclose(plain, expected, atol=1e-5)
    stored = numpy_helper.to_array(constants["b_norm"])
    np.testing.assert_allclose(moved - plain, np.broadcast_to(bias - stored, plain.shape), atol=1e-5)


@pytest.mark.parametrize("inner", ["scores", "scaled", "shares", "mixed", "joined", "query_a", "sum"])
def test_outputs_keep_their_order_names_types_and_values(inner: str, tmp_path: Path) -> None:
    """Also those from the midst of what would be fused."""
    model = onnx.shape_inference.infer_shapes(attention())
    [value] = [one for one in model.graph.value_info if one.name == inner]
    model.graph.output.insert(0, value)
    onnx.save(model, tmp_path / "plain.onnx")
    found = fusing.fused(model, ())
    assert [one.SerializeToString() for one in found.graph.output] == [
        one.SerializeToString() for one in model.graph.output
    ]
    onnx.save(found, tmp_path / "fused.onnx")
    pairs = zip(run(tmp_path / "fused.onnx", inputs()), run(tmp_path / "plain.onnx", inputs()), strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_attention_inside_a_branch_computes_the_same(tmp_path: Path) -> None:
    model = attention()
    inside = onnx.GraphProto()
    inside.CopyFrom(model.graph)
    del inside.input[:]
    inside.output[0].name = "y"
    other = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["z"], "same")],
        "other",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, list(inputs()["x"].shape))],
    )
    branches = {"then_branch": inside, "else_branch": other}
    del model.graph.node[:], model.graph.initializer[:]
    model.graph.input.append(helper.make_tensor_value_info("which", TensorProto.BOOL, []))
    model.graph.node.append(helper.make_node("If", ["which"], ["y"], "if", **branches))
    onnx.save(model, tmp_path / "plain.onnx")
    onnx.save(fusing.fused(model, ()), tmp_path / "fused.onnx")
    for which in (True, False):
        fed = inputs() | {"which": np.array(which)}
        one, other_one = (run(tmp_path / name, fed)[0] for name in ("fused.onnx", "plain.onnx"))
        np.testing.assert_allclose(one, other_one, atol=1e-5)


def test_an_input_that_is_an_output_too_is_refused_by_name() -> None:
    model = attention()
    model.graph.output.append(model.graph.input[0])
    with pytest.raises(BuildError, match="input 'x' is an output too"):
        fusing.fused(model, ())


def test_without_the_library_it_is_refused_and_said_how_to_get_it(
    files: FILES, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fusions, "version", str)
    with pytest.raises(BadInput, match=r"pip install 'routetune\[fusions\]'"):
        rewritten(files, tmp_path / "out.onnx", fused=True)
