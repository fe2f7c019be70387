"""A driver moves: watch tells, the rebuild starts by itself, and afterwards everything is fresh."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import pytest

from tests.machine import NEW, OLD
from tests.operations.site import Server, Site, allowed, eventually

pytestmark = pytest.mark.slow


def tuned(site: Site, *names: str) -> int:
    """Tune targets with the old driver, and have `watch` see it; the number of builds that took."""
    for name in names:
        assert site.ask("tune", site.machine.write_target(site.targets / f"{name}.toml"))["state"] == "tuned"
    [seen] = site.ask("watch", site.targets)["environments"]
    assert seen["state"] == "first look" and seen["event"] is None
    return len(site.machine.builds)


def started(server: Server, deployment: str, since: float) -> float:
    """Seconds from `since` until the first flow code of a deployment ran."""
    [run] = eventually(
        lambda: [one for one in server.runs(deployment) if one["start_time"]], 60, f"a run of {deployment}"
    )
    return datetime.fromisoformat(run["start_time"]).timestamp() - since


def ended(server: Server, deployment: str) -> dict[str, Any]:
    [run] = eventually(lambda: server.runs(deployment, "COMPLETED"), 180, f"{deployment} has completed")
    return run


def test_served_and_worker_rebuild_once(site: Site, figures: dict[str, Any]) -> None:
    before = tuned(site, "a")
    pool, other = site.deploy(), site.deploy("NVIDIA L40S")
    with site.served() as served, site.worker():
        site.machine.set(error="Driver/library version mismatch")
        assert site.state() == {"a": "cannot tell"}
        [blind] = site.ask("watch", site.targets)["environments"]
        assert blind["state"] == "cannot tell" and blind["event"] is None

        site.machine.set(driver=NEW)
        [stale] = site.ask("status", site.targets)["targets"]
        assert [one["text"] for one in stale["changes"]] == [f"environment.driver: {OLD} -> {NEW}"]
        now = time.time()
        [told] = site.ask("watch", site.targets)["environments"]
        assert told["event"] and [one["new"] for one in told["moved"]] == [NEW]
        seconds = {"served": started(site.server, served, now), "worker": started(site.server, pool, now)}
        for name in (served, pool):
            ended(site.server, name)
    assert max(seconds.values()) < allowed(30)
    assert site.state() == {"a": "fresh"}
    assert not [run for run in site.server.runs(other) if not run["auto_scheduled"]], (
        "its kind did not change"
    )
    # Both had the event; whichever came second found the target fresh.
    assert len(site.machine.builds) == 2 * before
    [again] = site.ask("watch", site.targets)["environments"]
    assert again["state"] == "unchanged" and again["event"] is None
    figures["from the driver's change to the first flow code, seconds"] = {
        name: round(value, 1) for name, value in seconds.items()
    }


def test_on_postgresql(postgresql: str, tmp_path: Any, figures: dict[str, Any]) -> None:
    from tests.operations.site import serving

    with serving(tmp_path / "server", postgresql) as server:
        site = Site(tmp_path, server)
        before = tuned(site, "a")
        with site.served() as served:
            site.machine.set(driver=NEW)
            now = time.time()
            site.ask("watch", site.targets)
            seconds = started(server, served, now)
            ended(server, served)
        assert seconds < allowed(30)
        assert site.state() == {"a": "fresh"} and len(site.machine.builds) == 2 * before
    figures["the same, served, on PostgreSQL"] = round(seconds, 1)
