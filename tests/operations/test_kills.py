"""A worker is killed in a run: the next run starts soon, nothing is lost, the dead one is marked."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.operations.site import ROOT, Site, eventually, kill_tree

#: Enough routes for a kill to hit a run in the middle.
ROUTES = "-enable_mem_pattern=[on|off] -graph_optimization_level=[disabled|basic|extended|all]"
#: The example's 90 s would only make the test longer; a run gives a sign of life every 30 s.
SILENCE = 40


def automations(folder: Path) -> Path:
    """The example file, with less patience."""
    told = yaml.safe_load((ROOT / "docs/examples/automations.yaml").read_text())
    told["automations"][0]["trigger"]["within"] = SILENCE
    path = folder / "automations.yaml"
    path.write_text(yaml.safe_dump(told))
    return path


def reached(site: Site, run: str, seconds: float, *states: str) -> dict[str, Any]:
    """The run, once it is in one of these states."""
    body = {"id": {"any_": [run]}, "state": {"type": {"any_": list(states)}}}
    [found] = eventually(lambda: site.server.post("/flow_runs/filter", flow_runs=body), seconds, str(states))
    return dict(found)


@pytest.mark.slow
def test_a_killed_worker(site: Site, figures: dict[str, Any]) -> None:
    """H54: a worker that runs one flow at a time is killed in it, and another one starts."""
    site.machine.write_target(site.targets / "killed.toml", routes=ROUTES)
    site.run("prefect", "--no-prompt", "automation", "create", "--from-file", automations(site.folder))
    pool = site.deploy()
    found = site.server.deployment(pool)
    assert found is not None

    def start() -> dict[str, Any]:
        run: dict[str, Any] = site.server.post(f"/deployments/{found['id']}/create_flow_run")
        return run

    with site.worker() as worker:
        dead = start()
        eventually(lambda: len(site.machine.builds) >= 3, 120, "three builds are under way")
        kill_tree(worker.pid)
    running = {"name": {"like_": "tune killed on"}, "state": {"type": {"any_": ["RUNNING"]}}}
    assert site.server.post("/flow_runs/filter", flow_runs=running), "nobody has told the server"
    done = site.machine.builds
    killed = time.time()
    with site.worker():
        following = start()["id"]
        run = reached(site, following, 90, "RUNNING", "COMPLETED")
        seconds = datetime.fromisoformat(run["start_time"]).timestamp() - killed
        reached(site, following, 120, "COMPLETED")
        [crashed] = eventually(
            lambda: site.server.runs(pool, "CRASHED"), SILENCE + 60, "the dead run is marked"
        )
        eventually(
            lambda: not site.server.post("/flow_runs/filter", flow_runs=running), 30, "its tune as well"
        )
    assert crashed["id"] == dead["id"]
    assert site.state() == {"killed": "fresh"}
    # What was built is not built again; only the one under way at the kill may be.
    anew = site.machine.builds[len(done) :]
    assert len(set(done[:-1]) & set(anew)) == 0
    figures["from the kill of a worker to the next run's flow code, seconds"] = round(seconds, 1)
