"""How often a true gain is found, and how many calls that takes.

Five candidates are made finalists: one with less work than the control, four identical to it.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest
from routetune.tasks.verdicts.duel import log_ratios
from routetune.tasks.verdicts.intervals import estimate

from tests.benchmarks.stage import CONTROL, Outcome, Work, appending, kept, runs, select, share, write

FILE = "power.json"
COMMAND = "pytest -m benchmark tests/benchmarks/test_power.py"
FASTER = "-name=0"
#: By the time of one call: the width of the model's products, and the settings of screening and duel.
SIZES: dict[float, tuple[int, dict[str, Any], dict[str, Any]]] = {
    0.001: (48, {"seconds": 0.2}, {"seconds": 0.2, "turns": 4}),
    0.010: (96, {"seconds": 0.5}, {"seconds": 0.4, "turns": 4}),
}
BOUNDS = {0.03: 0.9, 0.1: 1.0}
RUNS = {0.03: 15, 0.1: 8}


@pytest.mark.benchmark
@pytest.mark.parametrize("gain", BOUNDS)
@pytest.mark.parametrize("seconds", SIZES)
def test_power(seconds: float, gain: float, tmp_path: Path) -> None:
    width, rounds, duel = SIZES[seconds]
    work = Work(tmp_path, width)
    layers = work.layers_for(seconds)
    control, arrays = work.engine("control", layers), work.inputs()
    fewer = round(layers / (1 + gain))
    engines = {f"-name={number}": control for number in range(5)}
    engines[FASTER] = work.engine("faster", fewer)
    arguments = (engines, control, arrays, rounds, duel)
    rows = [_row(select(*arguments, min_gain=0.0, every=True)) for _ in range(runs(RUNS[gain]))]
    name = f"{gain:.0%} at {seconds * 1000:g} ms"
    rows = kept(FILE, name, rows, fresh=not appending())
    content = {
        "settings": {"layers": [layers, fewer], "min_gain": 0.0, "rounds": rounds, "duel": duel},
        "found": share(sum(row["found"] for row in rows), len(rows)),
        "false": share(sum(row["false"] for row in rows), len(rows)),
        "speed": round(median(row["speed"] for row in rows), 4),
        "calls": median(row["calls"] for row in rows),
        "seconds": median(row["seconds"] for row in rows),
        "rows": rows,
    }
    write(FILE, name, COMMAND, content)
    assert content["found"]["share"] >= BOUNDS[gain], content


def _row(outcome: Outcome) -> dict[str, Any]:

    speed = estimate(log_ratios(outcome.loads, FASTER, CONTROL)).ratio
    return {
        "found": outcome.decision.winner == FASTER,
        "false": outcome.decision.winner not in ("", FASTER),
        "speed": round(speed, 4),
        "finalists": len(outcome.finalists),
        "loads": len(outcome.loads),
        "disturbed": sum(bool(load["reason"]) for load in outcome.loads),
        "seconds": round(outcome.seconds, 2),
        "calls": outcome.calls,
    }
