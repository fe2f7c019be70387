"""How often identical engines make a false winner: ours and the peers' rules on the same samples.

Twenty engines under different names, all the bytes of the default's, so that whatever is published other than
the default is false. Quiet, beside a process that computes without end on one core, and on a GPU, where so
small a model waits for the host to launch its kernels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.stage import (
    Outcome,
    Work,
    appending,
    kept,
    load_on_one_core,
    peers,
    runs,
    select,
    share,
    write,
)
from tests.gpu.here import why_no_cuda

FILE = "false_wins.json"
COMMAND = "pytest -m benchmark tests/benchmarks/test_false_wins.py"
ENGINES = 20
ROUNDS = {
    "seconds": 0.1,
    "chunk_seconds": 0.003,
    "warm_up_seconds": 0.03,
    "window_seconds": 0.1,
    "retries": 1,
}
DUEL = {"seconds": 0.12, "turns": 4}
BOUNDS = {"quiet": 0.05, "loaded": 0.10, "gpu": 0.10}
RUNS = {"quiet": 60, "loaded": 60, "gpu": 20}
NO_GPU = why_no_cuda()
ONLY_THERE = pytest.mark.skipif(bool(NO_GPU), reason=NO_GPU or "can be used")
GPU = pytest.param("gpu", marks=[pytest.mark.gpu, ONLY_THERE])


@pytest.mark.benchmark
@pytest.mark.parametrize("machine", ["quiet", "loaded", GPU])
def test_false_wins(machine: str, tmp_path: Path) -> None:
    work = Work(tmp_path, width=96, device="cuda:0" if machine == "gpu" else "cpu")
    engine, arrays = work.engine("default", work.layers_for(0.001)), work.inputs()
    engines = {f"-name={number:02}": engine for number in range(ENGINES)}
    rows = kept(FILE, machine, [], fresh=not appending())
    settings = {"engines": ENGINES, "min_gain": 0.0, "rounds": ROUNDS, "duel": DUEL}
    with load_on_one_core(machine == "loaded"):
        for _ in range(runs(RUNS[machine])):
            rows.append(_row(select(engines, engine, arrays, ROUNDS, DUEL, min_gain=0.0)))
            shares = {
                rule: share(sum(row["false"][rule] for row in rows), len(rows)) for rule in rows[0]["false"]
            }
            write(FILE, machine, COMMAND, {"settings": settings, "false wins": shares, "rows": rows})
    assert shares["ours"]["share"] <= BOUNDS[machine], shares


def _row(outcome: Outcome) -> dict[str, Any]:
    false = {"ours": outcome.decision.kind != "default"}
    false |= {rule: winner != "" for rule, winner in peers(outcome).items()}
    return {
        "false": false,
        "finalists": len(outcome.finalists),
        "loads": len(outcome.loads),
        "disturbed": sum(bool(load["reason"]) for load in outcome.loads),
        "seconds": round(outcome.seconds, 2),
        "calls": outcome.calls,
    }
