"""The duel: finalists and the control, loaded afresh several times, timed in turns in one process.

The sampling unit is a load. Two sessions of one engine in one process differ by about half a per cent, so
however many calls are made within a load, they say nothing of what the next load will bring.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from routetune.tasks.verdicts.rounds import checked_nanoseconds


@dataclass(frozen=True, slots=True)
class DuelSettings:
    """How one load of a duel is timed.

    Attributes:
        seconds: the time for all engines of the load together, warm-up left aside.
        chunk_seconds: calls of one engine in a row last about this long; shorter ones measure the switch.
        turns: times that each engine gets its turn; even, so that the order can be reversed half the time.
        warm_calls: calls before each chunk that are not counted: caches and clocks have seen the others.
    """

    seconds: float = 2.0
    chunk_seconds: float = 0.02
    turns: int = 6
    warm_calls: int = 2


@dataclass(frozen=True, slots=True)
class Load:
    """Raw samples of one load: nanoseconds of each counted call, by engine name."""

    samples: Mapping[str, Sequence[int]]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def duel_load(
    calls: Mapping[str, Callable[[], None]],
    settings: DuelSettings,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Load:
    """Time every call in turns; the order is reversed every second time (ABBA), so that drift cancels.

    Raises:
        BadClock: the clock stood still or ran backwards.
    """
    sizes = {name: _chunk(call, len(calls), settings, clock) for name, call in calls.items()}
    samples: dict[str, list[int]] = {name: [] for name in calls}
    order = list(calls)
    for turn in range(settings.turns):
        for name in order if turn % 2 == 0 else reversed(order):
            call = calls[name]
            for _ in range(settings.warm_calls):
                call()
            samples[name] += [_timed(call, clock) for _ in range(sizes[name])]
    return Load(samples)


def log_ratios(loads: Sequence[Mapping[str, Sequence[int]]], name: str, control: str) -> list[float]:
    """log(control time / candidate time), one of each load, from medians of the raw samples."""
    return [math.log(median(one[control]) / median(one[name])) for one in loads]


def _chunk(call: Callable[[], None], engines: int, settings: DuelSettings, clock: Callable[[], int]) -> int:
    """How many calls make a chunk, from the fastest of a few that also serve as warm-up."""
    each = min(_timed(call, clock) for _ in range(5)) / 1e9
    in_budget = settings.seconds / (settings.turns * engines)
    return max(2, round(min(settings.chunk_seconds, in_budget) / each))


def _timed(call: Callable[[], None], clock: Callable[[], int]) -> int:
    start = clock()
    call()
    return checked_nanoseconds(clock() - start)
