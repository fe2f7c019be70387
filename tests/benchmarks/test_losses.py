"""Loss throughput beside the memory bandwidth and beside one numpy expression per loss, all in one run."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from routetune.tasks.verdicts import scan
from routetune.tasks.verdicts.conditions import CoreWatch
from routetune.tasks.verdicts.fused import kernel_for
from routetune.tasks.verdicts.losses import losses
from routetune.tasks.verdicts.scan import BLOCK

RESULTS = Path(__file__).parent / "results" / "losses.json"
COMMAND = "pytest -m benchmark tests/benchmarks/test_losses.py"
SIDE = 512 << 20  # bytes of each of the two outputs: pairs of 1 GiB
DTYPES: dict[str, Any] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float64": np.float64,
    "int64": np.int64,
    "int8": np.int8,
}


def seconds(run: Callable[[], object], times: int = 3) -> float:
    """The best of a few: what the machine can do, with its neighbours' disturbance left out."""
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def pair(dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Two outputs of SIDE bytes, made of one repeated million of random values to be quick about it."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal(1 << 20) * 30
    sides = (values.astype(dtype), (values + rng.standard_normal(1 << 20) * 1e-2).astype(dtype))
    repeat = SIDE // sides[0].nbytes
    reference, candidate = (np.tile(side.view(f"u{side.itemsize}"), repeat).view(dtype) for side in sides)
    return reference, candidate


def five_passes(reference: np.ndarray, candidate: np.ndarray) -> dict[str, float]:
    """Each loss as one would write it in numpy."""
    r, c = reference.astype(np.float64), candidate.astype(np.float64)
    return {
        "l0": float(np.mean(np.abs(c - r) > 1e-5 + 1e-5 * np.abs(r))),
        "l1": float(np.mean(np.abs(c - r))),
        "l2": float(np.mean((c - r) ** 2)),
        "lInf": float(np.max(np.abs(c - r))),
        "cos": float(1 - np.dot(r, c) / np.sqrt(np.dot(r, r)) / np.sqrt(np.dot(c, c))),
    }


def bandwidth(array: np.ndarray) -> float:
    """Bytes a second that one core reads from memory, in the fastest reduction numpy has."""
    words = array.view(np.uint64)
    return array.nbytes / seconds(words.max, 5)


def one_pass(reference: np.ndarray, candidate: np.ndarray) -> float:
    """Seconds of a single numpy operation over the pair, into memory that is already there."""
    out = np.empty_like(reference)
    return seconds(lambda: np.subtract(candidate, reference, out=out))


def rows_of(name: str, dtype: Any, by: str) -> list[dict[str, Any]]:
    """Every case of one dtype, as speeds and as ratios to what this machine does in the same minute."""
    reference, candidate = pair(dtype)
    twin = reference.copy()
    read, subtraction = bandwidth(reference), one_pass(reference, candidate)
    cases: dict[str, Callable[[], object]] = {
        "each beyond its bound": lambda: losses(reference, candidate),
        "all within atol": lambda: losses(reference, candidate, atol=1e3),
        "bit-identical": lambda: losses(reference, twin),
    }
    rows = []
    for case, run in cases.items():
        taken = seconds(run)
        speed = 2 * SIDE / taken
        rows.append(
            {
                "dtype": name,
                "added_up_by": by,
                "case": case,
                "seconds": round(taken, 4),
                "GB_per_s": round(speed / 1e9, 2),
                "read_bandwidth_GB_per_s": round(read / 1e9, 2),
                "times_slower_than_reading": round(read / speed, 2),
                "times_slower_than_one_numpy_subtraction": round(taken / subtraction, 2),
            }
        )
    return rows


def beside_five_passes() -> dict[str, float]:
    """Our one pass and the five of numpy on the same outputs, which must agree."""
    reference, candidate = pair(np.float32)
    ours = seconds(lambda: losses(reference, candidate))
    start = time.perf_counter()
    wanted = five_passes(reference, candidate)
    naive = time.perf_counter() - start
    found = losses(reference, candidate).values
    for name in wanted:  # abs: the rounding of one long dot product of 67 million elements, near cos = 0
        assert found[name] == pytest.approx(wanted[name], rel=1e-9, abs=1e-12)
    return {
        "seconds": round(naive, 3),
        "one_pass_seconds": round(ours, 3),
        "times_faster": round(naive / ours, 1),
    }


def rows_by(by: str, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """All dtypes, added up by numpy alone or by the compiled loop where a dtype has one."""
    monkeypatch.setattr(scan, "LARGE", 1 << 62 if by == "numpy" else scan.LARGE)
    kinds = [(n, d) for n, d in DTYPES.items() if by == "numpy" or kernel_for(np.dtype(d)) is not None]
    for _, dtype in kinds if by == "numba" else ():  # compiling is told apart
        small = np.zeros(scan.LARGE, dtype)
        losses(small, small + np.ones(1, dtype))
    return [row for name, dtype in kinds for row in rows_of(name, dtype, by)]


def compiling() -> float | None:
    """Seconds that numba takes to be imported and to compile one loop; None where it is not installed."""
    start = time.perf_counter()
    kernel = kernel_for(np.dtype(np.float32))
    if kernel is None:
        return None
    kernel(np.zeros(8, np.float32), np.zeros(8, np.float32), 0.0, 0.0, np.zeros(9))
    return round(time.perf_counter() - start, 2)


@pytest.mark.benchmark
def test_loss_throughput(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_in = compiling()
    watch = CoreWatch()
    before = watch.read()
    with monkeypatch.context() as patch:
        rows = rows_by("numpy", patch)
        five = beside_five_passes()
    rows += rows_by("numba", monkeypatch)
    others = watch.others(before, watch.read())
    result = {
        "command": COMMAND,
        "bytes_of_each_output": SIDE,
        "block_elements": BLOCK,
        "machine": {
            "cpu": platform.processor() or platform.machine(),
            "cores": watch.cores,
            "cores_used_by_others": None if others is None else round(others, 2),
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
        "seconds_to_import_numba_and_compile": compiled_in,
        "losses": rows,
        "five_pass_numpy_float32": five,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    assert five["times_faster"] > 3
