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
from routetune.tasks.arrays import arrays_digest
from routetune.tasks.errors import BadInput
from routetune.tasks.targets.inputs import InputSet, input_sets, inputs_digest, timing_set
from routetune.tasks.targets.model import ModelInfo, inspect_model
from routetune.tasks.targets.schema import Target
from routetune.tasks.targets.variations import probes

MakeTarget = Callable[..., Target]
SHAPES = {"x": {"min": "1x2", "opt": "4x2", "max": "8x2"}, "i": {"min": "1", "opt": "4", "max": "8"}}


@pytest.fixture
def embedding(make: SimpleNamespace) -> onnx.ModelProto:
    """y = x + table[i], a table of two rows."""
    model = make.build(
        [helper.make_node("Gather", ["table", "i"], ["rows"]), helper.make_node("Add", ["x", "rows"], ["y"])],
        [make.value("x", ["n", 2]), make.value("i", ["n"], TensorProto.INT64)],
        [make.value("y", ["n", 2])],
        {"table": np.array([[1, 2], [3, 4]], np.float32)},
    )
    assert isinstance(model, onnx.ModelProto)
    return model


def arrays(n: int, **changes: Any) -> dict[str, Any]:
    base = {"x": np.ones((n, 2), np.float32), "i": np.arange(n) % 2}
    return {name: array for name, array in {**base, **changes}.items() if array is not None}


def sets_of(target: Target) -> tuple[list[InputSet], ModelInfo]:
    info = inspect_model(target)
    return input_sets(target, info), info


def refusal(target: Target) -> str:
    with pytest.raises(BadInput) as raised:
        sets_of(target)
    return str(raised.value)


def test_seeded_sets_and_corners(embedding: onnx.ModelProto, target: MakeTarget) -> None:
    wanted = target(embedding, shapes=SHAPES, reference={"samples": 2})
    sets, info = sets_of(wanted)
    shapes = {one.name: one.shapes["x"] for one in sets}
    assert shapes == {
        "seeded-p0-opt-0": (4, 2),
        "seeded-p0-opt-1": (4, 2),
        "seeded-p0-min": (1, 2),
        "seeded-p0-max": (8, 2),
    }
    assert all(one.role == "seeded" and list(one.arrays) == ["x", "i"] for one in sets)
    assert timing_set(wanted, info, sets).name == "seeded-p0-opt-0"
    again, _ = sets_of(wanted)
    assert [one.digest for one in again] == [one.digest for one in sets]
    assert len({one.digest for one in sets}) == 4
    session = onnxruntime.InferenceSession(info.path, providers=["CPUExecutionProvider"])
    for one in sets:
        assert session.run(None, one.arrays)[0].shape == one.shapes["x"]


def test_users_sets_come_first_and_corners_only_where_they_are_not(
    tmp_path: Path, embedding: onnx.ModelProto, target: MakeTarget
) -> None:
    (tmp_path / "other").mkdir()
    np.savez(tmp_path / "a.npz", **arrays(4), y=np.arange(4))
    np.savez(tmp_path / "other" / "a.npz", **arrays(8), y=np.arange(8))
    wanted = target(embedding, shapes=SHAPES, reference={"inputs": ["a.npz", "other/a.npz"], "labels": "y"})
    sets, info = sets_of(wanted)
    assert [(one.name, one.role) for one in sets] == [
        ("a", "user"),
        ("a-2", "user"),
        ("seeded-p0-min", "seeded"),
    ]
    assert sets[0].labels is not None
    assert sets[0].labels.tolist() == [0, 1, 2, 3]
    assert list(sets[0].arrays) == ["x", "i"]
    assert timing_set(wanted, info, sets) is sets[0]
    assert timing_set(wanted, info, sets[::-1]) is sets[0]
    drawn = input_sets(target(embedding, shapes=SHAPES), info)
    assert timing_set(wanted, info, [*drawn, *sets]) is sets[0]


def test_the_timed_profile_is_timed_seeded_where_no_user_set_has_its_shape(
    tmp_path: Path, embedding: onnx.ModelProto, target: MakeTarget
) -> None:
    np.savez(tmp_path / "a.npz", **arrays(3))
    heavy = {
        name: {
            "min": "1x2"[: 1 + 2 * (name == "x")],
            "opt": "6x2"[: 1 + 2 * (name == "x")],
            "max": "9x2"[: 1 + 2 * (name == "x")],
        }
        for name in SHAPES
    }
    profiles = [{"shapes": SHAPES}, {"weight": 2, "shapes": heavy}]
    wanted = target(embedding, profiles=profiles, reference={"inputs": "a.npz"})
    sets, info = sets_of(wanted)
    assert [one.name for one in sets] == [
        "a",
        "seeded-p0-min",
        "seeded-p0-opt",
        "seeded-p0-max",
        "seeded-p1-opt",
        "seeded-p1-max",
    ]
    assert timing_set(wanted, info, sets).shapes == {"x": (6, 2), "i": (6,)}


def test_a_model_of_fixed_shapes_needs_none(relu: onnx.ModelProto, target: MakeTarget) -> None:
    sets, _ = sets_of(target(relu))
    assert [(one.name, one.shapes) for one in sets] == [("seeded-p0-opt-0", {"x": (2, 3)})]


def test_a_model_without_inputs_has_one_empty_set(make: SimpleNamespace, target: MakeTarget) -> None:
    constant = helper.make_node(
        "Constant", [], ["y"], value=onnx.numpy_helper.from_array(np.zeros(2, np.float32))
    )
    sets, _ = sets_of(target(make.build([constant], [], [make.value("y", [2])])))
    assert [one.arrays for one in sets] == [{}]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"i": None}, "lacks the input 'i'"),
        ({"i": None, "ii": np.zeros(4, np.int64)}, "lacks the input 'i'"),
        ({"extra": np.zeros(4)}, "holds 'extra', which is neither an input of the model (x, i) nor named"),
        (
            {"x": np.ones((4, 2))},
            "'x' is an array of float64, but the model takes float32; convert it with .astype",
        ),
        ({"i": np.zeros(4, np.int32)}, "'i' is an array of int32, but the model takes int64"),
        # D30: shapes outside the profile.
        ({"x": np.ones((9, 2), np.float32)}, "'x': dimension 0 ('n') is 9, above the profile's max 8"),
        ({"i": np.zeros(0, np.int64)}, "'i': dimension 0 ('n') is 0, below the profile's min 1"),
        ({"x": np.ones((4, 3), np.float32)}, "'x': dimension 1 is 3, but the model fixes it to 2"),
        ({"x": np.ones(4, np.float32)}, "'x' has 1 dimensions, not 2"),
        (
            {"i": np.zeros(3, np.int64)},
            "'n' is one dimension of the model, but it is 4 in 'x' (dimension 0) and 3",
        ),
        # B12: an index outside the table.
        ({"i": np.array([0, 1, 5, 0])}, "invalid input for i: 5 is outside [0, 2)"),
        ({"i": np.array([0, 1, -3, 0])}, "invalid input for i: -3 is outside [0, 2)"),
    ],
)
def test_users_arrays_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, embedding: onnx.ModelProto, target: MakeTarget, changes: dict[str, Any], expected: str
) -> None:
    np.savez(tmp_path / "a.npz", **arrays(4, **changes))
    message = refusal(target(embedding, shapes=SHAPES, reference={"inputs": "a.npz"}))
    assert expected in message
    assert str(tmp_path / "a.npz") in message


def test_what_onnxruntime_takes_as_an_index_is_taken(
    tmp_path: Path, embedding: onnx.ModelProto, target: MakeTarget
) -> None:
    np.savez(tmp_path / "a.npz", **arrays(4, i=np.array([0, -1, -2, 1])))
    sets, info = sets_of(target(embedding, shapes=SHAPES, reference={"inputs": "a.npz"}))
    session = onnxruntime.InferenceSession(info.path, providers=["CPUExecutionProvider"])
    [found] = session.run(None, sets[0].arrays)
    assert found.tolist() == [[2, 3], [4, 5], [2, 3], [4, 5]]


def test_a_range_that_leaves_the_table_is_refused(embedding: onnx.ModelProto, target: MakeTarget) -> None:
    message = refusal(target(embedding, shapes=SHAPES, reference={"ranges": {"i": [7, 7]}}))
    assert "invalid input for i: 7 is outside [0, 2) drawn by reference.ranges of" in message


def test_a_slice_of_ids_is_not_held_against_the_table(
    tmp_path: Path, make: SimpleNamespace, target: MakeTarget
) -> None:
    """Only the first id is looked up, so the second may be anything."""
    ends = {"zero": np.array([0]), "one": np.array([1]), "table": np.zeros((2, 3), np.float32)}
    nodes = [
        helper.make_node("Slice", ["i", "zero", "one"], ["a"]),
        helper.make_node("Gather", ["table", "a"], ["y"]),
    ]
    model = make.build(nodes, [make.value("i", [2], TensorProto.INT64)], [make.value("y", [1, 3])], ends)
    np.savez(tmp_path / "a.npz", i=np.array([1, 9]))
    sets, _ = sets_of(target(model, reference={"inputs": "a.npz"}))
    assert sets[0].arrays["i"].tolist() == [1, 9]


def test_byte_order_and_layout_are_made_native(
    tmp_path: Path, embedding: onnx.ModelProto, target: MakeTarget
) -> None:
    odd = np.asfortranarray(np.arange(8, dtype=">f4").reshape(4, 2))
    np.savez(tmp_path / "a.npz", **arrays(4, x=odd))
    sets, _ = sets_of(target(embedding, shapes=SHAPES, reference={"inputs": "a.npz"}))
    found = sets[0].arrays["x"]
    assert found.dtype == np.float32
    assert found.dtype.isnative
    assert found.flags.c_contiguous
    assert found.tolist() == odd.tolist()


def test_labels_must_be_there(tmp_path: Path, embedding: onnx.ModelProto, target: MakeTarget) -> None:
    np.savez(tmp_path / "a.npz", **arrays(4))
    message = refusal(target(embedding, shapes=SHAPES, reference={"inputs": "a.npz", "labels": "y"}))
    assert "reference.labels = 'y' is not an array of" in message


def test_the_digest_of_arrays_covers_names_types_shapes_and_bytes_and_nothing_else() -> None:
    base = {"a": np.zeros((2, 3), np.float32), "b": np.arange(3)}
    same = [
        {"b": base["b"], "a": base["a"]},
        {"a": np.zeros((2, 3), ">f4"), "b": base["b"]},
        {"a": np.asfortranarray(base["a"]), "b": base["b"]},
    ]
    others = [
        {"a": base["a"], "c": base["b"]},
        {"a": base["a"].reshape(3, 2), "b": base["b"]},
        {"a": base["a"].view(np.int32), "b": base["b"]},
        {"a": base["a"], "b": np.array([0, 1, 3])},
        {"a": base["a"]},
        {"a": np.zeros((0, 3), np.float32), "b": base["b"]},
        {"a": np.array(["x"]), "b": base["b"]},
    ]
    digests = [arrays_digest(entry) for entry in [base, *same]]
    assert len(set(digests)) == 1
    assert len({arrays_digest(entry) for entry in [base, *others]}) == 1 + len(others)


def test_the_inputs_digest_tells_inputs_from_labels_and_ignores_the_container(
    tmp_path: Path, embedding: onnx.ModelProto, target: MakeTarget
) -> None:
    assert inputs_digest(target(embedding)) == {"inputs": None, "labels": None}
    wanted = target(embedding, reference={"inputs": "a.npz", "labels": "y"})
    np.savez(tmp_path / "a.npz", **arrays(4), y=np.zeros(4))
    first = inputs_digest(wanted)
    np.savez_compressed(tmp_path / "a.npz", y=np.zeros(4), **arrays(4))
    assert inputs_digest(wanted) == first
    np.savez(tmp_path / "a.npz", **arrays(4), y=np.ones(4))
    relabelled = inputs_digest(wanted)
    assert (relabelled["inputs"], relabelled["labels"] != first["labels"]) == (first["inputs"], True)
    np.savez(tmp_path / "a.npz", **arrays(5), y=np.zeros(4))
    assert inputs_digest(wanted)["inputs"] != first["inputs"]


@pytest.mark.parametrize("stem", ["seeded-p0-min", "seeded-p0-opt-0", "probe-0", "fresh-0"])
def test_a_users_set_never_has_the_name_of_a_drawn_one(
    stem: str, tmp_path: Path, embedding: onnx.ModelProto, target: MakeTarget
) -> None:
    """What is known of an input set is known by its name."""
    np.savez(tmp_path / f"{stem}.npz", **arrays(4))
    wanted = target(embedding, shapes=SHAPES, reference={"inputs": f"{stem}.npz"})
    sets, info = sets_of(wanted)
    names = [one.name for one in (*sets, *probes(wanted, info, sets))]
    assert len(set(names)) == len(names) and names[0] == f"user-{stem}"
