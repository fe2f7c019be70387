"""16-bit floats beside what must stay in 32: several nodes that read one tensor so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node
from onnxruntime.transformers import float16

from tests.engines.rewriting import Arrays, calibrated, rewritten
from tests.engines.test_qdq import run

#: Nodes that read one tensor in 32 bits twice: a constant of an operator that has some inputs in 16, a tensor
#: read by several operators that have none, and one that such an operator reads at two places.
SHARED = {
    "scales of two Resize": [
        make_node("Resize", ["x", "", "scales"], ["a"], "up"),
        make_node("Relu", ["a"], ["b"], "relu"),
        make_node("Resize", ["b", "", "scales"], ["y"], "again"),
    ],
    "two readers": [
        make_node("Relu", ["x"], ["a"], "relu"),
        make_node("CumSum", ["a", "axis"], ["b"], "along"),
        make_node("CumSum", ["a", "axis"], ["c"], "back", reverse=1),
        make_node("Add", ["b", "c"], ["y"], "add"),
    ],
    "read twice by one": [
        make_node("Relu", ["x"], ["a"], "relu"),
        make_node("Max", ["a", "a", "half"], ["b"], "max"),
        make_node("Min", ["b", "a"], ["y"], "min"),
    ],
    "beside outputs that are left out": [
        make_node("Squeeze", ["x", "first"], ["a"], "squeeze"),
        make_node("GRU", ["a", "weights", "weights"], ["", "b"], "gru", hidden_size=4),
        make_node("GRU", ["a", "weights", "weights"], ["", "c"], "back", hidden_size=4, direction="reverse"),
        make_node("Max", ["b", "c"], ["d"], "max"),
        make_node("Min", ["b", "d"], ["y"], "min"),
    ],
}
CONSTANTS: dict[str, Any] = {
    "scales": np.array([1, 1, 2, 2], np.float32),
    "half": np.array(0.5, np.float32),
    "axis": np.array(2, np.int64),
    "first": np.array([0], np.int64),
    "weights": np.linspace(-1, 1, 48, dtype=np.float32).reshape(1, 12, 4),
}


def model(case: str) -> onnx.ModelProto:
    """Types of constants are declared, as exporters of today do."""
    read = {name for node in SHARED[case] for name in node.input}
    constants = {name: value for name, value in CONSTANTS.items() if name in read}
    graph = helper.make_graph(
        SHARED[case],
        "shared",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
        value_info=[
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in constants.items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def inputs() -> Arrays:
    values = np.random.default_rng(7).permutation(32).reshape(1, 2, 4, 4) / 16 - 0.7  # no two are near
    return {"x": values.astype(np.float32)}


def _cast_for_each_reader(changed: onnx.ModelProto) -> onnx.ModelProto:
    """As the library wrote it before 1.32: each cast to 32 bits once for every place where it is read."""
    for cast in [node for node in changed.graph.node if node.name.endswith("_cast_to_fp32_node")]:
        places = [name for node in changed.graph.node for name in node.input if name == cast.output[0]]
        changed.graph.node.extend([cast] * (len(places) - 1))
        declared = [one for one in changed.graph.value_info if one.name == cast.output[0]]
        changed.graph.value_info.extend(declared[:1] * (len(places) - len(declared)))
    return changed


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("case", SHARED)
def test_what_several_read_in_32_bits_is_cast_once(
    case: str, older: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`older` injects what versions wrote that are not installed here; else it adds to them."""
    convert = float16.convert_float_to_float16

    def as_before(*args: Any, **named: Any) -> onnx.ModelProto:
        return _cast_for_each_reader(convert(*args, **named))

    if older:
        monkeypatch.setattr(float16, "convert_float_to_float16", as_before)
    onnx.save(model(case), tmp_path / "model.onnx")
    files = calibrated(tmp_path / "model.onnx", tmp_path, [inputs()])
    path = rewritten(files, tmp_path / "out.onnx", half=True)

    found = onnx.load(path)
    made = [name for node in found.graph.node for name in node.output if name]
    assert len(made) == len(set(made))
    declared = [one.name for one in found.graph.value_info]
    assert len(declared) == len(set(declared))
    constants = {one.name for one in found.graph.initializer if one.data_type == TensorProto.FLOAT}
    assert not [
        node.name for node in found.graph.node if node.op_type == "Cast" and node.input[0] in constants
    ]
    expected = run(tmp_path / "model.onnx", inputs())[0]
    assert np.abs(run(path, inputs())[0] - expected).max() < 5e-3
