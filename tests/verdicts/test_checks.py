"""The worker's check on real engines: what is compared, and outputs that stand still."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from routetune.tasks.arrays import save_arrays
from routetune.tasks.engines import reference
from routetune.tasks.engines.base import BuildOrder
from routetune.tasks.engines.onnxruntime.backend import OnnxRuntime
from routetune.tasks.verdicts.accuracy import is_finite, judge
from routetune.tasks.verdicts.checks import check, try_metric
from routetune.tasks.verdicts.metrics import MetricError

COMPARING = {"atol": 1e-5, "rtol": 1e-5, "k": None, "outputs": {}}
Check = Callable[..., list[dict[str, Any]]]


def chain(*nodes: onnx.NodeProto, kind: int = TensorProto.FLOAT, **constants: Any) -> onnx.ModelProto:
    """A model from x[n] to y[m]."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    y = helper.make_tensor_value_info("y", kind, ["m"])
    weights = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(list(nodes), "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


RELU = chain(helper.make_node("Relu", ["x"], ["y"]))
ZERO = chain(helper.make_node("Mul", ["x", "zero"], ["y"]), zero=np.float32(0))
HALF = chain(helper.make_node("Mul", ["x", "mask"], ["y"]), mask=np.array([1, 0, 0, 0], np.float32))


@pytest.fixture
def run(tmp_path: Path) -> Check:
    """References of one model, and the check of an engine of another on them."""

    def call(
        wanted: onnx.ModelProto, found: onnx.ModelProto, *inputs: Any, roles: tuple[str, ...] = ()
    ) -> list[dict[str, Any]]:
        onnx.save(wanted, tmp_path / "wanted.onnx")
        onnx.save(found, tmp_path / "found.onnx")
        sets = []
        for at, values in enumerate(inputs):
            save_arrays(tmp_path / f"in{at}.npz", {"x": np.asarray(values, np.float32)})
            role = roles[at] if roles else "user"
            files = {"inputs": str(tmp_path / f"in{at}.npz"), "output": str(tmp_path / f"out{at}.npz")}
            sets.append({"name": f"set{at}", "role": role, "outputs": files["output"], **files})
        reference.make({"model": str(tmp_path / "wanted.onnx"), "plugins": []}, sets)
        engine = OnnxRuntime().build(BuildOrder(tmp_path / "found.onnx", {}, tmp_path / "engine"))
        fields = {name: getattr(engine, name) for name in ("digest", "size", "identity", "options")}
        return check("onnxruntime", fields, str(engine.path), "cpu", {}, sets, COMPARING)

    return call


def giving(*outputs: str, of: str = "Relu") -> onnx.ModelProto:
    """x[n] to these outputs, each with the same values; of int64 where the name says so."""
    names = [name.removesuffix(" as int64") for name in outputs]
    kinds = [TensorProto.INT64 if name.endswith("int64") else TensorProto.FLOAT for name in outputs]
    nodes = [helper.make_node(of, ["x"], ["r"])]
    nodes += [
        helper.make_node("Cast", ["r"], [name], to=kind) for name, kind in zip(names, kinds, strict=True)
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    found = [
        helper.make_tensor_value_info(name, kind, ["n"]) for name, kind in zip(names, kinds, strict=True)
    ]
    graph = helper.make_graph(nodes, "g", [x], found)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize(
    ("found", "named", "told"),
    [
        (giving("a"), "b", "missing"),
        (giving("a", "c"), "b", "'c'"),
        (giving("a", "b", "c"), "c", "not an output"),
        (giving("a", "b as int64"), "b", "int64"),
    ],
    ids=["missing", "renamed", "extra", "int64"],
)
def test_e32_engines_with_other_outputs_fail_whatever_the_tolerance(
    run: Check, found: onnx.ModelProto, named: str, told: str
) -> None:
    report = run(giving("a", "b"), found, [1, 2, 3], [4, 5, 6])
    for tolerance in (0.0, 1e9, math.inf):
        judged = judge(report, "lInf", tolerance)
        assert not judged.accepted and judged.output == named and told in judged.reason
    assert not is_finite(report)


def test_e32_outputs_are_told_apart_by_name_and_not_by_place(run: Check) -> None:
    assert judge(run(giving("a", "b"), giving("b", "a"), [1, 2, 3]), "lInf", 0.0).accepted


@pytest.mark.parametrize(
    ("reference_of", "blame", "told"),
    [
        ("Relu", "candidate", "at [1] (reference 0, candidate nan)"),
        ("Sqrt", "reference", "the reference is at fault"),
    ],
)
def test_e33_who_is_to_blame_for_what_is_not_a_number(
    run: Check, reference_of: str, blame: str, told: str
) -> None:
    """A root of -1 in the candidate alone, and in both at the same place."""
    report = run(giving("y", of=reference_of), giving("y", of="Sqrt"), [1, -1, 4])
    judged = judge(report, "lInf", 1e9)
    assert not judged.accepted and judged.blame == blame
    assert told in judged.reason and "[1]" in judged.reason


def stuck(report: list[dict[str, Any]]) -> list[Any]:
    return [one["outputs"]["y"].get("stuck") for one in report]


def test_an_engine_that_ignores_its_inputs_is_marked_on_every_set(run: Check) -> None:
    report = run(RELU, ZERO, [1, 2, 3, 4], [5, 6, 7, 8], [1, 2])
    assert stuck(report) == [["set0", "set1"]] * 3


def test_a_probe_is_not_judged_but_shows_it(run: Check) -> None:
    report = run(RELU, ZERO, [1, 2, 3, 4], [5, 6, 7, 8], roles=("user", "probe"))
    assert [one["set"] for one in report] == ["set0"] and stuck(report) == [["set0", "set1"]]


@pytest.mark.parametrize(
    ("found", "inputs"),
    [
        (RELU, ([1, 2, 3, 4], [5, 6, 7, 8])),
        (HALF, ([1, 2, 3, 4], [5, 6, 7, 8])),  # wrong, but not deaf
        (ZERO, ([1, 2, 3, 4], [5, 6, 7])),  # no two outputs of one shape
        (ZERO, ([-1, -2], [-3, -4])),  # the reference stands still too
        (ZERO, ([1, 2], [1 + 1e-6, 2])),  # the reference moves less than anyone asks for
    ],
)
def test_what_moves_or_need_not_move_is_not_marked(run: Check, found: Any, inputs: Any) -> None:
    assert stuck(run(RELU, found, *inputs)) == [None] * len(inputs)


@pytest.mark.parametrize(
    "name", ["BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2", "INT4", "UINT4", "FLOAT16", "BOOL"]
)
def test_every_small_type_is_made_kept_and_compared(run: Check, name: str) -> None:
    kind = TensorProto.DataType.Value(name)
    model = chain(helper.make_node("Cast", ["x"], ["y"], to=kind), kind=kind)
    [entry] = (one["outputs"]["y"] for one in run(model, model, [0, 1, 2, 3, 1]))
    assert entry["differing_bits"] == 0 and entry["losses"]["lInf"] == 0


def test_outputs_that_differ_in_another_process_are_named(tmp_path: Path) -> None:
    onnx.save(RELU, tmp_path / "m.onnx")
    save_arrays(tmp_path / "in.npz", {"x": np.ones(4, np.float32)})
    files = {"inputs": str(tmp_path / "in.npz"), "output": str(tmp_path / "out.npz")}
    sets = [{"name": "a", "role": "user", **files}]
    source = {"model": str(tmp_path / "m.onnx"), "plugins": []}
    [made] = reference.make(source, sets)
    looked = {"constant": ["y"], "single": [], "empty": [], "non_finite": []}
    assert made == {"name": "a", "unstable": [], **looked}
    assert reference.again(source, sets) == [{"name": "a", "unstable": []}]
    save_arrays(tmp_path / "out.npz", {"y": np.full(4, 2, np.float32)})
    assert reference.again(source, sets) == [{"name": "a", "unstable": ["y"]}]


def test_what_is_looked_for_in_every_type() -> None:
    bad = np.array([1, np.nan], np.float32)
    found = reference.look_at(
        {name: bad.astype(name) for name in ("float16", "float64")}
        | {"bf": bad.astype(ml_dtypes.bfloat16), "f8": bad.astype(ml_dtypes.float8_e5m2)}
        | {"ok": np.array([1, 2]), "same": np.zeros((2, 2), bool), "one": np.zeros(1), "none": np.zeros(0)}
    )
    broken = ["float16", "float64", "bf", "f8"]
    assert found == {"constant": ["same"], "single": ["one"], "empty": ["none"], "non_finite": broken}


def test_a_metric_that_draws_without_a_seed_is_refused(tmp_path: Path) -> None:
    import hashlib

    mine = tmp_path / "metric_that_draws.py"
    mine.write_text("import random\ndef loss(r, c, labels): return random.random()")
    save_arrays(tmp_path / "out.npz", {"y": np.ones(4, np.float32)})
    digest = hashlib.sha256(mine.read_bytes()).hexdigest()
    task = {"metric": "metric_that_draws:loss", "folder": str(tmp_path), "file": str(mine.resolve())}
    sets = [{"name": "a", "role": "user", "outputs": str(tmp_path / "out.npz"), "labels": None}]
    with pytest.raises(MetricError, match="for the same arrays; seed whatever it draws"):
        try_metric(sets, task | {"file_digest": digest})
