"""A tune on several devices: the same trials and verdicts as on one, and what becomes of one that fails."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from routetune.tasks import bench as benches
from routetune.tasks import expand
from routetune.tasks.bench import Bench
from routetune.tasks.engines.fleet import Fleet
from routetune.tasks.errors import EnvironmentBroken
from routetune.tasks.report.summary import device_remarks
from routetune.tasks.store import open_store
from routetune.tasks.trial import Trial

from tests.flows.test_stages import tune
from tests.killing import killing
from tests.machine import Machine, small_model
from tests.quick import quick

CORES = sorted(os.sched_getaffinity(0))
ONE = f"cpu:{CORES[0]}"
TWO = f"{ONE},{CORES[-1]}"
#: Four engines with two names each.
ROUTES = (
    "-graph_optimization_level=[disabled|all] -enable_mem_pattern=[on|off] -session.disable_prepacking=[0|1]"
)

pytestmark = [
    pytest.mark.skipif(len(CORES) < 2, reason="two workers need a core each"),
    pytest.mark.filterwarnings("ignore:device .* was taken out of the run"),
]


@pytest.fixture
def target(tmp_path: Path) -> Callable[..., Path]:
    def write(device: str) -> Path:
        onnx.save(small_model(), tmp_path / "m.onnx")
        path = tmp_path / "t.toml"
        told = {"search": {"prune": False}, "budget": {"trial_seconds": 30}, "engine": {"device": device}}
        path.write_text(quick("plain", "m.onnx", ROUTES, **told))
        return path

    return write


@pytest.fixture
def benches_seen(monkeypatch: pytest.MonkeyPatch) -> list[Bench]:
    """Every bench that is opened, to be looked at when the run is over."""
    seen: list[Bench] = []
    made = benches.Bench

    def noted(*given: Any) -> Bench:
        seen.append(made(*given))
        return seen[-1]

    monkeypatch.setattr(benches, "Bench", noted)
    return seen


def fleets(benches_seen: list[Bench]) -> Callable[[], list[Fleet]]:
    return lambda: [bench.fleet for bench in benches_seen]


def facts(trials: dict[str, Trial]) -> list[tuple[Any, ...]]:
    """What must not depend on how many devices there are, in the order of the records."""
    return [
        (route, t.outcome, t.loss, t.verdict, t.alias_of, t.engine and t.engine["digest"], t.speed is None)
        for route, t in trials.items()
    ]


def test_two_workers_find_what_one_finds(
    target: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = [open_store(tmp_path / name) for name in ("one", "two")]
    _, alone = tune(target(ONE), stores[0])
    monkeypatch.setattr(expand, "BATCH_SECONDS", 0.0)  # as where a trial takes long: one for each worker
    asked = noted_asks(monkeypatch)
    publication, shared = tune(target(TWO), stores[1])
    assert asked == [1, 2, 2, 2, 1, 0]
    assert facts(alone) == facts(shared) and len(shared) == 8
    records = [store.records.read().to_pylist() for store in stores]
    for column in ("route", "outcome", "loss", "alias_of", "engine", "environment"):
        assert [row[column] for row in records[0]] == [row[column] for row in records[1]]
    assert {row["device"] for row in records[0]} == {ONE}
    assert {row["device"] for row in records[1]} == {ONE, f"cpu:{CORES[-1]}"}
    # They are of one environment, so whatever one made the other takes from the store.
    keys = [{entry.path.name for entry in store.entries} for store in stores]
    assert keys[0] == keys[1]
    manifest = publication.manifest
    assert manifest["device"] == "cpu" and manifest["bound_to"]["environment"]["cpu.cores"] == 1
    assert len({load["on"] for load in manifest["duel"]}) <= 1, "a duel is of one device"


def noted_asks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many routes each question to a search gets, from now on."""
    asked: list[int] = []
    ask = expand.Campaign.ask

    def noted(self: expand.Campaign) -> Any:
        routes = ask(self)
        asked.append(len(routes))
        return routes

    monkeypatch.setattr(expand.Campaign, "ask", noted)
    return asked


@pytest.mark.slow
def test_a_run_goes_on_when_one_of_two_workers_is_killed_again_and_again(
    target: Callable[..., Path], tmp_path: Path, benches_seen: list[Bench]
) -> None:
    store = open_store(tmp_path / "store")
    with killing(fleets(benches_seen), {1}):
        publication, trials = tune(target(TWO), store)
    assert len(trials) == 8 and all(trial.outcome == "eligible" for trial in trials.values())
    [bench] = benches_seen
    assert list(bench.fleet.out) == [f"cpu:{CORES[-1]}"]
    assert {trial.device for trial in trials.values()} == {ONE}
    told = [remark for remark in publication.manifest["remarks"] if "was taken out" in remark]
    assert len(told) == 1 and f"cpu:{CORES[-1]}" in told[0]
    assert not [entry for entry in store.entries if "failure" in entry.value]


@pytest.mark.slow
def test_a_run_without_a_device_left_is_a_broken_environment(
    target: Callable[..., Path], tmp_path: Path, benches_seen: list[Bench]
) -> None:
    store = open_store(tmp_path / "store")
    with killing(fleets(benches_seen), {0, 1}), pytest.raises(EnvironmentBroken):
        tune(target(TWO), store)
    assert not [entry for entry in store.entries if "failure" in entry.value]


def test_remarks_name_the_share_of_each_device_and_who_was_taken_out() -> None:
    alone = {"device": "cpu", "trials": 3, "out": None}
    assert device_remarks([alone]) == []
    two = [alone | {"device": "GPU-0"}, {"device": "GPU-1", "trials": 0, "out": "its worker died"}]
    assert device_remarks(two) == [
        "trials of each device: GPU-0 3, GPU-1 0",
        "device GPU-1 was taken out: its worker died",
    ]


@pytest.mark.slow
def test_two_gpus_alike_tune_together_and_unlike_ones_are_refused(
    routetune: Any, prefect_url: str, tmp_path: Path, store_folder: Path
) -> None:
    """On a machine whose GPUs are stand-ins: what computes is the CPU, the rest is as on a GPU."""
    machine = Machine(tmp_path / "machine")
    machine.set(driver="535.171.04", boards=2)
    path = machine.write_target(tmp_path / "t.toml", device="cuda:all", routes=ROUTES)
    process = routetune("tune", path, "--json", PREFECT_API_URL=prefect_url, **machine.variables)
    assert process.returncode == 0, process.stderr
    answer = json.loads(process.stdout)
    assert [one["device"] for one in answer["devices"]] == ["GPU-0", "GPU-1"]
    assert sum(one["trials"] for one in answer["devices"]) == 8
    assert all(one["trials"] and one["out"] is None for one in answer["devices"])
    assert answer["remarks"][-1].startswith("trials of each device: GPU-0 ")
    [run] = open_store(store_folder).runs.list()
    assert run.summary["devices"] == answer["devices"]

    machine.set(driver="535.171.04", boards=2, watts=[72, 60])
    process = routetune("tune", path, "--json", **machine.variables)
    assert process.returncode == 2
    assert "cuda:1 is not like cuda:0 (gpu.power_limit: 72 -> 60)" in process.stderr
