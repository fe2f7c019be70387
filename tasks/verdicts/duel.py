"""The duel: finalists and the control, loaded afresh several times, timed in turns in one process.

The sampling unit is a load. Two sessions of one engine in one process differ by about half a per cent, so
however many calls are made within a load, they say nothing of what the next load will bring. A load during
which others used the cores is repeated.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import mean
from typing import Any

from routetune.tasks.verdicts.conditions import CoreWatch, Watch, disturbance
from routetune.tasks.verdicts.figures import fitness, log_median, percentiles
from routetune.tasks.verdicts.rounds import PATIENCE, no_collection
from routetune.tasks.verdicts.samplers import (
    LONG_SECONDS,
    Call,
    Clock,
    Sampler,
    Turns,
    as_sampler,
    checked_nanoseconds,
)


@dataclass(frozen=True, slots=True)
class DuelSettings:
    """How one load of a duel is timed.

    Attributes:
        seconds: the time for all engines of the load together, warm-up left aside; up to `PATIENCE` times as
            much where calls are too long for that.
        chunk_seconds: calls of one engine in a row last about this long; shorter ones measure the switch.
        turns: times that each engine gets its turn at the most; even, so that the order can be reversed half
            the time. Fewer where switches would take more than half of the time; two if they fit into it at
            all, else one.
        interference: share of the usable cores that others may use during the load.
        streams: inferences in flight; above 1 a sample is the mean time per inference of a whole chunk.
    """

    seconds: float = 2.0
    chunk_seconds: float = 0.02
    turns: int = 6
    interference: float = 0.15
    streams: int = 1


@dataclass(frozen=True, slots=True)
class Load:
    """One load.

    Attributes:
        samples: nanoseconds of each counted call, by engine name.
        others: cores that other processes used meanwhile, on average; None where it cannot be told.
        conditions: what the device was like afterwards, see `Watch.state`.
        device: the device's own nanoseconds of a few calls more after each turn; empty where none tells.
        reason: why it is not to be trusted; empty for a quiet load.
        dropped: not used, since enough others were quieter.
    """

    samples: Mapping[str, Sequence[int]]
    others: float | None = None
    conditions: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    dropped: bool = False
    device: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def duel_load(
    calls: Mapping[str, Call | Sampler],
    settings: DuelSettings,
    clock: Clock = time.perf_counter_ns,
    watch: Watch | None = None,
) -> Load:
    """Time every call in turns; the order is reversed every second time (ABBA), so that drift cancels.

    Raises:
        BadClock: the clock stood still or ran backwards.
    """
    watch = watch or CoreWatch()
    samplers = {name: as_sampler(call, clock) for name, call in calls.items()}
    with no_collection():
        turns = Turns(clock)
        times, sizes = _plan(samplers, settings, turns)
        samples: dict[str, list[int]] = {name: [] for name in samplers}
        device: dict[str, list[int]] = {name: [] for name in samplers}
        before = watch.read()
        for turn in range(times):
            for name in samplers if turn % 2 == 0 else reversed(samplers):
                samples[name] += turns.sample(samplers[name], sizes[name])
                device[name] += turns.device_sample(samplers[name])
        others = watch.others(before, watch.read())
    state = watch.state()
    reason = disturbance(watch, others, state, settings.interference)
    return Load(samples, others, state, reason, device={name: ns for name, ns in device.items() if ns})


def enough(loads: Sequence[Mapping[str, Any]], wanted: int, repeats: int) -> bool:
    """Whether a duel has its loads: `wanted` quiet ones, or `repeats` more than that of any kind."""
    quiet = sum(not load["reason"] for load in loads)
    return quiet >= wanted or len(loads) >= wanted + repeats


def quietest(loads: Sequence[Mapping[str, Any]], wanted: int) -> list[dict[str, Any]]:
    """The loads with all but `wanted` of them marked as dropped: those that others disturbed the most.

    By the disturbance alone, never by what was measured, so that the choice cannot favour anyone.
    """
    ranked = sorted(range(len(loads)), key=lambda i: (bool(loads[i]["reason"]), loads[i]["others"] or 0.0, i))
    kept = set(ranked[:wanted])
    return [{**load, "dropped": index not in kept} for index, load in enumerate(loads)]


def log_ratios(loads: Sequence[Mapping[str, Any]], name: str, control: str) -> list[float]:
    """log(control time / candidate time), one of each load that counts, from medians of the raw samples."""
    kept = [load["samples"] for load in loads if not load["dropped"]]
    for samples in kept:
        for ns in (*samples[name], *samples[control]):
            checked_nanoseconds(ns)
    return [log_median(samples[control]) - log_median(samples[name]) for samples in kept]


def duel_figures(loads: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What else the loads of a duel tell, as strict JSON.

    "times" holds p50, p95 and p99 of each engine in nanoseconds and the number of samples, and "device_p50"
    where the device told; "loads" is how many count; the rest is that of `fitness`.
    """
    counted = [load for load in loads if not load["dropped"]]
    kept = [load["samples"] for load in counted]
    levels = [mean(map(log_median, samples.values())) for samples in kept]
    times = {}
    for name in kept[0] if kept else ():
        device = [ns for load in counted for ns in load.get("device", {}).get(name, ())]
        times[name] = percentiles([ns for samples in kept for ns in samples[name]], device)
    return {"times": times, "loads": len(kept), **fitness(loads, levels, "loads")}


def order_of(names: Sequence[str], load: int) -> list[str]:
    """The order in which load number `load` loads and times the engines.

    It begins with another one each time, and goes the other way round every second time: each engine comes
    in every place, and has each neighbour on either side.
    """
    turn = load % len(names)
    order = [*names[turn:], *names[:turn]]
    return order[::-1] if load // len(names) % 2 else order


def _plan(
    samplers: Mapping[str, Sampler], settings: DuelSettings, turns: Turns
) -> tuple[int, dict[str, int]]:
    """How many turns each engine gets, and how many calls make its chunk; warms all of them up.

    Calls that are long beside the time for them get fewer turns, in the end one of one call: however slow the
    engines, a load ends.
    """
    each = {}
    for name, sampler in samplers.items():
        each[name] = _least(sampler)
        turns.learn(sampler, each[name])
    turns.switch(next(iter(samplers.values())))
    waiting = turns.resting * len(samplers)  # of one turn of each
    fit = settings.seconds / 2 / waiting if waiting else settings.turns
    two = sum(max(2, samplers[name].least) * ns for name, ns in each.items())
    pairs = PATIENCE * settings.seconds * 1e9 / two  # turns of two calls, or of the shortest sample
    # One turn cancels no drift within the load; the loads, whose order turns round, still do.
    one = 2 * waiting > settings.seconds or pairs < 2
    times = 1 if one else int(min(max(2 * (min(fit, pairs) // 2), 2), settings.turns))
    chunk = max(settings.chunk_seconds, turns.resting / 4)
    seconds = min(chunk, settings.seconds / (times * len(samplers)))
    least = 2 if pairs >= 1 else 1
    return times, {name: max(least, round(seconds * 1e9 / ns)) for name, ns in each.items()}


def _least(sampler: Sampler) -> int:
    """The shortest of a few calls, in nanoseconds; of two where calls are long, since the first is slow. A
    sample of many inferences does for itself."""
    found = sampler.sample(1)
    while sampler.least == 1 and (len(found) < 2 or (len(found) < 5 and min(found) < LONG_SECONDS * 1e9)):
        found = [*found, *sampler.sample(1)]
    return min(found)
