"""The frontier of 10,000 recorded trials at 1,000 values of ε, beside a scan of all trials for each."""

from __future__ import annotations

import json
import platform
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from routetune.tasks.recorded import recorded
from routetune.tasks.report.staircase import COLUMNS, Staircase, told
from routetune.tasks.store import open_store
from routetune.tasks.store.records import row
from routetune.tasks.targets.schema import load_target

from tests.report.planted import record, trial, write_target

RESULTS = Path(__file__).parent / "results" / "frontier.json"
COMMAND = "pytest -m benchmark tests/benchmarks/test_frontier.py"
TRIALS, EPSILONS = 10_000, 1_000


def timing(rng: np.random.Generator) -> dict[str, Any]:
    """Raw rounds as a screening leaves them, so that the parts have the size of real ones."""
    rounds = [
        {
            "candidate_ns": rng.integers(10**6, 2 * 10**6, 20).tolist(),
            "control_ns": [10**6] * 20,
            "dropped": False,
        }
        for _ in range(20)
    ]
    return {"rounds": rounds, "abandoned": False}


@pytest.mark.benchmark
def test_a_thousand_tolerances_from_ten_thousand_trials(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path, store = write_target(tmp_path), open_store(tmp_path / "store")
    losses, speeds = rng.lognormal(-4, 2, TRIALS), rng.lognormal(0, 0.3, TRIALS)
    trials = [trial({}, 0.0, 1.0)] + [
        trial({"-a": str(at)}, float(losses[at]), float(speeds[at]), timing=timing(rng))
        for at in range(1, TRIALS)
    ]
    subject, run = record(path, store, trials[:1])
    for start in range(1, TRIALS, 500):
        part = trials[start : start + 500]
        store.records.append([row(run, "planted", subject.key, one) for one in part])
    store.records.compact(run)
    epsilons = rng.lognormal(-4, 2, EPSILONS).tolist()

    target, marks = load_target(path), [time.perf_counter()]
    found = recorded(subject, store, run, COLUMNS)
    marks.append(time.perf_counter())
    stairs = Staircase(found, target)
    marks.append(time.perf_counter())
    answers = stairs.answers(epsilons)
    marks.append(time.perf_counter())
    told(stairs, [])
    marks.append(time.perf_counter())

    some = epsilons[:20]
    began = time.perf_counter()
    scanned = [scan(stairs, epsilon) for epsilon in some]
    each = (time.perf_counter() - began) / len(some)
    assert scanned == [(one["eligible"], one["fastest"]) for one in answers[:20]]

    reading, judging, answering, telling = np.diff(marks).tolist()
    whole = reading + judging + answering
    result = {
        "command": COMMAND,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.processor() or platform.machine()}, Python {platform.python_version()}",
        "trials": TRIALS,
        "epsilons": EPSILONS,
        "seconds": {
            "read the records": round(reading, 3),
            "least ε of each trial, and the staircase": round(judging, 3),
            "answers": round(answering, 4),
            "together": round(whole, 3),
            "the whole staircase as JSON": round(telling, 3),
            "a scan for each ε, estimated from 20": round(each * EPSILONS, 2),
        },
        "a scan / answers": round(each * EPSILONS / answering, 1),
    }
    RESULTS.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    assert each * EPSILONS / answering > 50


def scan(stairs: Staircase, epsilon: float) -> tuple[int, str]:
    """What one would write without the frontier."""
    inside = [at for at, least in enumerate(stairs.thresholds) if least <= epsilon]
    best = max(inside, key=lambda at: stairs.rows[at]["speed"])
    return len(inside), stairs.rows[best]["route"]
