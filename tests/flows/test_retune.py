"""Retune as people run it: processes of its own, a driver that moves under it, two at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.machine import NEW, OLD, Machine

pytestmark = pytest.mark.slow

HOLD = """
import sys, time
from routetune.tasks.store.locks import device_lock
with device_lock("GPU-0", what="tuning another"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine")


@pytest.fixture
def run(
    machine: Machine, routetune: Callable[..., Any], prefect_url: str
) -> Callable[..., tuple[int, dict[str, Any]]]:
    """A command in a process of its own: its exit code and its answer."""

    def call(*arguments: str | Path) -> tuple[int, dict[str, Any]]:
        process = routetune(*arguments, "--json", PREFECT_API_URL=prefect_url, **machine.variables)
        assert "Traceback" not in process.stderr, process.stderr
        return process.returncode, json.loads(process.stdout)

    return call


def outcomes(report: dict[str, Any]) -> dict[str, str]:
    return {one["target"]: one["outcome"] for one in report["targets"]}


def states(status: dict[str, Any]) -> dict[str, str]:
    return {one["target"]: one["state"] for one in status["targets"]}


def run_of(url: str, folder: Path) -> dict[str, Any]:
    """The one flow run over a folder."""
    body = {"flow_runs": {"name": {"any_": [f"retune {folder}"]}}}
    [found] = httpx.post(f"{url}/flow_runs/filter", json=body, timeout=30).raise_for_status().json()
    return dict(found)


def test_a_moved_driver_rebuilds_what_it_must_and_nothing_else(
    machine: Machine, run: Callable[..., Any], prefect_url: str, tmp_path: Path
) -> None:
    """G48 and G49, on two devices side by side."""
    folder = tmp_path / "targets"
    machine.write_target(folder / "gpu.toml")
    machine.write_target(folder / "cpu.toml", device="cpu", backend="onnxruntime")
    machine.write_target(folder / "wrong.toml", routes="-no_such_knob=[0|1]")

    code, first = run("retune", folder)
    assert outcomes(first) == {"gpu": "tuned", "cpu": "tuned", "wrong": "failed"}, "the others go on"
    assert (code, len(machine.builds)) == (1, 2)
    assert all(one["device_seconds"] > 0 for one in first["targets"])
    # In Prefect as well, from the command line's own run.
    state = run_of(prefect_url, folder)["state"]
    assert (state["type"], state["message"]) == ("FAILED", "failed: wrong (1 of 3 targets)")
    (folder / "wrong.toml").unlink()

    code, again = run("retune", folder)
    assert (code, again["builds"], outcomes(again)) == (0, 0, {"gpu": "fresh", "cpu": "fresh"})

    for unreadable in ({"error": "Driver/library version mismatch"}, {"missing": True}):
        machine.set(**unreadable)
        code, told = run("status", folder, "--check")
        assert (code, states(told)) == (3, {"gpu": "cannot tell", "cpu": "fresh"})
        code, report = run("retune", folder)
        assert (code, report["builds"]) == (3, 0)
        assert outcomes(report) == {"gpu": "cannot tell", "cpu": "fresh"}
        code, refused = run("tune", folder / "gpu.toml", "--force")
        assert code == 1 and "cannot read" in refused["error"]
    assert len(machine.builds) == 2

    machine.set(driver=NEW)
    code, told = run("status", folder, "--check")
    assert (code, states(told)) == (3, {"gpu": "stale", "cpu": "fresh"})
    [gpu] = [one for one in told["targets"] if one["target"] == "gpu"]
    assert [change["text"] for change in gpu["changes"]] == [f"environment.driver: {OLD} -> {NEW}"]
    code, report = run("retune", folder)
    assert outcomes(report) == {"gpu": "tuned", "cpu": "fresh"}
    assert code == (6 if report["lost"] else 0)
    assert len(machine.builds) == 4
    assert run("status", folder, "--check")[0] == 0


def test_two_at_once_lead_to_one_rebuild(
    machine: Machine, run: Callable[..., Any], prefect_url: str, store_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "targets"
    machine.write_target(folder / "a.toml")
    given = {"ROUTETUNE_STORE": str(store_folder), "PREFECT_API_URL": prefect_url}
    command = [sys.executable, "-m", "routetune.flows", "retune", str(folder), "--json"]
    both = [
        subprocess.Popen(
            command,
            env=os.environ | machine.variables | given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    reports = [json.loads(process.communicate(timeout=240)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(outcomes(report)["a"] for report in reports) == ["fresh", "tuned"]
    assert len(machine.builds) == 2, "two routes, once"
    assert run("show", folder / "a.toml")[1]["generation"] == 1


def test_a_busy_device_and_the_artifact(machine: Machine, run: Callable[..., Any], tmp_path: Path) -> None:
    from tests.flows.test_prefect import artifact

    folder = tmp_path / "Busy_Ones"
    machine.write_target(folder / "a.toml", exclusive="require")
    code, report = run("retune", folder, "--seconds", "0.001")
    assert (code, outcomes(report)) == (5, {"a": "skipped"}), "the night is over before it begins"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as neighbour:
        assert neighbour.stdout is not None and neighbour.stdout.readline() == "held\n"
        code, report = run("retune", folder)
        assert (code, outcomes(report)) == (5, {"a": "busy"})
        assert "tuning another" in report["targets"][0]["detail"]
        machine.write_target(folder / "a.toml", exclusive="wait")
        code, report = run("retune", folder, "--seconds", "2")
        assert (code, outcomes(report)) == (5, {"a": "busy"}), "it waits no longer than the night lasts"
        neighbour.communicate("")
    assert machine.builds == []
    assert "## Left as it was" in artifact("retune-busy-ones")
