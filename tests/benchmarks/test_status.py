"""What looking costs: `status` over 1,000 targets, and a retune over 50 of which every one is fresh."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from routetune.tasks.canonical import digest
from routetune.tasks.store import Store, open_store
from routetune.tasks.store.digests import RACY_SECONDS
from routetune.tasks.store.manifests import Publication
from routetune.tasks.subject import open_subject
from routetune.tasks.targets.processor import model as processor

from tests.machine import Machine

pytestmark = pytest.mark.benchmark

RESULTS = Path(__file__).parent / "results" / "status.json"
COMMAND = "pytest -m benchmark tests/benchmarks/test_status.py"
TARGETS, STALE, NEW, LARGE, LARGE_BYTES = 1000, 50, 50, 20, 16 << 20
ADDED = ("check", "schema", "target", "environment_key", "generation", "published_at", "engine")


@pytest.fixture
def real(tmp_path: Path, routetune: Any, prefect_url: str, store_folder: Path) -> Publication:
    """What a real tune publishes; the others are copies of it, bound to their own targets."""
    machine = Machine(tmp_path / "machine")
    path = machine.write_target(tmp_path / "real" / "real.toml", device="cpu", backend="onnxruntime")
    process = routetune("tune", path, PREFECT_API_URL=prefect_url)
    assert process.returncode == 0, process.stderr
    subject = open_subject(path)
    published = open_store(store_folder).publications.current("real", subject.key)
    assert published is not None
    return published


def publish(path: Path, store: Store, real: Publication, cores: int | None = None) -> None:
    """A copy of the real publication for another target; `cores`: as made on a machine with so many."""
    subject = open_subject(path)
    bound = json.loads(json.dumps(subject.bound_to))
    if cores is not None:
        bound["environment"]["cpu.cores"] = cores
    manifest = {name: value for name, value in real.manifest.items() if name not in ADDED}
    store.publications.publish(
        subject.target.name,
        digest(bound["environment"])[:16],
        real.reference.engine,
        manifest | {"bound_to": bound},
    )


def write(folder: Path, count: int) -> list[Path]:
    """Targets of their own models; LARGE of a thousand have a sidecar of LARGE_BYTES."""
    machine = Machine(folder.parent / f"machine-{folder.name}")
    paths = []
    for number in range(count):
        path = folder / f"t{number:04d}.toml"
        if number < LARGE * count // TARGETS:
            folder.mkdir(exist_ok=True)
            path.with_suffix(".data").write_bytes(os.urandom(LARGE_BYTES))
            onnx.save(large(path.with_suffix(".data").name), path.with_suffix(".onnx"))
        paths.append(machine.write_target(path, device="cpu", backend="onnxruntime"))
    return paths


def large(sidecar: str) -> onnx.ModelProto:
    size = LARGE_BYTES // 4
    weight = numpy_helper.from_array(np.zeros(1, np.float32), "w")
    weight.ClearField("raw_data")
    weight.dims[:] = [size]
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=sidecar)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [size])],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def seconds(call: Callable[[], Any], times: int) -> tuple[float, Any]:
    """Median wall time, and the last answer."""
    taken, found = [], None
    for _ in range(times):
        start = time.perf_counter()
        found = call()
        taken.append(time.perf_counter() - start)
    return round(statistics.median(taken), 3), found


def keep(part: str, figures: dict[str, Any]) -> None:
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    found |= {
        "command": COMMAND,
        "machine": f"{os.cpu_count()} x {processor()}",
        "python": platform.python_version(),
        part: figures | {"load at the end": round(os.getloadavg()[0], 2)},
    }
    RESULTS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    print(json.dumps(figures, indent=1))


def test_status_over_a_thousand_targets(
    tmp_path: Path, routetune: Any, store_folder: Path, real: Publication
) -> None:
    folder, store = tmp_path / "targets", open_store(store_folder)
    paths = write(folder, TARGETS)
    for number, path in enumerate(paths[: TARGETS - NEW]):
        publish(path, store, real, cores=999 if number >= TARGETS - NEW - STALE else None)
    time.sleep(RACY_SECONDS + 0.1)

    def look(*more: str) -> dict[str, int]:
        process = routetune("status", folder, "--json", *more)
        assert process.returncode == 0, process.stderr
        states = [one["state"] for one in json.loads(process.stdout)["targets"]]
        return {state: states.count(state) for state in set(states)}

    start, _ = seconds(lambda: routetune("status", paths[0], "--json"), 3)
    first, counts = seconds(look, 1)
    again, _ = seconds(look, 5)
    rehash, _ = seconds(lambda: look("--rehash"), 1)
    keep(
        "status over 1,000 targets",
        {
            "targets": counts,
            "bytes of models": sum(path.stat().st_size for path in folder.glob("*.[od]*")),
            "bytes of a manifest": (real.engine.parent / "manifest.json").stat().st_size,
            "bytes of the memo": (store_folder / "digests" / "memo.json").stat().st_size,
            "seconds for one target": start,
            "seconds at first": first,
            "seconds, files unchanged": again,
            "seconds with --rehash": rehash,
        },
    )
    assert counts == {"fresh": TARGETS - NEW - STALE, "stale": STALE, "never tuned": NEW}
    assert again < 5


def test_retune_over_fifty_fresh_targets(
    tmp_path: Path, routetune: Any, store_folder: Path, real: Publication, prefect_url: str
) -> None:
    from prefect import flow
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
    from routetune.flows.retune import retune

    @flow(persist_result=False)
    def nothing() -> None:
        """What any flow takes here."""

    folder, store = tmp_path / "targets", open_store(store_folder)
    for path in write(folder, 50):
        publish(path, store, real)
    time.sleep(RACY_SECONDS + 0.1)
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        empty, _ = seconds(nothing, 5)
        flow_seconds, report = seconds(lambda: retune(str(folder), str(store_folder)), 5)
    alone, process = seconds(lambda: routetune("retune", folder, "--json"), 3)
    assert json.loads(process.stdout)["builds"] == 0
    keep(
        "retune over 50 fresh targets",
        {
            "builds": report["builds"],
            "seconds of a flow that does nothing": empty,
            "seconds of the flow retune": flow_seconds,
            "seconds of the command, which needs no Prefect": alone,
        },
    )
    assert (report["builds"], report["counts"]) == (0, {"fresh": 50})
    assert flow_seconds - empty < 5
