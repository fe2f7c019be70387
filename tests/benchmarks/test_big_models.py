"""What a trial of a big model costs beside the least that the library itself needs for it.

The model is a chain of matrix products with 400 MB of weights in one file. The least is a session of the
original model that saves its engine, and a session of that engine, both as anybody would open them. A trial
builds once, or shares a build, and loads three times: to check, and afresh beside the control, which is
loaded afresh too. The time that the target asks the measurement to take is left out of the ratio, and told
beside it.
"""

from __future__ import annotations

import json
import os
import platform
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import pytest
from routetune.tasks.accuracy import check_accuracy
from routetune.tasks.bench import Bench, open_bench
from routetune.tasks.build import build_engines
from routetune.tasks.engines.onnxruntime.rules import graph, node
from routetune.tasks.expand import open_campaign
from routetune.tasks.reference import make_references
from routetune.tasks.store import Store, open_store
from routetune.tasks.targets.inputs import input_sets
from routetune.tasks.timing import time_engines

from tests.benchmarks.stage import worker_calls

RESULTS = Path(__file__).parent / "results" / "big_models.json"
COMMAND = "pytest -m benchmark tests/benchmarks/test_big_models.py"
LAYERS, WIDTH = 96, 1024
TARGET = """
schema = 1
name = "big"
model = "big.onnx"
backend = "onnxruntime"
[accuracy]
metric = "lInf"
tolerance = 1.0
[search]
routes = ["-MatMulAddFusion=[on|off] {routes}"]
algorithm = "full"
[timing]
seconds = 0.5
width = 0.0001
[engine]
device = "cpu"
"""
#: What the routes have besides, and how many there are: every one is built, or two builds serve all.
ROUTES = {
    "a build each": ("-session.set_denormal_as_zero=[0|1]", 4),
    "shared builds": ("-enable_mem_pattern=[on|off] -enable_mem_reuse=[on|off]", 8),
}


@pytest.mark.benchmark
@pytest.mark.parametrize("kind", ROUTES)
def test_a_trial_of_a_big_model(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model(tmp_path)
    routes, count = ROUTES[kind]
    (tmp_path / "big.toml").write_text(TARGET.format(routes=routes))
    before = _bare(model, tmp_path)
    calls = worker_calls(monkeypatch)
    trials = _tune(tmp_path / "big.toml", open_store(tmp_path / "store"))
    monkeypatch.undo()
    after = _bare(model, tmp_path)
    bare = {name: round(median([*before[name], *after[name]]), 3) for name in before}
    figures = _figures(calls, trials, sum(bare.values()))
    _write(kind, model.stat().st_size, bare, figures)
    assert trials == count
    assert figures["ratio"] < 3


def _model(place: Path) -> Path:
    rng, names = np.random.default_rng(0), [f"w{at}" for at in range(LAYERS)]
    scale = np.float32(WIDTH**-0.5)
    weights = {name: rng.standard_normal((WIDTH, WIDTH), np.float32) * scale for name in names}
    weights |= {f"b{at}": np.zeros(WIDTH, np.float32) for at in range(LAYERS)}
    nodes = [node("Identity x -> h0")]
    for at in range(LAYERS):
        nodes += [node(f"MatMul h{at} w{at} -> m{at}"), node(f"Add m{at} b{at} -> h{at + 1}")]
    nodes.append(node(f"Relu h{LAYERS} -> y"))
    onnx.save(graph(nodes, weights, x=(1, WIDTH), y=(1, WIDTH)), place / "big.onnx")
    return place / "big.onnx"


def _bare(model: Path, place: Path, times: int = 3) -> dict[str, list[float]]:
    """Seconds of the library's own work, by what it is."""
    import onnxruntime

    def opened(path: Path, options: Any) -> float:
        options.log_severity_level = 3
        started = time.perf_counter()
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return time.perf_counter() - started

    found: dict[str, list[float]] = {"create and save": [], "load": []}
    for _ in range(times):
        saving, loading = onnxruntime.SessionOptions(), onnxruntime.SessionOptions()
        saving.optimized_model_filepath = str(place / "bare.onnx")
        loading.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        found["create and save"].append(opened(model, saving))
        found["load"].append(opened(place / "bare.onnx", loading))
        (place / "bare.onnx").unlink()
    return found


def _tune(target: Path, store: Store) -> int:
    """Every trial of the target, without Prefect; nothing is selected or published."""
    with open_bench(target, store) as bench:
        run: Any = _stage_on(bench)
        run(make_references, input_sets(bench.subject.target, bench.subject.model))
        search = open_campaign(bench)
        while routes := search.ask():
            search.tell(run(time_engines, run(check_accuracy, run(build_engines, routes))))
        return len(bench.trials)


def _stage_on(bench: Bench) -> Any:
    return lambda stage, batch: stage.fn(bench, batch)


def _named(call: dict[str, Any]) -> dict[str, Any]:
    """A call by the name of its step alone, with the seconds that were measured for by design."""
    name = call["step"].partition(":")[2]
    return call | {"step": name, "measured": call["result"]["seconds"] if name == "time" else 0.0}


def _figures(recorded: list[dict[str, Any]], trials: int, bare: float) -> dict[str, Any]:
    calls = list(map(_named, recorded))
    first = next(at for at, call in enumerate(calls) if call["step"] == "build")
    of_trials = [call for call in calls[first:] if call["step"] in ("build", "check", "time")]
    beside = [call for call in calls[first:] if call not in of_trials]  # once a run, however many trials
    wall = of_trials[-1]["ended"] - of_trials[0]["started"] - sum(c["ended"] - c["started"] for c in beside)
    parts = {
        step: sum(call["worked"] - call["measured"] for call in of_trials if call["step"] == step)
        for step in ("build", "check", "time")
    }
    measured = sum(call["measured"] for call in of_trials)
    parts["outside the worker"] = wall - measured - sum(parts.values())
    each = {name: round(seconds / trials, 3) for name, seconds in parts.items()}
    return {
        "trials": trials,
        "seconds_per_trial": each,
        "measured_per_trial": round(measured / trials, 3),
        "ratio": round((wall - measured) / trials / bare, 2),
    }


def _write(kind: str, size: int, bare: dict[str, float], figures: dict[str, Any]) -> None:
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known |= {
        "command": COMMAND,
        "machine": f"{len(os.sched_getaffinity(0))} CPU cores",
        "python": platform.python_version(),
        "model_bytes": size,
    }
    known[kind] = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_average": round(os.getloadavg()[0], 2),
        "bare_seconds": bare,
        "trial": figures,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
