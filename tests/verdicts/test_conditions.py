"""Who else used the cores: from the kernel's own count, and with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from routetune.tasks.verdicts.conditions import CoreTimes, CoreWatch, disturbance, watch_for

pytestmark = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs /proc/stat")


def write_stat(path: Path, busy_ticks: int) -> None:
    """A /proc/stat where every usable core worked for `busy_ticks` in each of the six kinds of work."""
    core = (
        f"{busy_ticks} {busy_ticks} {busy_ticks} 900000 800000 {busy_ticks} {busy_ticks} {busy_ticks} 7777 0"
    )
    lines = [f"cpu  {core}", *(f"cpu{core_id} {core}" for core_id in sorted(os.sched_getaffinity(0)))]
    path.write_text("\n".join([*lines, f"cpu99999 {core}", "intr 1 2 3", "ctxt 5"]) + "\n")


def test_work_of_the_usable_cores_is_added_up(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    write_stat(stat, 100)
    watch = CoreWatch(stat)
    assert watch.cores == len(os.sched_getaffinity(0))
    read = watch.read()
    assert read is not None
    assert read.busy == pytest.approx(watch.cores * 600 / os.sysconf("SC_CLK_TCK"))


def test_own_work_is_taken_off_and_short_stretches_tell_nothing() -> None:
    watch = CoreWatch()
    start = CoreTimes(at=10.0, busy=100.0, own=5.0)
    assert watch.others(start, CoreTimes(at=12.0, busy=103.0, own=6.0)) == pytest.approx(1.0)
    assert watch.others(start, CoreTimes(at=12.0, busy=101.0, own=7.0)) == 0.0
    assert watch.others(start, CoreTimes(at=10.02, busy=100.02, own=5.0)) is None
    assert watch.others(None, start) is None


def test_a_system_that_does_not_tell(tmp_path: Path) -> None:
    watch = CoreWatch(tmp_path / "absent")
    assert watch.cores == 0 and watch.read() is None


def test_a_real_neighbour_is_seen_and_we_are_not() -> None:
    watch = CoreWatch()
    before = watch.read()
    burn = "import time\nend = time.monotonic() + 0.5\nwhile time.monotonic() < end: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    seen = watch.others(before, watch.read())
    assert seen is not None and seen > 0.3

    before, cpu, wall = watch.read(), time.process_time(), time.monotonic()
    while time.process_time() - cpu < 0.3:
        pass
    others = watch.others(before, watch.read())
    own = 0.3 / (time.monotonic() - wall)
    # Our own core does not count, so what is left is at most the others; 0.25 for the grain of the count.
    assert others is not None and others <= watch.cores - own + 0.25


def test_frequency_and_heat_where_the_kernel_tells(tmp_path: Path) -> None:
    for core in os.sched_getaffinity(0):
        folder = tmp_path / f"devices/system/cpu/cpu{core}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_cur_freq").write_text("2600000\n")
    for number, milli in enumerate(["48500", "61200", "-274000", "not a number"]):
        zone = tmp_path / f"class/thermal/thermal_zone{number}"
        zone.mkdir(parents=True)
        (zone / "temp").write_text(milli)
    watch = CoreWatch(sys=tmp_path)
    assert watch.state() == {"mhz": 2600, "celsius": 61.2}
    (tmp_path / "class/thermal/thermal_zone1/temp").unlink()  # a sensor that went away
    assert watch.state()["celsius"] == 48.5
    assert CoreWatch(sys=tmp_path / "absent").state() == {}


def test_others_beyond_their_share_disturb() -> None:
    watch = CoreWatch()
    limit = 0.15 * watch.cores
    assert disturbance(watch, limit * 0.9, {}, 0.15) == "" == disturbance(watch, None, {}, 0.15)
    assert f"of {watch.cores} cores" in disturbance(watch, limit * 1.1, {}, 0.15)
    assert watch_for("cpu").cores == watch.cores
