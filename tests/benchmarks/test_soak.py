"""A soak: thousands of trials in one run of the product; memory and file descriptors must stay flat.

The run is `routetune tune` in a process of its own on one core, with a Prefect server, real builds, checks
and measurements. Beside it somebody looks twice a second at the memory and the open files of the run and of
its worker.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from routetune.data import folder
from routetune.tasks.targets.processor import model

from tests.benchmarks.stage import runs

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results" / "soak.json"
PICTURE = ROOT / "docs" / "images" / "soak.svg"
COMMAND = "pytest -m benchmark tests/benchmarks/test_soak.py"
TRIALS = 2000
TARGET = """
schema = 1
name = "soak"
model = "digits_cnn.onnx"
backend = "onnxruntime"
[shapes]
x = "1x1x8x8"
[accuracy]
metric = "lInf"
tolerance = 1.0
[search]
routes = [
    "-enable_mem_pattern=[on|off] -enable_mem_reuse=[on|off] -enable_cpu_mem_arena=[on|off]",
    "-session.set_denormal_as_zero=[0|1] -session.disable_prepacking=[0|1]",
    "-session.use_device_allocator_for_initializers=[0|1] -execution_order=[default|priority_based]",
    "-session.force_spinning_stop=[0|1] -session.dynamic_block_base=[0|4]",
    "-graph_optimization_level=[basic|extended|layout|all]",
]
algorithm = "full"
prune = false
[budget]
trials = {trials}
seconds = 86400
[timing]
seconds = 0.02
width = 0.5
finalists = 1
loads = 1
"""


@pytest.mark.benchmark
def test_soak(tmp_path: Path, prefect_url: str) -> None:
    trials = runs(TRIALS)
    started = time.monotonic()
    rows = list(_watched(_tuning(tmp_path, trials), tmp_path / "store", trials))
    told = json.loads((tmp_path / "answer.json").read_text())
    growth, end = _growth(rows)
    assert told["counts"]["trials"] == trials
    found = {
        "command": COMMAND,
        "machine": f"{os.cpu_count()} x {model()}",
        "python": platform.python_version(),
        "load at the end": round(os.getloadavg()[0], 2),
        "seconds": round(time.monotonic() - started),
        "trials": trials,
        "workers": len({row["worker"] for row in rows if row["worker"]}),
        "growth per 1000 trials": growth,
        "mib of duel, records and report in the end": end,
        "samples": [{key: value for key, value in row.items() if key != "worker"} for row in _thinned(rows)],
    }
    if trials == TRIALS:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        _draw(found["samples"], PICTURE)
    print(json.dumps({name: value for name, value in found.items() if name != "samples"}, indent=1))
    if trials < 500:
        return  # too short to tell a slope
    # Far above what was measured: what one trial leaves behind is nothing like its raw samples.
    assert growth["run_mib"] < 40 and growth["worker_mib"] < 40
    assert abs(growth["run_files"]) < 2 and abs(growth["worker_files"]) < 2


def _tuning(place: Path, trials: int) -> subprocess.Popen[str]:
    shutil.copy(folder() / "models/digits_cnn.onnx", place)
    target = place / "soak.toml"
    target.write_text(TARGET.format(trials=trials))
    core = min(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "routetune.flows", "tune", str(target), "--json"]
    with (place / "answer.json").open("w") as answer, (place / "errors").open("w") as errors:
        return subprocess.Popen(
            command,
            env=os.environ | {"ROUTETUNE_STORE": str(place / "store")},
            stdout=answer,
            stderr=errors,
            text=True,
            # One core: an engine's threads then have nothing to wait for, and trials are short.
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )


def _watched(popen: subprocess.Popen[str], store: Path, trials: int) -> Iterator[dict[str, Any]]:
    """What the run and its worker hold, twice a second, until the run ends well."""
    process, counted = psutil.Process(popen.pid), {}
    while popen.poll() is None:
        parts = list(store.glob("records/*/part-*"))
        for part in parts:
            if part not in counted:
                counted[part] = pq.read_metadata(part).num_rows
        try:
            worker = next((one for one in process.children() if "child" in " ".join(one.cmdline())), None)
            yield {
                # In the end they are merged: for a moment the rows are there twice.
                "trials": min(sum(counted[part] for part in parts), trials),
                **_held("run", process),
                **_held("worker", worker),
                "worker": worker and worker.pid,
            }
        except psutil.Error:
            pass  # a worker that ended while we looked
        time.sleep(0.5)
    assert popen.returncode == 0, (store.parent / "errors").read_text()


def _held(who: str, process: psutil.Process | None) -> dict[str, Any]:
    if process is None:
        return {f"{who}_mib": None, f"{who}_files": None}
    memory = process.memory_info().rss
    return {f"{who}_mib": round(memory / 2**20, 1), f"{who}_files": process.num_fds()}


def _growth(rows: list[dict[str, Any]]) -> tuple[dict[str, float], float]:
    """Slopes by least squares, without the first tenth and the end; and what the end takes, MiB.

    Of the worker: the median over its processes, each with a hundred trials behind it at least.
    """
    last = max(row["trials"] for row in rows)
    ended = [row["run_mib"] for row in rows if row["trials"] == last]
    steady = [row for row in rows if last / 10 <= row["trials"] < last]
    found = {name: _slope(steady, name) for name in ("run_mib", "run_files")}
    alive = [row for row in steady if row["worker"]]
    lives = [list(group) for _, group in groupby(alive, key=lambda row: row["worker"])]
    lives = [life[len(life) // 4 :] for life in lives if life[-1]["trials"] - life[0]["trials"] >= 100]
    for name in ("worker_mib", "worker_files"):
        found[name] = median([_slope(life, name) for life in lives]) if lives else 0.0
    return {name: round(1000 * slope, 2) for name, slope in found.items()}, round(max(ended) - ended[0], 1)


def _slope(rows: list[dict[str, Any]], name: str) -> float:
    import numpy as np

    kept = [(row["trials"], row[name]) for row in rows if row[name] is not None]
    return float(np.polyfit(*zip(*kept, strict=True), 1)[0]) if len({x for x, _ in kept}) > 2 else 0.0


def _thinned(rows: list[dict[str, Any]], count: int = 400) -> list[dict[str, Any]]:
    return rows[:: max(1, len(rows) // count)]


def _draw(rows: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    memory, files = figure.subplots(2, 1, sharex=True)
    for axes, unit, label in ((memory, "mib", "memory, MiB"), (files, "files", "open files")):
        for who in ("run", "worker"):
            kept = [(row["trials"], row[f"{who}_{unit}"]) for row in rows if row[f"{who}_{unit}"] is not None]
            axes.plot(*zip(*kept, strict=True), label=who, linewidth=1)
        axes.set(ylabel=label, ylim=(0, None))
        axes.grid(alpha=0.3)
    memory.legend(frameon=False)
    files.set_xlabel("trials")
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
