"""watch: what is told, when, and that nothing is forgotten where the telling fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.machine import NEW, OLD, Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine")


def test_a_change_is_told_once_and_never_lost(
    machine: Machine, tmp_path: Path, routetune: Any, prefect_url: str
) -> None:
    target = machine.write_target(tmp_path / "targets/a.toml")
    machine.write_target(tmp_path / "targets/b.toml", backend="onnxruntime", device="cpu")
    (tmp_path / "targets/c.toml").write_text("schema = 1\nmodel = 3\n")

    def look(code: int = 0, **variables: str) -> dict[str, Any]:
        process = routetune("watch", "--once", target.parent, "--json", **machine.variables, **variables)
        assert process.returncode == code, process.stderr
        found: dict[str, Any] = json.loads(process.stdout)
        return found

    def states(found: dict[str, Any]) -> dict[str, str]:
        return {one["device"]: one["state"] for one in found["environments"]}

    first = look()
    assert states(first) == {"cuda:0": "first look", "cpu": "first look"}
    assert len(first["refused"]) == 1 and "c.toml" in first["refused"][0]
    assert states(look()) == {"cuda:0": "unchanged", "cpu": "unchanged"}
    for blind in ({"error": "Driver/library version mismatch"}, {"missing": True}):
        machine.set(**blind)
        found = look()
        assert states(found) == {"cuda:0": "cannot tell", "cpu": "unchanged"}
        assert "driver" in found["environments"][0]["unknown"]

    machine.set(driver=NEW)
    assert "PREFECT_API_URL" in look(code=1)["error"]
    gone = "http://127.0.0.1:9/api"
    assert (
        "did not take the event"
        in look(code=1, PREFECT_API_URL=gone, PREFECT_CLIENT_MAX_RETRIES="0")["error"]
    )
    told = look(PREFECT_API_URL=prefect_url)
    assert states(told) == {"cuda:0": "changed", "cpu": "unchanged"}
    assert states(look()) == {"cuda:0": "unchanged", "cpu": "unchanged"}

    event = event_of(prefect_url, told["environments"][0]["event"])
    assert event["event"] == "routetune.environment.changed"
    payload = event["payload"]
    assert (payload["old"]["driver"], payload["new"]["driver"]) == (OLD, NEW)
    assert payload["moved"] == [f"environment.driver: {OLD} -> {NEW}"]
    assert payload["targets"] == str(target.parent)
    assert event["resource"]["routetune.kind"] == "NVIDIA L4"
    assert event["resource"]["prefect.resource.id"].endswith(".stand_in_backend-CpuAsGpu.cuda-0")


def event_of(url: str, event: str) -> dict[str, Any]:
    from tests.operations.site import eventually

    def ask() -> list[dict[str, Any]]:
        answer = httpx.post(f"{url}/events/filter", json={"filter": {"id": {"id": [event]}}}, timeout=30)
        found: list[dict[str, Any]] = answer.raise_for_status().json()["events"]
        return found

    return eventually(ask, 30, "the server has the event")[0]


def test_every_looks_with_fresh_eyes(
    machine: Machine, tmp_path: Path, store_folder: Path, prefect_url: str
) -> None:
    target = machine.write_target(tmp_path / "targets/a.toml")
    command = [sys.executable, "-m", "routetune.flows", "watch", str(target), "--every", "1"]
    variables = {**machine.variables, "ROUTETUNE_STORE": str(store_folder), "PREFECT_API_URL": prefect_url}
    with subprocess.Popen(command, env=os.environ | variables, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        try:
            for wanted in ("first look", "unchanged", "changed"):
                if wanted == "changed":
                    machine.set(driver=NEW)
                assert any(f" {wanted} " in line for line in watching.stdout)
        finally:
            watching.terminate()


def test_what_watch_refuses(tmp_path: Path, routetune: Any) -> None:
    assert "exclude each other" in routetune("watch", "--once", "--every", "5").stderr
    assert "takes seconds, found inf" in routetune("watch", "--every", "inf").stderr
    assert "holds no target file" in routetune("watch", tmp_path).stderr
    (tmp_path / "a.toml").write_text("schema = 1\n")
    process = routetune("watch", tmp_path)
    assert process.returncode == 2 and "no target can be read" in process.stderr
