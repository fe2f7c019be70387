from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from routetune.tasks.engines.onnxruntime.runner import SessionRunner
from routetune.tasks.errors import BadInput
from routetune.tasks.targets.digest import model_digest
from routetune.tasks.targets.model import SUPPORTED, TensorInfo, inspect_model

MakeTarget = Callable[..., Any]


def refusal(target: Any) -> str:
    with pytest.raises(BadInput) as raised:
        inspect_model(target)
    return str(raised.value)


def test_what_intake_finds(tmp_path: Path, make: SimpleNamespace, target: MakeTarget) -> None:
    np.zeros(4, np.float32).tofile(tmp_path / "w.bin")
    model = make.build(
        [helper.make_node("Add", ["x", "w"], ["a"]), helper.make_node("Gather", ["t", "i"], ["b"])],
        [make.value("x", ["n", 4]), make.value("i", [3], TensorProto.INT64), make.value("t", [5, 2])],
        [make.value("a", ["n", 4]), make.value("b", [3, 2])],
        {"t": np.zeros((5, 2), np.float32)},
    )
    model.graph.initializer.append(make.add_with_sidecar("w.bin", 4).graph.initializer[0])
    info = inspect_model(target(model, shapes={"x": {"min": "1x4", "opt": "2x4", "max": "8x4"}}))
    assert info.path == tmp_path / "m.onnx"
    assert info.inputs == {"x": TensorInfo("x", "float32", ("n", 4)), "i": TensorInfo("i", "int64", (3,))}
    assert list(info.outputs) == ["a", "b"]
    assert info.operators == {"Add": 1, "Gather": 1}
    assert info.digest == model_digest(tmp_path / "m.onnx")
    assert info.size_bytes == (tmp_path / "m.onnx").stat().st_size + 16
    assert info.indices["i"].rows == 5
    [profile] = info.profiles
    assert profile.as_order() == {
        "i": {"min": [3], "opt": [3], "max": [3]},
        "x": {"min": [1, 4], "opt": [2, 4], "max": [8, 4]},
    }


def test_the_inputs_are_those_that_onnxruntime_asks_for(
    tmp_path: Path, make: SimpleNamespace, target: MakeTarget
) -> None:
    model = make.build(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [make.value("x", [2]), make.value("w", [2])],
        [make.value("y", [2])],
        {"w": np.zeros(2, np.float32)},
    )
    info = inspect_model(target(model))
    session = onnxruntime.InferenceSession(info.path, providers=["CPUExecutionProvider"])
    assert list(info.inputs) == [entry.name for entry in session.get_inputs()] == ["x"]


def test_dynamic_dimensions_without_shapes_are_named(make: SimpleNamespace, target: MakeTarget) -> None:
    """B11."""
    model = make.build(
        [helper.make_node("Reshape", ["x", "s"], ["y"])],
        [make.value("x", ["n", 3, "h"])],
        [make.value("y", [None, 16])],
        {"s": np.array([-1, 16])},
    )
    message = refusal(target(model))
    assert "must give min, opt and max for input 'x', whose dimensions 0 ('n'), 2 ('h') can vary" in message


def test_minus_one_is_a_dynamic_dimension_too(make: SimpleNamespace, target: MakeTarget) -> None:
    model = make.build(
        [helper.make_node("Relu", ["x"], ["y"])], [make.value("x", [-1, 2])], [make.value("y", [-1, 2])]
    )
    assert "input 'x', whose dimension 0 can vary" in refusal(target(model))
    info = inspect_model(target(model, shapes={"x": "3x2"}))
    assert info.inputs["x"].shape == (None, 2)


def test_outputs_of_one_name_are_refused(make: SimpleNamespace, target: MakeTarget) -> None:
    """B14."""
    model = make.build(
        [helper.make_node("Relu", ["x"], ["y"])], [make.value("x", [2])], [make.value("y", [2])] * 2
    )
    assert "several outputs of the name 'y'" in refusal(target(model))


@pytest.mark.parametrize("dtype", sorted(set(TensorProto.DataType.keys()) - {"UNDEFINED"}))
def test_types_are_supported_exactly_where_onnxruntime_runs_them(
    make: SimpleNamespace, target: MakeTarget, dtype: str
) -> None:
    """B17 (strings), B18 (bfloat16, beyond Polygraphy), and every other type: an Identity of it."""
    number = TensorProto.DataType.Value(dtype)
    model = make.build(
        [helper.make_node("Identity", ["x"], ["y"])],
        [make.value("x", [2], number)],
        [make.value("y", [2], number)],
        opset=21,
    )
    model.ir_version = 10
    wanted = target(model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(wanted.model, options, providers=["CPUExecutionProvider"])
        SessionRunner(session).infer({"x": np.zeros(2, helper.tensor_dtype_to_np_dtype(number))})
        runs = True
    except Exception:
        runs = False
    if dtype == "STRING":
        assert "input 'x' is of type string, " in refusal(wanted)
    elif runs or dtype in ("INT4", "UINT4"):  # onnxruntime quantises to them, but has no Identity
        assert inspect_model(wanted).inputs["x"].dtype in SUPPORTED
    else:
        assert f"input 'x' is of type {np.dtype(helper.tensor_dtype_to_np_dtype(number)).name}, " in refusal(
            wanted
        )


@pytest.mark.parametrize("role", ["input", "output"])
@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (lambda name: helper.make_tensor_sequence_value_info(name, TensorProto.FLOAT, [2]), "sequence"),
        (lambda name: helper.make_sparse_tensor_value_info(name, TensorProto.FLOAT, [2]), "sparse_tensor"),
        (
            lambda name: helper.make_value_info(name, helper.make_map_type_proto(TensorProto.INT64, TENSOR)),
            "map",
        ),
        (lambda name: helper.make_value_info(name, helper.make_optional_type_proto(TENSOR)), "optional"),
        (lambda name: helper.make_tensor_value_info(name, TensorProto.STRING, [2]), "string"),
    ],
    ids=["sequence", "sparse", "map", "optional", "string"],
)
def test_what_is_no_numeric_tensor_is_refused_by_name(
    make: SimpleNamespace, target: MakeTarget, role: str, kind: Any, word: str
) -> None:
    odd, plain = kind("odd"), make.value("plain", [2])
    inputs, outputs = ([odd], [plain]) if role == "input" else ([plain], [odd])
    node = helper.make_node("Identity", [inputs[0].name], [outputs[0].name])
    assert f"{role} 'odd' is of type {word}, " in refusal(target(make.build([node], inputs, outputs)))


TENSOR = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])


def test_output_types_left_out_are_inferred_where_possible(make: SimpleNamespace, target: MakeTarget) -> None:
    outputs = [onnx.ValueInfoProto(name="y"), onnx.ValueInfoProto(name="z")]
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("Gelu", ["x"], ["z"], domain="com.microsoft"),
    ]
    model = make.build(nodes, [make.value("x", [2])], outputs, domains={"com.microsoft": 1})
    info = inspect_model(target(model))
    assert (info.outputs["y"].dtype, info.outputs["y"].shape, info.outputs["z"].dtype) == (
        "float32",
        (2,),
        "",
    )
    onnxruntime.InferenceSession(info.path, providers=["CPUExecutionProvider"])


def test_an_input_without_a_type_is_refused(make: SimpleNamespace, target: MakeTarget) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    assert "input 'x' is of type not stated" in refusal(
        target(make.build([node], [onnx.ValueInfoProto(name="x")], [make.value("y", [2])]))
    )


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"engine": {"plugins": ["none.so"]}}, "engine.plugins names /"),
        ({"engine": {"plugins": ["p" * 300]}}, "engine.plugins names /"),
        ({"reference": {"ranges": {"xx": [0, 1]}}}, "reference.ranges names 'xx', which is not an input"),
        (
            {"reference": {"inputs": "a.npz", "labels": "x"}},
            "reference.labels = 'x' is an input of the model",
        ),
        ({"shapes": {"z": "2x3"}}, "'z' is not an input of the model"),
    ],
)
def test_names_in_the_target_must_fit_the_model(
    relu: onnx.ModelProto, target: MakeTarget, sections: dict[str, Any], expected: str
) -> None:
    assert expected in refusal(target(relu, **sections))


def test_a_range_for_booleans_is_refused(make: SimpleNamespace, target: MakeTarget) -> None:
    value = make.value("b", [2], TensorProto.BOOL)
    model = make.build(
        [helper.make_node("Not", ["b"], ["y"])], [value], [make.value("y", [2], TensorProto.BOOL)]
    )
    assert "the input is of type bool" in refusal(target(model, reference={"ranges": {"b": [0, 1]}}))


@pytest.mark.parametrize("name", ["none.onnx", "folder", "empty.onnx", "m" * 300])
def test_files_that_are_no_models_are_refused(tmp_path: Path, target: MakeTarget, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.onnx").write_bytes(b"")
    assert str(tmp_path / name) in refusal(target(name))


def test_an_unknown_operator_is_refused_before_anything_about_shapes(
    make: SimpleNamespace, target: MakeTarget
) -> None:
    """D29, through intake."""
    node = helper.make_node("MyOp", ["x"], ["y"], domain="acme")
    model = make.build([node], [make.value("x", ["n"])], [make.value("y", ["n"])], domains={"acme": 1})
    assert "operator 'MyOp' of domain 'acme' is unknown" in refusal(target(model))


def test_any_folder_and_file_name_and_any_working_directory(
    tmp_path: Path, make: SimpleNamespace, target: MakeTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A2, A9."""
    folder = tmp_path / "mod èle 士"
    folder.mkdir()
    np.zeros(4096, np.float32).tofile(folder / "w é.bin")
    (folder / "un modèle.onnx").write_bytes(make.add_with_sidecar("w é.bin").SerializeToString())
    wanted = target("mod èle 士/un modèle.onnx")
    first = inspect_model(wanted)
    monkeypatch.chdir("/")
    assert inspect_model(wanted) == first
