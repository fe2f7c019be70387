"""Faults inside trials of a real tune: each is named and excluded, the others finish, the run ends well."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from routetune.tasks.store import open_store

from tests.engines import faulty_models

HERE = Path(__file__).parent


def doubling() -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [64])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def answer(process: Any, code: int = 0) -> dict[str, Any]:
    assert process.returncode == code, process.stderr
    found: dict[str, Any] = json.loads(process.stdout)
    return found


def by_route(summary: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {trial["route"]: trial for trial in summary["trials"]}


def test_one_knob_aborts_one_hangs_one_makes_nan(
    write_target: Callable[..., Path], routetune: Any, prefect_url: str
) -> None:
    routes = [f"{name}=[0|1]" for name in (fault.partition("=")[0] for fault in faulty_models.FAULTS)]
    routes += ["-enable_mem_pattern=[on|off]", "-MatMulAddFusion=[on|off]"]
    target = write_target(faulty_models.three_faults(), routes, trial_seconds=4)
    summary = answer(routetune("tune", target, "--json", PREFECT_API_URL=prefect_url))
    trials = by_route(summary)
    outcomes = {"SIGFPE": "crashed", "hang": "timed out", "NaN": "inaccurate"}
    for route, (fault, _) in faulty_models.FAULTS.items():
        assert trials[route]["outcome"] == outcomes[fault], trials[route]
    assert "SIGFPE" in trials["-session.disable_quant_qdq=1"]["reason"]
    assert "finite" in trials["-optimization.enable_gelu_approximation=1"]["reason"]
    healthy = [route for route in trials if route not in faulty_models.FAULTS]
    assert len(healthy) == 3 and all(trials[route]["outcome"] == "eligible" for route in healthy)
    assert {one["route"] for one in summary["excluded"]} == set(faulty_models.FAULTS)

    # Only what says something of the route is kept: the time-out is tried again, the crash is not.
    again = by_route(answer(routetune("tune", target, "--force", "--json", PREFECT_API_URL=prefect_url)))
    assert "build" not in again["-optimization.enable_cast_chain_elimination=1"]["cached"]
    assert "build" in again["-session.disable_quant_qdq=1"]["cached"]


def test_injected_ends_of_the_worker(
    write_target: Callable[..., Path], routetune: Any, prefect_url: str, store_folder: Path
) -> None:
    """D25: a real SIGSEGV; D26: an exit without a result and an empty engine; D27: a SIGKILL."""
    faults = {
        "segfault": ("crashed", "SIGSEGV"),
        "exit": ("failed", "no result"),
        "empty": ("failed", "empty engine"),
        "sigkill": ("killed", "SIGKILL"),
        "stubborn": ("timed out", "4 s"),
    }
    routes = [f"+fault=[none|{'|'.join(faults)}]", "-enable_mem_pattern=[on|off]"]
    target = write_target(doubling(), routes, backend="faulty_backend:FaultyBackend", trial_seconds=4)
    process = routetune("tune", target, "--json", PREFECT_API_URL=prefect_url, PYTHONPATH=str(HERE))
    trials = by_route(answer(process))
    for fault, (outcome, reason) in faults.items():
        trial = trials[f"+fault={fault}"]
        assert trial["outcome"] == outcome and reason in trial["reason"], trial
    assert trials["-enable_mem_pattern=off"]["outcome"] == "eligible"
    store = open_store(store_folder)
    kept = [e.value for e in store.entries if e.key["stage"] == "build" and "failure" in e.value]
    assert {value["failure"]["outcome"] for value in kept} == {"crashed"}, "an empty engine is no result"


def test_a_model_that_cannot_run_is_one_error_not_many(
    write_target: Callable[..., Path], routetune: Any, prefect_url: str
) -> None:
    model = faulty_models.never_ends()
    target = write_target(model, ["-enable_mem_pattern=[on|off] -enable_mem_reuse=[on|off]"], trial_seconds=3)
    process = routetune("tune", target, PREFECT_API_URL=prefect_url)
    assert process.returncode == 2, process.stderr
    assert "reference" in process.stderr and "did not end within 3 s" in process.stderr
    assert "Traceback" not in process.stderr


def test_an_operator_nobody_knows_is_refused_before_anything_starts(
    write_target: Callable[..., Path], routetune: Any
) -> None:
    model = doubling()
    model.graph.node[0].op_type, model.graph.node[0].domain = "MyOp", "acme"
    model.opset_import.append(helper.make_opsetid("acme", 1))
    process = routetune("tune", write_target(model, ["-enable_mem_pattern=[on|off]"]))
    assert process.returncode == 2
    assert process.stderr.count("MyOp") == 1 and "acme" in process.stderr
    assert "Traceback" not in process.stderr


def test_names_and_working_directories_do_not_matter(
    write_target: Callable[..., Path],
    routetune: Any,
    prefect_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A2, A9."""
    target = write_target(doubling(), ["-enable_mem_pattern=[on|off]"])
    place = tmp_path / "a b" / "mod èle 士"
    place.mkdir(parents=True)
    for name in ("model.onnx", "faulty.toml"):
        (tmp_path / name).rename(place / name)
    monkeypatch.chdir(place)
    here = answer(routetune("tune", target.name, "--json", PREFECT_API_URL=prefect_url))
    monkeypatch.chdir("/")
    there = answer(routetune("tune", place / target.name, "--json"))
    assert there["note"] == "fresh, nothing to do"
    assert there["engine_digest"] == here["engine_digest"]


@pytest.mark.slow
def test_a_machine_that_breaks_stops_the_run_and_blames_no_route(
    write_target: Callable[..., Path], routetune: Any, prefect_url: str, store_folder: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    target = write_target(
        doubling(),
        ["+breaks=[no|yes] -enable_mem_pattern=[on|off] -enable_mem_reuse=[on|off]"],
        backend="faulty_backend:BreakingBackend",
        algorithm="full",
    )
    variables = {"PREFECT_API_URL": prefect_url, "PYTHONPATH": str(HERE), "ORT_TEST_BROKEN": str(broken)}
    process = routetune("tune", target, **variables)
    assert process.returncode == 1, process.stderr
    assert "no route is blamed" in process.stderr
    kept = [e.value for e in open_store(store_folder).entries if "failure" in e.value]
    assert not kept, "the crashes were the machine's"
    assert "crashed" not in open_store(store_folder).records.read()["outcome"].to_pylist()
    broken.unlink()
    summary = answer(routetune("tune", target, "--json", **variables, ORT_TEST_MENDED="1"))
    assert summary["counts"]["trials"] == 8
    rows = open_store(store_folder).records.read(run=summary["run"])["outcome"].to_pylist()
    assert rows == ["eligible"] * 8, "what is known now, not what the broken machine said"
