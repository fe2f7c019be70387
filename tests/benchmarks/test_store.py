"""What the store costs a stage: reading an entry, keeping one, and the digest of the code in its key."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from routetune.tasks.store import keys, open_store
from routetune.tasks.store.keys import code_digest, stage_key
from routetune.tasks.targets.processor import model

pytestmark = pytest.mark.benchmark

RESULTS = Path(__file__).parent / "results" / "store.json"
COMMAND = "pytest tests/benchmarks/test_store.py -m benchmark"
WORKER = "routetune.tasks.engines.worker"

# A key as the timing stage has it: an environment of 30 fields, one of them long, and its settings.
ENVIRONMENT = {f"field.{number}": f"value of field {number}" for number in range(30)} | {
    "cpu.flags": "avx512 " * 40
}
KEY = stage_key(
    "timing",
    code="0" * 64,
    engine="1" * 64,
    control="2" * 64,
    settings={"chunks": 4, "seconds": 2.0, "width": 0.01},
    environment=ENVIRONMENT,
)


def milliseconds(call: Callable[[], object], times: int) -> dict[str, float]:
    """Median and 95th percentile of the wall time of single calls."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        taken.append(1e3 * (time.perf_counter() - start))
    return {
        "median": round(statistics.median(taken), 4),
        "p95": round(statistics.quantiles(taken, n=20)[-1], 4),
    }


def test_store(tmp_path):
    store = open_store(tmp_path / "store")
    blobs = [store.blobs.put_bytes(f"blob {number}".encode()) for number in range(2)]
    values = {
        "verdict": {"losses": {f"output {number}": {"l0": 0.1, "cos": 1e-9} for number in range(5)}},
        "2000 samples": {"rounds": [[1_000_000 + number] * 20 for number in range(100)]},
    }
    found: dict[str, dict[str, float]] = {}
    for name, value in values.items():
        found[f"put {name}"] = milliseconds(lambda value=value: store.entries.put(KEY, value, blobs), 50)
        found[f"get {name}"] = milliseconds(lambda: store.entries.get(KEY), 2000)
    found["get of a miss"] = milliseconds(lambda: store.entries.get(KEY | {"engine": "3" * 64}), 2000)
    found["keep a blob of 1 MB"] = milliseconds(lambda: store.blobs.put_bytes(os.urandom(1 << 20)), 20)
    big = store.blobs.put_bytes(os.urandom(64 << 20))
    found["verify a blob of 64 MB"] = milliseconds(lambda: store.blobs.verified(big), 5)
    found["first digest of the worker's code"] = milliseconds(
        lambda: (code_digest.cache_clear(), keys._read.cache_clear(), code_digest(WORKER)), 5
    )
    RESULTS.parent.mkdir(exist_ok=True)
    result = {
        "command": COMMAND,
        "machine": f"{os.cpu_count()} x {model()}",
        "load at the end": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "milliseconds": found,
    }
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    # Far above what was measured: only a change of kind fails.
    assert found["get verdict"]["median"] < 0.5
    assert found["get of a miss"]["median"] < 0.5
