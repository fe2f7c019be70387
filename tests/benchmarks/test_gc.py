"""How long a collection takes in a store of 100,000 entries: a third of them builds, others with samples."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from routetune.tasks.canonical import dumps
from routetune.tasks.collect import collect
from routetune.tasks.store import Store, names, open_store
from routetune.tasks.store.inventory import take_inventory
from routetune.tasks.store.keys import stage_key
from routetune.tasks.store.sealed import seal
from routetune.tasks.targets.processor import model

RESULTS = Path(__file__).parent / "results" / "gc.json"
COMMAND = "pytest -m benchmark tests/benchmarks/test_gc.py"
ENTRIES = 100_000
ENVIRONMENT = {f"field.{number}": f"value of field {number}" for number in range(30)}
ROUNDS = {"rounds": [[1_000_000 + number] * 20 for number in range(20)]}


@pytest.mark.benchmark
def test_gc(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    _fill(store)
    found: dict[str, Any] = {}
    _, found["seconds of a plain walk"] = _timed(lambda: _walk(store.root))
    _, found["seconds to list"] = _timed(lambda: take_inventory(store.root))
    dry, found["seconds of a dry run"] = _timed(lambda: collect(store.root, max_size=0, dry_run=True))
    half, found["seconds to collect a half"] = _timed(
        lambda: collect(store.root, max_size=dry["before"] // 2)
    )
    rest, found["seconds to collect all else"] = _timed(lambda: collect(store.root, max_size=0))
    result = {
        "command": COMMAND,
        "machine": f"{os.cpu_count()} x {model()}",
        "load at the end": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "entries": ENTRIES,
        "megabytes": dry["before"] // 10**6,
        "entries in the half": half["collected"]["entries"]["files"],
        "entries after it": rest["collected"]["entries"]["files"],
        **found,
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    assert rest["kept"] == {"entries": 0, "blobs": 0}
    # A look at the head of each file, which is an open and a read beside the walk's stat.
    assert found["seconds to list"] < 6 * found["seconds of a plain walk"]


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = call()
    return result, round(time.perf_counter() - start, 2)


def _walk(root: Path) -> int:
    """Bytes of all files, by the standard library."""
    return sum((Path(at) / name).stat().st_size for at, _, files in os.walk(root) for name in files)


def _fill(store: Store) -> None:
    """Write what the store would have, without the waiting for the disk."""
    then = time.time() - 90 * 86_400
    for number in range(ENTRIES):
        stage = ("build", "accuracy", "timing")[number % 3]
        key = stage_key(stage, code="0" * 64, route=str(number), environment=ENVIRONMENT)
        content: dict[str, Any] = {"schema": 1, "key": key, "value": ROUNDS, "blobs": []}
        if stage == "build":
            data = b"%06d" % number * 500
            digest = hashlib.sha256(data).hexdigest()
            _write(store.blobs.path(digest), data, then + number)
            content |= {"value": {"engine": {"digest": digest}}, "blobs": [[digest, len(data)]]}
        name = hashlib.sha256(dumps(key).encode()).hexdigest()
        _write(names.fan_out(store.entries.folder, name, ".json"), seal(content), then + number)


def _write(path: Path, data: bytes, used: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (used, used))
