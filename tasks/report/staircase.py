"""The frontier of a run: for every ε, how many routes are eligible, and which of them is the fastest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json
from routetune.tasks.canonical import number
from routetune.tasks.recorded import RecordedRun, recorded
from routetune.tasks.subject import open_subject
from routetune.tasks.verdicts.frontier import Frontier, Step, ranked
from routetune.tasks.verdicts.thresholds import dial_of, threshold

if TYPE_CHECKING:
    from routetune.tasks.bench import Bench
    from routetune.tasks.store import Store
    from routetune.tasks.targets.schema import Target

Report = Sequence[Mapping[str, Any]]

#: What the staircase is made of. Without the raw timings, which are most of a record.
COLUMNS = (
    "route", "outcome", "reason", "alias_of", "losses", "verdict", "speed", "low", "high", "abandoned"
)  # fmt: skip


class Staircase:
    """The trials of a run under a metric, with the tolerance left open.

    Attributes:
        rows: the records, in the order of the run.
        thresholds: the least ε at which each is eligible; NaN for those that are at none.
        metric: what ε bounds.
    """

    def __init__(self, found: RecordedRun, target: Target, metric: str | None = None) -> None:
        dial = dial_of(target.accuracy, metric)
        self.found, self.target = found, target
        self.rows, self.metric = found.rows, dial.rules.default.metric
        self.reports = [from_json(row["losses"]) if row["losses"] else None for row in self.rows]
        self.thresholds = [
            math.nan if report is None or row["speed"] is None else threshold(report, dial)
            for row, report in zip(self.rows, self.reports, strict=True)
        ]
        simplicity = [(len(row["route"].split()), row["route"]) for row in self.rows]
        self.frontier = Frontier(self.thresholds, ranked([_speed(row) for row in self.rows], simplicity))

    @cached_property
    def steps(self) -> list[Step]:
        return list(self.frontier.steps())

    @cached_property
    def top1(self) -> list[float | None]:
        """Of each route the share of all labelled rows that it has right; None without labels."""
        return [top1_of(report, "candidate") for report in self.reports]

    @cached_property
    def labels(self) -> dict[str, Any] | None:
        """The labelled rows of each input set, and the share that the reference has right, or None."""
        report = next((one for one in self.reports if one and any("top1" in part for part in one)), None)
        if report is None:
            return None
        sets = {one["set"]: one["top1"]["rows"] for one in report if "top1" in one}
        return {"rows": sum(sets.values()), "sets": sets, "top1": top1_of(report, "reference")}

    @cached_property
    def default(self) -> int | None:
        """Index of the default route, or None where it was not recorded."""
        return next((at for at, row in enumerate(self.rows) if row["route"] == ""), None)

    def default_eligible(self, epsilon: float) -> bool:
        return self.default is not None and self.thresholds[self.default] <= epsilon

    def step(self, step: Step) -> dict[str, Any]:
        """A step as plain JSON."""
        leaving = [self.rows[index]["route"] for index in step.leaving]
        return self._at(step.epsilon, step.eligible, step.fastest) | {"leaving": leaving}

    def answers(self, epsilons: Sequence[float]) -> list[dict[str, Any]]:
        """What is eligible and fastest at each ε, as plain JSON."""
        counts, fastest = (found.tolist() for found in self.frontier.at(epsilons))
        return [
            self._at(epsilon, count, None if index < 0 else index)
            for epsilon, count, index in zip(epsilons, counts, fastest, strict=True)
        ]

    def never(self) -> list[dict[str, Any]]:
        """The routes that are eligible at no ε, with the reason."""
        return [
            {"route": row["route"], "outcome": row["outcome"], "reason": row["reason"]}
            for row, least in zip(self.rows, self.thresholds, strict=True)
            if math.isnan(least)
        ]

    def _at(self, epsilon: float, eligible: int, fastest: int | None) -> dict[str, Any]:
        default = self.default_eligible(epsilon)
        told: dict[str, Any] = {"epsilon": number(epsilon), "eligible": eligible, "default_eligible": default}
        if fastest is None:
            return told | {"fastest": None, "loss": None, "top1": None, "speed": None, "clears": False}
        row = self.rows[fastest]
        low = row["low"] or 0.0
        gain = 1 + self.target.timing.min_gain
        return told | {
            "fastest": row["route"],
            "loss": number(self.thresholds[fastest]),
            "top1": self.top1[fastest],
            "speed": {name: number(row[key]) for name, key in _SPEED.items()},
            "clears": low > 1 and low >= gain,
        }


_SPEED = {"ratio": "speed", "low": "low", "high": "high"}


def frontier(
    path: Path, store: Store, metric: str | None, epsilons: Sequence[float], run: str | None
) -> dict[str, Any]:
    """The answer of `routetune frontier`.

    Raises:
        BadInput: the target is refused, nothing was recorded, or not the losses of the metric.
    """
    return told(open_staircase(path, store, metric, run), epsilons)


def open_staircase(path: Path, store: Store, metric: str | None, run: str | None) -> Staircase:
    """The staircase of a target's run, by default of the latest. Raises BadInput as `frontier`."""
    subject = open_subject(path)
    return Staircase(recorded(subject, store, run, COLUMNS), subject.target, metric)


def staircase_of(bench: Bench) -> Staircase:
    """The staircase of the run on the bench, from what it has recorded."""
    subject = bench.subject
    return Staircase(recorded(subject, bench.store, bench.run.id, COLUMNS), subject.target)


def told(stairs: Staircase, epsilons: Sequence[float]) -> dict[str, Any]:
    """A staircase as plain JSON, with the answers for some ε."""
    never = stairs.never()
    return {
        "target": stairs.target.name,
        "run": stairs.found.run.id,
        "ended_at": stairs.found.run.ended_at,
        "metric": stairs.metric,
        "tolerance": number(stairs.target.accuracy.tolerance),
        "moved": [str(change) for change in stairs.found.moved],
        "trials": len(stairs.rows),
        "runnable": len(stairs.rows) - len(never),
        "labels": stairs.labels,
        "steps": [stairs.step(step) for step in stairs.steps],
        "answers": stairs.answers(epsilons),
        "never": never,
    }


def top1_of(report: Report | None, side: str) -> float | None:
    """The share of all labelled rows that the "reference" or "candidate" has right; None without labels."""
    found = [one["top1"] for one in report or () if "top1" in one]
    rows = sum(one["rows"] for one in found)
    return sum(one[side] * one["rows"] for one in found) / rows if rows else None


def _speed(row: dict[str, Any]) -> float | None:
    """The speed of a route that may win: measured itself. One that was abandoned is far behind the best of
    its run, and may be the fastest that a smaller ε leaves."""
    speed: float | None = row["speed"]
    able = speed is not None and row["alias_of"] is None
    return speed if able and speed is not None and math.isfinite(speed) and speed > 0 else None
