"""What raw samples tell a person: percentiles, drift, and whether the machine was fit to measure on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

#: A drift of the times over a measurement that is worth a remark.
DRIFT = 0.05


def percentiles(samples: Sequence[int], device: Sequence[int] = ()) -> dict[str, int]:
    """p50, p95 and p99 in nanoseconds, and how many samples; nearest ranks, so each really happened.

    Args:
        device: times of the device itself, if it told any; their median is "device_p50".
    """
    ordered = sorted(samples)
    ranks = {f"p{p}": _rank(ordered, p) for p in (50, 95, 99) if ordered}
    own = {"device_p50": _rank(sorted(device), 50)} if device else {}
    return {**ranks, **own, "calls": len(ordered)}


def _rank(ordered: Sequence[int], percent: int) -> int:
    return ordered[max(math.ceil(len(ordered) * percent / 100), 1) - 1]


def log_median(samples: Sequence[int]) -> float:
    """The median of the logs: of an even number of samples the middle two are averaged as ratios."""
    return median([math.log(ns) for ns in samples])


def drift_of(levels: Sequence[float]) -> float | None:
    """exp of how far the last third of some log times is above the first third; None for less than three."""
    third = len(levels) // 3
    return math.exp(median(levels[-third:]) - median(levels[:third])) if third else None


def fitness(stretches: Sequence[Mapping[str, Any]], levels: Sequence[float], unit: str) -> dict[str, Any]:
    """How fit the machine was, as strict JSON, from stretches of a measurement in order.

    Args:
        stretches: rounds or loads as stored: "others", "dropped", "reason", "conditions".
        levels: the log time of each stretch that was kept, all its engines together.
        unit: "rounds" or "loads", for the remarks.

    Returns: "dropped", "busy" (disturbed ones were kept), "drift", "drifting", "conditions" (the lowest and
        highest of each number), and "remarks", sentences for a person.
    """
    kept = [one for one in stretches if not one["dropped"]]
    disturbed = [one for one in kept if one["reason"]]
    drift = drift_of(levels)
    drifting = abs(math.log(drift or 1.0)) > DRIFT
    conditions = _ranges([one.get("conditions") or {} for one in kept])
    remarks = []
    if disturbed:
        remarks.append(
            f"the machine was busy: {_busy(disturbed)} during {len(disturbed)} of the "
            f"{len(kept)} {unit} that had to be kept"
        )
    if drift is not None and drifting:
        remarks.append(f"times drifted by {drift - 1:+.0%} over the measurement, on all sides together")
    if strangers := conditions.get("gpu.others", [0, 0])[1]:
        remarks.append(f"{strangers} other process{'es were' if strangers > 1 else ' was'} on the GPU")
    return {
        "dropped": len(stretches) - len(kept),
        "busy": bool(disturbed),
        "drift": drift,
        "drifting": drifting,
        "conditions": conditions,
        "remarks": remarks,
    }


def _busy(disturbed: Sequence[Mapping[str, Any]]) -> str:
    """What disturbed most of them."""
    if any(one["others"] is not None and "cores" in one["reason"] for one in disturbed):
        used = median([one["others"] for one in disturbed if one["others"] is not None])
        return f"others used {used:.1f} cores"
    return str(disturbed[0]["reason"])


def _ranges(states: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for state in states:
        flat = {**state, **{f"gpu.{name}": value for name, value in (state.get("gpu") or {}).items()}}
        for name, value in flat.items():
            if isinstance(value, int | float):
                low, high = found.get(name, [value, value])
                found[name] = [min(low, value), max(high, value)]
    return found
