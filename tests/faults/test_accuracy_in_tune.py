"""Accuracy in real tunes: lazy engines, where references come from, and rules of the user's own."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from routetune.data import folder
from routetune.tasks.bench import open_bench
from routetune.tasks.errors import BadInput
from routetune.tasks.reference import make_references
from routetune.tasks.store import open_store
from routetune.tasks.targets.inputs import input_sets
from routetune.tasks.targets.model import inspect_model
from routetune.tasks.targets.schema import load_target
from routetune.tasks.targets.variations import probes

from tests.flows.test_prefect import tune as tune_here

HERE = Path(__file__).parent
Tune = Callable[..., dict[str, Any]]

TARGET = """
schema = 1
name = "checked"
model = "{model}"
backend = "{backend}"
{more}
[search]
routes = [{routes}]
algorithm = "full"
[timing]
seconds = 0.1
loads = 1
finalists = 2
confidence = 0.8
"""


def heavy() -> onnx.ModelProto:
    """A few milliseconds of matrix products, so that next to no time is told from little."""
    rng = np.random.default_rng(0)
    weight = (rng.standard_normal((1024, 1024)) / 32).astype(np.float32)
    names = [*(f"h{i}" for i in range(3)), "y"]
    nodes = []
    for before, after in zip(["x", *names], names, strict=False):
        nodes += [
            helper.make_node("MatMul", [before, "w"], [f"{after}_"]),
            helper.make_node("Tanh", [f"{after}_"], [after]),
        ]
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [128, 1024]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", sides[:1], sides[1:], [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """A target over `model`, or over the sample CNN with its inputs."""

    def call(
        more: str, *routes: str, model: onnx.ModelProto | None = None, backend: str = "onnxruntime"
    ) -> Path:
        if model is None:
            for name in ("models/digits_cnn.onnx", "inputs/digits.npz"):
                shutil.copy(folder() / name, tmp_path)
            more = '[shapes]\nx = "32x1x8x8"\n' + more
        else:
            onnx.save(model, tmp_path / "model.onnx")
        path = tmp_path / "checked.toml"
        fields = {"model": "model.onnx" if model else "digits_cnn.onnx", "backend": backend, "more": more}
        path.write_text(TARGET.format(routes=", ".join(map(json.dumps, routes)), **fields))
        return path

    return call


@pytest.fixture
def tune(routetune: Any, prefect_url: str) -> Tune:
    def call(target: Path, *arguments: str, code: int = 0, **variables: str) -> dict[str, Any]:
        python = {"PREFECT_API_URL": prefect_url, "PYTHONPATH": str(HERE)}
        process = routetune("tune", target, "--json", *arguments, **python, **variables)
        assert process.returncode == code, process.stderr
        assert "Traceback" not in process.stderr
        found: dict[str, Any] = json.loads(process.stdout)
        return found | {"stderr": process.stderr}

    return call


LAZY = "lazy_backend:LazyBackend"


def known(target: Path) -> Path:
    """The digests of all inputs of a run, as an engine that holds the answers would know them."""
    opened = load_target(target)
    model = inspect_model(opened)
    sets = input_sets(opened, model)
    digests = [
        hashlib.sha256(b"".join(one.arrays[name].tobytes() for name in sorted(one.arrays))).hexdigest()
        for one in [*sets, *probes(opened, model, sets)]
    ]
    path = target.parent / "known.json"
    path.write_text(json.dumps(digests))
    return path


@pytest.mark.slow
def test_engines_that_do_no_work_never_win_under_a_tolerance(write: Callable[..., Path], tune: Tune) -> None:
    rule = '[accuracy]\nmetric = "lInf"\ntolerance = 0.5'
    target = write(rule, "+lazy=[no|empty|skips|table]", model=heavy(), backend=LAZY)
    summary = tune(target, ORT_TEST_KNOWN=str(known(target)))
    trials = {trial["route"]: trial for trial in summary["trials"]}
    empty, skips, table = (trials[f"+lazy={way}"] for way in ("empty", "skips", "table"))
    assert empty["outcome"] == "inaccurate" and "'y' ignores the inputs" in empty["reason"]
    assert skips["outcome"] == "inaccurate" and "not finite" in skips["reason"]
    # Right on all that was checked, and only too fast: what it holds is found out on inputs it cannot know.
    assert table["outcome"] == "eligible" and table["speed"] > 50
    assert summary["route"] == ""
    why = summary["decision"]["explanations"]["+lazy=table"]
    assert "as if it did no work, and on fresh inputs output 'y'" in why


@pytest.mark.slow
def test_a_speed_that_is_true_wins_and_says_that_it_was_doubted(
    write: Callable[..., Path], tune: Tune
) -> None:
    rule = '[accuracy]\nmetric = "lInf"\ntolerance = 1e-3'
    summary = tune(write(rule, "+lazy=[no|fast]", model=heavy(), backend=LAZY))
    assert summary["route"] == "+lazy=fast"
    [doubt] = summary["accuracy"]["warnings"]
    assert "checked on inputs that it cannot know, and passed" in doubt


@pytest.mark.slow
def test_the_empty_engine_may_win_where_the_check_is_off_and_the_report_says_what_that_means(
    write: Callable[..., Path], tune: Tune, routetune: Any
) -> None:
    rule = '[accuracy]\ntolerance = "inf"'
    target = write(rule, "+lazy=[no|empty]", model=heavy(), backend=LAZY)
    summary = tune(target)
    assert summary["route"] == "+lazy=empty"
    doubts = " ".join(summary["accuracy"]["warnings"])
    for part in ("the accuracy check is off", "'y' ignores the inputs", "nothing was checked"):
        assert part in doubts
    shown = routetune("show", target, PYTHONPATH=str(HERE)).stdout
    assert shown.count("beware") == 3 and "the accuracy check is off" in shown


@pytest.mark.slow
def test_e39_what_is_published_is_what_was_checked_and_timed(
    write: Callable[..., Path], tune: Tune, store_folder: Path
) -> None:
    """Here every build of a route gives other outputs, so only the very engine has the loss that is told."""
    rule = '[accuracy]\nmetric = "lInf"\ntolerance = 0.6'
    target = write(rule, "-enable_mem_pattern=[on|off]", model=heavy(), backend="lazy_backend:MoodyBackend")
    opened = load_target(target)
    [one] = input_sets(opened, inspect_model(opened))
    plain = onnxruntime.SessionOptions()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    losses, built = [], []
    for arguments in ((), ("--refresh",)):
        summary = tune(target, *arguments)
        built.append([trial["loss"] for trial in summary["trials"]])
        outputs = []
        for model in (opened.model, summary["engine"]):
            session = onnxruntime.InferenceSession(model, plain, providers=["CPUExecutionProvider"])
            outputs.append(session.run(None, one.arrays)[0].astype(np.float64))
        losses.append(summary["accuracy"]["loss"])
        assert np.abs(outputs[1] - outputs[0]).max() == pytest.approx(losses[-1], rel=1e-3)
        keys = [entry.key for entry in open_store(store_folder).entries]
        checked = {key["engine"] for key in keys if key["stage"] == "accuracy"}
        assert summary["engine_digest"] in checked
    assert not set(built[0]) & set(
        built[1]
    )  # all anew; what was published first may have stayed all the same


METRIC = """
import numpy as np
def loss(reference, candidate, labels):
    [name] = reference
    assert labels is not None
    return {loss}
"""
DIGITS = '[reference]\ninputs = "digits.npz"\nlabels = "y"\n'


def test_a_metric_of_the_users_own(
    write: Callable[..., Path], tune: Tune, routetune: Any, tmp_path: Path, store_folder: Path
) -> None:
    rule = DIGITS + '[accuracy]\nmetric = "mine:loss"\ntolerance = 0.5'
    target = write(rule, "-graph_optimization_level=[disabled|all]")
    mine = tmp_path / "mine.py"
    mine.write_text(METRIC.format(loss="abs(reference[name] - candidate[name]).max() * 1e9"))
    first = tune(target)
    trials = {trial["route"]: trial for trial in first["trials"]}
    assert trials[""]["outcome"] == "inaccurate" and "mine:loss loss" in trials[""]["reason"]
    assert first["route"] == "-graph_optimization_level=disabled"

    mine.write_text(METRIC.format(loss="abs(reference[name] - candidate[name]).max()"))
    state = json.loads(routetune("status", target, "--json").stdout)["targets"][0]
    assert state["cost"] == "recheck" and state["changes"][0]["field"] == "target.accuracy.task.source"
    again = tune(target)
    assert again["counts"]["builds"] == 0 and again["counts"]["eligible"] == 2

    mine.write_text(METRIC.format(loss="float('nan')"))
    with pytest.raises(BadInput, match=r"'mine:loss' on input set 'digits' must give a number.*nan"):
        refer(target, store_folder)
    mine.write_text(METRIC.format(loss="1.0"))
    with pytest.raises(BadInput, match="nothing could pass"):
        refer(target, store_folder)


def refer(target: Path, store_folder: Path) -> None:
    """The first stage of a tune, which tries the metric before anything is built."""
    with open_bench(target, open_store(store_folder)) as bench:
        make_references.fn(bench, input_sets(bench.subject.target, bench.subject.model))  # type: ignore[attr-defined]


def test_the_drop_in_task_accuracy_is_the_constraint(
    write: Callable[..., Path], prefect_url: str, store_folder: Path
) -> None:
    rule = DIGITS + '[accuracy]\nmetric = "accuracy_drop"\ntolerance = 0'
    summary = tune_here(write(rule, "-graph_optimization_level=[disabled|all]"), store_folder)
    assert summary["counts"]["eligible"] == 2
    assert "accuracy_drop loss 0 <= tolerance 0" in summary["accuracy"]["verdict"]
    assert "over 32 rows" in summary["accuracy"]["verdict"]


@pytest.mark.slow
def test_references_of_the_default_engine_and_of_files(
    write: Callable[..., Path], tune: Tune, tmp_path: Path
) -> None:
    exact = "\n[accuracy]\ntolerance = 0"
    route = "-session.disable_prepacking=[0|1]"
    own = tune(write(DIGITS + 'source = "default-route"' + exact, route))
    default = next(trial for trial in own["trials"] if trial["route"] == "")
    assert default["outcome"] == "eligible" and "bit-identical" in default["reason"]

    session = onnxruntime.InferenceSession(tmp_path / "digits_cnn.onnx", providers=["CPUExecutionProvider"])
    [output] = session.run(None, {"x": np.load(tmp_path / "digits.npz")["x"]})
    name = session.get_outputs()[0].name
    np.savez(tmp_path / "saved.npz", **{name: output})
    saved = DIGITS + 'source = "saved.npz"' + exact
    found = tune(write(saved, route))
    default = next(trial for trial in found["trials"] if trial["route"] == "")
    assert default["outcome"] == "eligible" and found["counts"]["builds"] == 0
    np.savez(tmp_path / "saved.npz", **{name: output + 1})
    assert "not bit-identical" in tune(write(saved, route), code=4)["error"]


def random_beside(op: str) -> onnx.ModelProto:
    """y = relu(x), and an output that differs from run to run."""
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node(op, ["x"], ["noise"])]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 8]) for n in ("x", "y", "noise")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.slow
def test_an_output_of_chance_is_named_and_can_be_left_out(write: Callable[..., Path], tune: Tune) -> None:
    model = random_beside("RandomNormalLike")
    told = tune(write("", "-enable_mem_pattern=[on|off]", model=model), code=2)["error"]
    assert "'noise' differs between two runs" in told and "[accuracy.outputs.noise] ignore = true" in told
    rule = "[accuracy.outputs.noise]\nignore = true"
    assert tune(write(rule, "-enable_mem_pattern=[on|off]", model=model))["counts"]["eligible"] == 2
