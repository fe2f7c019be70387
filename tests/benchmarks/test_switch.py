"""What a switch between two engines of one process costs: spinning threads of the one before, first calls.

The figures behind `samplers.rested`, WARM_SECONDS and LONG_SECONDS: how long the pool of an engine spins
after its last call, what an engine takes right after another one with and without waiting for that, and how
many calls it takes to be warm afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from routetune.data import folder
from routetune.tasks.engines import steps as engine_steps
from routetune.tasks.engines.base import open_backend
from routetune.tasks.verdicts.samplers import Serial, rested

from tests.benchmarks.stage import runs, write

FILE = "switch.json"
COMMAND = "pytest -m benchmark tests/benchmarks/test_switch.py"
BUSY_NS = 15_000_000  # an engine runs for so long before the next one gets its turn
CALLS = 12


@pytest.mark.benchmark
def test_switch(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ids = {"input_ids": rng.integers(0, 64, (1, 16)), "attention_mask": np.ones((1, 16), np.int64)}
    images = {"x": rng.random((32, 1, 8, 8), dtype=np.float32)}
    calls = {}
    for model, inputs in (("encoder", ids), ("digits_cnn", images)):
        for threads in ("1", "2"):
            for copy in "ab":
                name = f"{model} {threads} {copy}"
                calls[name] = _prepared(tmp_path / f"{name}.onnx", model, threads, inputs)
    pairs = [("1", "1"), ("2", "1"), ("1", "2"), ("2", "2")]
    found: dict[str, Any] = {}
    for model in ("encoder", "digits_cnn"):
        for before, after in pairs:
            first, then = calls[f"{model} {before} a"], calls[f"{model} {after} b"]
            found[f"{model}, {before} threads, then {after}"] = _switch(first, then, runs(30))
    write(FILE, "switches", COMMAND, {"settings": {"repeats": runs(30), "calls": CALLS}, "found": found})
    # One thread leaves nothing to wait for, and a pool of two does; on one core no such pool is made.
    alone = found["encoder, 1 threads, then 1"]["rest_ms"]
    assert alone < found["encoder, 2 threads, then 1"]["rest_ms"]


def _prepared(path: Path, model: str, threads: str, inputs: dict[str, Any]) -> Callable[[], None]:
    source = folder() / "models" / f"{model}.onnx"
    order = {"model": str(source), "route": {"-intra_op_num_threads": threads}, "output": str(path)}
    built = engine_steps.build("onnxruntime", order)
    engine = engine_steps.engine_from(str(path), built)
    return open_backend("onnxruntime").load(engine, "cpu", {}).prepare(inputs)


def _switch(first: Callable[[], None], then: Callable[[], None], repeats: int) -> dict[str, Any]:
    """Medians over the repeats, in turns with and without waiting for the threads of `first`."""
    rests, raw, settled = [], [], []
    for _ in range(repeats):
        _run(first)
        raw.append(Serial(then).sample(CALLS))
        _run(first)
        start = time.perf_counter()
        rested()
        rests.append(time.perf_counter() - start)
        settled.append(Serial(then).sample(CALLS))
    warm = median(ns for row in settled for ns in row[CALLS // 2 :])
    return {
        "rest_ms": round(1000 * median(rests), 2),
        "call_ms": round(warm / 1e6, 3),
        "calls_after_rest": [round(median(column) / warm, 2) for column in zip(*settled, strict=True)],
        "calls_without_rest": [round(median(column) / warm, 2) for column in zip(*raw, strict=True)],
    }


def _run(call: Callable[[], None]) -> None:
    """Run one engine alone: nobody else's threads spin any more when it starts."""
    rested()
    start = time.perf_counter_ns()
    while time.perf_counter_ns() - start < BUSY_NS:
        call()
