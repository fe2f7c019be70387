"""A deployment's run in which a target failed: what Prefect says of it, from a worker's process."""

from __future__ import annotations

import pytest

from tests.operations.site import Site, eventually


@pytest.mark.slow
def test_a_run_with_a_failed_target_is_failed_and_not_crashed(site: Site) -> None:
    site.machine.write_target(site.targets / "bad.toml", routes="-no_such_knob=[0|1]")
    pool = site.deploy()
    deployment = site.server.deployment(pool)
    assert deployment is not None
    ended = ("FAILED", "CRASHED", "COMPLETED")
    with site.worker():
        site.server.post(f"/deployments/{deployment['id']}/create_flow_run")
        eventually(lambda: site.server.runs(pool, *ended), 120, "the run has ended")
    [run] = site.server.runs(pool, *ended)  # once the worker, too, has said what it has to say
    state = run["state"]
    assert (state["type"], state["name"]) == ("FAILED", "Failed")
    assert state["message"] == "failed: bad (1 of 1 targets)"
