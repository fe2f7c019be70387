"""The conditions under which something was timed: who else used the cores, how fast and hot the device was.

The kernel counts how long each core was busy, for whomever (/proc/stat, proc(5)); less what this process used
itself, that is the others' share. The count has the grain of a tick, 10 ms on most kernels: a stretch of a
few ticks says nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from routetune.tasks.verdicts.gpu_watch import GpuWatch

#: Columns of a "cpu" line of /proc/stat that mean work: user, nice, system, irq, softirq, steal. Time that
#: the hypervisor gave to another guest (steal) is others' work; that of guests of ours is within user.
_BUSY = (1, 2, 3, 6, 7, 8)
#: Ticks that a stretch must last for the grain of the count not to matter.
_TICKS = 5


@dataclass(frozen=True, slots=True)
class CoreTimes:
    """One reading; all in seconds.

    Attributes:
        at: time of the reading, on a clock of its own.
        busy: time for which the watched cores worked so far, added up.
        own: CPU time of this process so far, all threads.
    """

    at: float
    busy: float
    own: float


class Watch(Protocol):
    """What a measurement wants to know of its neighbours."""

    cores: int

    def read(self) -> CoreTimes | None: ...

    def others(self, before: CoreTimes | None, after: CoreTimes | None) -> float | None: ...

    def state(self) -> dict[str, Any]:
        """What the device is like now, as plain JSON; what cannot be told is left out.

        "mhz" of the watched cores on average, "celsius" of the hottest sensor, and for a GPU "gpu", see
        `GpuWatch.state`.
        """
        ...


def watch_for(device: str) -> CoreWatch:
    """The watch of a device, "cpu" or "cuda:N": of a GPU the host's cores too, since time is end to end."""
    kind, _, index = device.partition(":")
    return CoreWatch(gpu=GpuWatch(int(index or 0)) if kind == "cuda" else None)


def disturbance(watch: Watch, others: float | None, state: Mapping[str, Any], share: float) -> str:
    """Why a stretch is not to be trusted, for a person; empty where there is no reason.

    Args:
        others: cores that other processes used in it.
        state: of the device at its end.
        share: of the cores, or of a GPU's time, that others may use.
    """
    reasons = []
    if others is not None and others > share * watch.cores:
        reasons.append(f"others used {others:.2f} of {watch.cores} cores")
    gpu = state.get("gpu") or {}
    if gpu.get("others_percent", 0) > 100 * share:
        reasons.append(f"others used {gpu['others_percent']} % of the GPU")
    if slow := gpu.get("slowed_by"):
        reasons.append(f"the GPU was slowed down ({', '.join(slow)})")
    return "; ".join(reasons)


class CoreWatch:
    """Reads the use of the cores that this process may run on, and what else the device tells.

    Attributes:
        cores: how many cores are watched, 0 where the system does not tell (`read` then gives None).
    """

    def __init__(
        self, stat: Path = Path("/proc/stat"), sys: Path = Path("/sys"), gpu: GpuWatch | None = None
    ) -> None:
        self._stat = stat
        self._gpu = gpu
        cores = sorted(_usable_cores())
        self._names = {f"cpu{core}" for core in cores}
        self._clocks = _readable(
            sys / f"devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq" for core in cores
        )
        zones = sys.glob("class/thermal/thermal_zone*/temp")
        self._sensors = _readable([*zones, *sys.glob("class/hwmon/hwmon*/temp*_input")])
        self._tick = 1.0 / os.sysconf("SC_CLK_TCK")
        self.cores = len(self._lines())

    def read(self) -> CoreTimes | None:
        """The times now, or None where the system does not tell."""
        own, at = time.process_time(), time.perf_counter()
        lines = self._lines()
        if not lines:
            return None
        busy = sum(int(line[column]) for line in lines for column in _BUSY) * self._tick
        return CoreTimes(at, busy, own)

    def others(self, before: CoreTimes | None, after: CoreTimes | None) -> float | None:
        """Cores that others kept busy on average between two readings, from 0 to `cores`.

        None where it cannot be told: no readings, or a stretch of less than a few ticks.
        """
        if before is None or after is None or after.at - before.at < _TICKS * self._tick:
            return None
        busy = (after.busy - before.busy) - (after.own - before.own)
        return min(max(busy / (after.at - before.at), 0.0), float(self.cores))

    def state(self) -> dict[str, Any]:
        """See `Watch.state`. Without a frequency driver, as in most guests, there is no "mhz": what such a
        kernel shows in /proc/cpuinfo is a constant."""
        told: dict[str, Any] = {}
        if clocks := _numbers(self._clocks):
            told["mhz"] = round(sum(clocks) / len(clocks) / 1000)
        # Sensors that are not connected read as nonsense.
        if heat := [milli / 1000 for milli in _numbers(self._sensors) if 0 < milli < 150_000]:
            told["celsius"] = round(max(heat), 1)
        if self._gpu is not None and (gpu := self._gpu.state()) is not None:
            told["gpu"] = gpu
        return told

    def _lines(self) -> list[list[str]]:
        try:
            lines = [line.split() for line in self._stat.read_text().splitlines()]
        except OSError:
            return []
        return [line for line in lines if line and line[0] in self._names and len(line) > max(_BUSY)]


def _usable_cores() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _readable(paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if _numbers([path])]


def _numbers(paths: Iterable[Path]) -> list[int]:
    found = []
    for path in paths:
        with suppress(OSError, ValueError):
            found.append(int(path.read_text()))
    return found
