"""Nights that were missed, and nights when the clocks change."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from routetune.flows.serving import nightly
from routetune.tasks.errors import BadInput

from tests.operations.site import Site, eventually


@pytest.mark.slow
def test_twelve_missed_nights_are_one_run(site: Site) -> None:
    site.machine.write_target(site.targets / "a.toml")
    with site.served() as name:
        found = site.server.deployment(name)
    assert found is not None and not found["paused"]
    for night in range(12):
        due = datetime.now(UTC) - timedelta(days=12 - night)
        state = {"type": "SCHEDULED", "state_details": {"scheduled_time": due.isoformat()}}
        site.server.post(f"/deployments/{found['id']}/create_flow_run", state=state)
    assert len(site.server.runs(name, "SCHEDULED")) >= 12
    with site.served():
        [run] = eventually(lambda: site.server.runs(name, "COMPLETED"), 120, "one run completes")
        cancelled = eventually(lambda: site.server.runs(name, "CANCELLED"), 30, "the others are cancelled")
    assert len(cancelled) == 11
    assert {one["state"]["message"] for one in cancelled} == {
        f"run {run['name']!r} started after this one was due, and looks at the same targets"
    }
    assert not any(one["run_count"] for one in cancelled), "none of them ran"
    assert site.state() == {"a": "fresh"}
    assert len(site.machine.builds) == len(set(site.machine.builds))


@pytest.mark.parametrize("around", [date(2026, 3, 8), date(2026, 11, 1)], ids=["spring", "autumn"])
def test_one_firing_a_night_when_the_clocks_change(around: date) -> None:
    from prefect.server.schemas.schedules import CronSchedule

    ours = nightly("10 0 * * *", "America/Montreal")
    schedule = CronSchedule(cron=str(ours.cron), timezone=ours.timezone)
    montreal = ZoneInfo("America/Montreal")
    start = datetime(around.year, around.month, around.day, tzinfo=montreal) - timedelta(days=3)
    found = asyncio.run(schedule.get_dates(n=7, start=start))  # type: ignore[arg-type]
    local = [one.astimezone(montreal) for one in found]
    assert [one.date() for one in local] == [start.date() + timedelta(days=day) for day in range(7)]
    assert {(one.hour, one.minute) for one in local} == {(0, 10)}
    offsets = [one.utcoffset() for one in local]
    assert len(set(offsets)) == 2, "the clocks change in these nights"


@pytest.mark.parametrize(
    ("cron", "timezone", "told"),
    [
        ("10 0 * *", "UTC", "--cron '10 0 \\* \\*'"),
        ("10 0 * * *", "America/Montréal", "--timezone"),
        ("x", "../UTC", "--timezone"),
    ],
)
def test_what_is_no_schedule_is_refused(cron: str, timezone: str, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        nightly(cron, timezone)
