"""The course of a run: what became of each trial, and when it was worked on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

#: What may become of a trial, as the course of the run shows it.
LANES = ("built", "shared build", "from the store", "alias", "given up", "failed")


def lane_of(row: Mapping[str, Any]) -> str:
    """What became of a trial, one of LANES."""
    if row["step"] is not None:
        return "failed"
    if row["alias_of"] is not None:
        return "alias"
    if row["abandoned"]:
        return "given up"
    if "build" in (row["cached"] or ()):
        return "from the store"
    return "built" if "build" in json.loads(row["seconds"] or "{}") else "shared build"


def course(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Lane -> (start, length) of each trial, in seconds of work since the start; empty lanes are left out."""
    lanes: dict[str, list[tuple[float, float]]] = {name: [] for name in LANES}
    start = 0.0
    for row in rows:
        seconds = json.loads(row["seconds"] or "{}")
        length = sum(spent for step, spent in seconds.items() if step not in (row["cached"] or ()))
        lanes[lane_of(row)].append((start, length))
        start += length
    return {name: spans for name, spans in lanes.items() if spans}
