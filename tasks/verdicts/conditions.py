"""Who else used the cores while something was timed.

The kernel counts how long each core was busy, for whomever (/proc/stat, proc(5)); less what this process used
itself, that is the others' share. The count has the grain of a tick, 10 ms on most kernels: a stretch of a
few ticks says nothing.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

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


class CoreWatch:
    """Reads the use of the cores that this process may run on.

    Attributes:
        cores: how many cores are watched, 0 where the system does not tell (`read` then gives None).
    """

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat = stat
        self._names = {f"cpu{core}" for core in _usable_cores()}
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
