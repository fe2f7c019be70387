from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from routetune.tasks.errors import BadInput
from routetune.tasks.targets.digest import model_digest


def digest(model: onnx.ModelProto, folder: Path, name: str = "m.onnx") -> str:
    (folder / name).write_bytes(model.SerializeToString())
    return model_digest(folder / name)


@pytest.fixture
def nested(make: SimpleNamespace) -> onnx.ModelProto:
    """A model with a constant, a table, branches and a function, each of which can carry documentation."""
    constant = helper.make_node(
        "Constant", [], ["k"], value=numpy_helper.from_array(np.ones(2, np.float32), "k")
    )
    branches = [
        helper.make_graph(
            [helper.make_node(op, ["x", "k"], [f"{op}_out"], name=op)], op, [], [make.value(f"{op}_out", [2])]
        )
        for op in ("Add", "Mul")
    ]
    choose = helper.make_node("If", ["c"], ["a"], then_branch=branches[0], else_branch=branches[1])
    function = helper.make_function(
        "acme",
        "Twice",
        ["p"],
        ["q"],
        [helper.make_node("Add", ["p", "p"], ["q"])],
        [helper.make_opsetid("", 17)],
    )
    model = make.build(
        [
            constant,
            choose,
            helper.make_node("Twice", ["a"], ["b"], domain="acme"),
            helper.make_node("Add", ["b", "w"], ["y"]),
        ],
        [make.value("x", [2]), make.value("c", [], TensorProto.BOOL)],
        [make.value("y", [2])],
        {"w": np.array([1, 2], np.float32)},
        domains={"acme": 1},
        functions=[function],
    )
    onnx.checker.check_model(model)
    assert isinstance(model, onnx.ModelProto)
    return model


def test_documentation_does_not_count_anywhere(tmp_path: Path, nested: onnx.ModelProto) -> None:
    before = digest(nested, tmp_path)
    nested.producer_name, nested.producer_version, nested.model_version = "p", "1", 7
    graph = nested.graph
    branch = graph.node[1].attribute[0].g
    for message in (
        nested,
        graph,
        branch,
        branch.node[0],
        branch.output[0],
        graph.node[0],
        graph.node[0].attribute[0].t,
        graph.input[0],
        graph.initializer[0],
        nested.functions[0],
        nested.functions[0].node[0],
    ):
        message.doc_string = "a doc"
        message.metadata_props.add(key="k", value="v")
    graph.node[1].attribute[0].doc_string = "a doc"
    assert digest(nested, tmp_path) == before


def rename_node(model: onnx.ModelProto) -> None:
    model.graph.node[1].attribute[0].g.node[0].name = "other"


def widen(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 3


def change_table(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].raw_data = np.array([1, 3], np.float32).tobytes()


def change_constant(model: onnx.ModelProto) -> None:
    model.graph.node[0].attribute[0].t.raw_data = np.array([1, 3], np.float32).tobytes()


def change_function(model: onnx.ModelProto) -> None:
    model.functions[0].node[0].op_type = "Mul"


def change_opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 18


def retype_table(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].data_type = TensorProto.INT32


@pytest.mark.parametrize(
    "change", [rename_node, widen, change_table, change_constant, change_function, change_opset, retype_table]
)
def test_everything_else_counts(
    tmp_path: Path, nested: onnx.ModelProto, change: Callable[[onnx.ModelProto], None]
) -> None:
    before = digest(nested, tmp_path)
    change(nested)
    assert digest(nested, tmp_path) != before


def test_typed_data_counts(tmp_path: Path, make: SimpleNamespace) -> None:
    found = set()
    for last in (2.0, 3.0):
        model = make.build(
            [helper.make_node("Add", ["x", "w"], ["y"])], [make.value("x", [2])], [make.value("y", [2])]
        )
        model.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, last]))
        found.add(digest(model, tmp_path))
    assert len(found) == 2


def test_sidecar_bytes_count(tmp_path: Path, make: SimpleNamespace) -> None:
    """A1: the .onnx file is the same, bytes 20-23 of the sidecar are not."""
    data = np.arange(4096, dtype=np.float32)
    data.tofile(tmp_path / "w.bin")
    before = digest(make.add_with_sidecar("w.bin"), tmp_path)
    with (tmp_path / "w.bin").open("r+b") as stream:
        stream.seek(20)
        stream.write(np.float32(99).tobytes())
    after = model_digest(tmp_path / "m.onnx")
    assert before != after
    data.tofile(tmp_path / "w.bin")
    assert model_digest(tmp_path / "m.onnx") == before


def test_only_the_bytes_that_a_tensor_names_count_and_not_where_they_lie(
    tmp_path: Path, make: SimpleNamespace
) -> None:
    data = np.arange(16, dtype=np.float32).tobytes()
    (tmp_path / "w.bin").write_bytes(data + b"other")
    (tmp_path / "v.bin").write_bytes(b"12345678" + data)
    first = digest(make.add_with_sidecar("w.bin", 16), tmp_path)
    (tmp_path / "w.bin").write_bytes(data + b"changed")
    assert model_digest(tmp_path / "m.onnx") == first
    assert digest(make.add_with_sidecar("v.bin", 16, offset=8), tmp_path) == first


def test_a_claimed_digest_is_not_mistaken_for_one(tmp_path: Path, make: SimpleNamespace) -> None:
    """A model may say anything in external_data; the bytes decide."""
    (tmp_path / "w.bin").write_bytes(bytes(64))
    honest = digest(make.add_with_sidecar("w.bin", 16), tmp_path)
    assert digest(make.add_with_sidecar("w.bin", 16, sha256="0" * 64), tmp_path) == honest


def test_a_missing_sidecar_is_an_error_and_no_digest(tmp_path: Path, make: SimpleNamespace) -> None:
    with pytest.raises(BadInput, match=r"w\.bin, which is missing"):
        digest(make.add_with_sidecar("w.bin"), tmp_path)


def test_the_same_from_any_directory_and_in_any_process(
    tmp_path: Path, make: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A2."""
    np.arange(4096, dtype=np.float32).tofile(tmp_path / "w.bin")
    expected = digest(make.add_with_sidecar("w.bin"), tmp_path)
    monkeypatch.chdir(tmp_path)
    assert model_digest("m.onnx") == expected
    program = (
        "import sys; from routetune.tasks.targets.digest import model_digest as d; print(d(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "m.onnx"],
        cwd="/",
        env={"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == expected


def test_the_same_shape_of_names_with_other_sizes_is_another_model(
    tmp_path: Path, make: SimpleNamespace
) -> None:
    """G43: Add on [3, 3] and Add on [4, 4]."""
    found = {
        digest(
            make.build(
                [helper.make_node("Add", ["x", "x"], ["y"])],
                [make.value("x", [n, n])],
                [make.value("y", [n, n])],
            ),
            tmp_path,
        )
        for n in (3, 4)
    }
    assert len(found) == 2


def test_the_digest_of_a_known_model_stays(tmp_path: Path) -> None:
    """A digest that changes unnoticed would make every published engine stale."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>'
        "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"
    )
    assert digest(model, tmp_path) == "e26b6f8ad084c075e2ca3df7e16615667c8ae6feef394ebe3dd27b03806a6911"
