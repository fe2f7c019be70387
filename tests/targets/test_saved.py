"""Saved reference outputs: npz and Polygraphy's JSON, and everything that may be wrong with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from routetune.tasks.errors import BadInput
from routetune.tasks.targets.inputs import input_sets
from routetune.tasks.targets.model import inspect_model
from routetune.tasks.targets.saved import saved_digest, saved_outputs

MakeTarget = Callable[..., Any]
Y = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def open_saved(tmp_path: Path, make: Any, target: MakeTarget) -> Callable[..., Any]:
    """What is saved in `source`, for a model of one dynamic input and one output."""

    def read(source: Any, inputs: int = 1, dtype: int = 1) -> Any:
        model = make.build(
            [onnx.helper.make_node("Cast", ["x"], ["y"], to=dtype)],
            [make.value("x", ["n", 3])],
            [make.value("y", ["n", 3], dtype)],
        )
        names = [f"x{i}.npz" for i in range(inputs)]
        for name in names:
            np.savez(tmp_path / name, x=Y)
        shapes = {"x": {"min": "1x3", "opt": "2x3", "max": "4x3"}}
        wanted = target(model, shapes=shapes, reference={"inputs": names, "source": source})
        info = inspect_model(wanted)
        return saved_outputs(wanted, info, input_sets(wanted, info))

    return read


def polygraphy(path: Path, *runs: tuple[str, list[dict[str, Any]]]) -> None:
    """Write a file with Polygraphy itself."""
    from polygraphy.comparator import RunResults

    results = RunResults()
    for runner, iterations in runs:
        results.add(iterations, runner_name=runner)
    results.save(str(path))


def test_npz_one_for_each_input_set(tmp_path: Path, open_saved: Callable[..., Any]) -> None:
    np.savez(tmp_path / "a.npz", y=Y)
    np.savez(tmp_path / "b.npz", y=Y + 1)
    found = open_saved(["a.npz", "b.npz"], inputs=2)
    assert list(found) == ["x0", "x1"]
    assert np.array_equal(found["x1"]["y"], Y + 1)


def test_polygraphy_json_holds_every_iteration(tmp_path: Path, open_saved: Callable[..., Any]) -> None:
    polygraphy(tmp_path / "o.json", ("onnxrt", [{"y": Y}, {"y": Y + 1}]))
    found = open_saved("o.json", inputs=2)
    assert np.array_equal(found["x0"]["y"], Y) and np.array_equal(found["x1"]["y"], Y + 1)


def test_bits_of_types_that_npz_has_no_name_for(tmp_path: Path, open_saved: Callable[..., Any]) -> None:
    value = Y.astype(ml_dtypes.bfloat16)
    for array in (value, value.view(np.uint16)):
        np.savez(tmp_path / "a.npz", y=array)
        found = open_saved("a.npz", dtype=onnx.TensorProto.BFLOAT16)["x0"]["y"]
        assert found.dtype == ml_dtypes.bfloat16 and found.tobytes() == value.tobytes()


def test_the_digest_is_of_the_contents(tmp_path: Path, relu: onnx.ModelProto, target: MakeTarget) -> None:
    wanted = target(relu, reference={"inputs": "x.npz", "source": "a.npz"}).reference
    with pytest.raises(BadInput, match=r"saved outputs .*does not exist"):
        saved_digest(wanted)
    np.savez(tmp_path / "a.npz", y=Y)
    plain = saved_digest(wanted)
    np.savez_compressed(tmp_path / "a.npz", y=Y)
    assert saved_digest(wanted) == plain
    np.savez(tmp_path / "a.npz", y=Y + 1)
    assert saved_digest(wanted) != plain
    assert saved_digest(target(relu).reference) is None


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"z": Y}, "'z' is not an output of the model"),
        ({}, "lack the output 'y'"),
        ({"y": Y, "z": Y}, "'z' is not an output of the model"),
        ({"y": Y.astype(np.float64)}, "'y' is an array of float64, but the model gives float32"),
        ({"y": Y[:1]}, r"shape \[1, 3\], but on input set 'x0' the model gives \[2, 3\]"),
        ({"y": Y[:, :2]}, r"the model gives \[2, 3\]"),
        ({"y": Y.reshape(6)}, r"shape \[6\]"),
    ],
)
def test_outputs_that_the_model_cannot_give_are_refused(
    tmp_path: Path, open_saved: Callable[..., Any], arrays: dict[str, Any], told: str
) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(BadInput, match=told):
        open_saved("a.npz")
    polygraphy(tmp_path / "o.json", ("onnxrt", [arrays]))
    with pytest.raises(BadInput, match=told):
        open_saved("o.json")


def test_counts_must_agree(tmp_path: Path, open_saved: Callable[..., Any]) -> None:
    np.savez(tmp_path / "a.npz", y=Y)
    with pytest.raises(BadInput, match=r"outputs of 1 input sets, but .* names 2"):
        open_saved("a.npz", inputs=2)
    polygraphy(tmp_path / "o.json", ("onnxrt", [{"y": Y}] * 3))
    with pytest.raises(BadInput, match="outputs of 3 input sets"):
        open_saved("o.json", inputs=2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "3",
        '{"polygraphy_class": "RunResults"}',
        '{"polygraphy_class": "RunResults", "lst": [["a", [{"outputs": {"y": 3}}]]]}',
        '{"polygraphy_class": "RunResults", "lst": [["a", [{"outputs": {"y": '
        '{"polygraphy_class": "ndarray", "array": "!"}}}]]]}',
        '{"polygraphy_class": "RunResults", "lst": [["a", [{"outputs": {"y": '
        '{"polygraphy_class": "ndarray", "array": "gASVCgAAAAAAAACMBHRlc3SULg=="}}}]]]}',  # a pickle
        '{"polygraphy_class": "RunResults", "lst": [["a", [{"outputs": {"y": '
        '{"polygraphy_class": "Tensor", "tensor": ""}}}]]]}',
        "[" * 100_000,
    ],
)
def test_what_is_no_run_results_is_refused(tmp_path: Path, open_saved: Callable[..., Any], text: str) -> None:
    (tmp_path / "o.json").write_text(text)
    with pytest.raises(BadInput, match="saved outputs"):
        open_saved("o.json")


def test_other_files_of_polygraphy_and_several_runners_are_named(
    tmp_path: Path, open_saved: Callable[..., Any]
) -> None:
    (tmp_path / "o.json").write_text(json.dumps({"polygraphy_class": "AccuracyResult", "lst": []}))
    with pytest.raises(BadInput, match="AccuracyResult"):
        open_saved("o.json")
    polygraphy(tmp_path / "o.json", ("onnxrt", [{"y": Y}]), ("trt", [{"y": Y}]))
    with pytest.raises(BadInput, match=r"of 2 runners \(onnxrt, trt\)"):
        open_saved("o.json")
