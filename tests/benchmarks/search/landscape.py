"""Landscapes: what became of every route of a space, as Parquet, to replay searches on.

One row for each route. Columns: `landscape`, one column for each knob (named with its family sign), then
OUTCOME. The metadata of the file hold what the rows do not: the knobs with their values and defaults, the
exclude rules, and where the figures come from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from routetune.tasks.errors import BadInput
from routetune.tasks.routes.expression import Term
from routetune.tasks.routes.knob import Knob, KnobDatabase
from routetune.tasks.routes.route import Route
from routetune.tasks.routes.space import RouteSpace
from routetune.tasks.trial import Failure, Outcome, Trial

ABOUT = b"routetune.landscape"
OUTCOME = {
    "eligible": pa.bool_(),
    "outcome": pa.string(),
    "reason": pa.string(),
    "speed": pa.float64(),  # control time / route time
    "low": pa.float64(),
    "high": pa.float64(),
    "abandoned": pa.bool_(),
    "alias_of": pa.string(),
    "loss": pa.float64(),
    "losses": pa.string(),  # JSON, one dict per input set
    "build_seconds": pa.float64(),
}


@dataclass(frozen=True)
class Landscape:
    """The truth about a space.

    Attributes:
        trials: one for each route of the space, and for the default route.
        about: where it comes from; `source` is "recorded" or "synthetic".
        truth: the speed of each route without noise, where that is known; else it is what `trials` say.
    """

    name: str
    space: RouteSpace
    trials: Mapping[Route, Trial]
    about: Mapping[str, Any] = field(default_factory=dict)
    truth: Mapping[Route, float] = field(default_factory=dict)

    def true_speed(self, route: Route) -> float:
        """The speed by which a search is judged; 0 for a route that may not win."""
        trial = self.trials[route]
        return (self.truth.get(route) or trial.speed or 0.0) if trial.eligible else 0.0

    @cached_property
    def best(self) -> float:
        """Speed of the fastest eligible route."""
        return max(self.eligible)

    @cached_property
    def eligible(self) -> list[float]:
        """The speeds of all routes that may win, without noise where that is known."""
        return [speed for route in self.trials if (speed := self.true_speed(route))]

    @property
    def default_is_eligible(self) -> bool:
        return self.trials[Route()].eligible


def space_of(
    knobs: Iterable[Mapping[str, Any]], exclude: Iterable[Mapping[str, str]] = (), order: Sequence[str] = ()
) -> RouteSpace:
    """A space of knobs given as {"name", "values", "default"} and, where it is no list, "fixed".

    Args:
        order: the names as the database has them, on which ids of routes rest; without it as in `knobs`.
    """
    known, terms = [], []
    for told in knobs:
        values = tuple(told["values"])
        allowed = values if told["default"] in values else (*values, told["default"])
        known.append(Knob(told["name"], allowed, told["default"]))
        terms.append(Term(known[-1], values, not told.get("fixed", False)))
    known.sort(key=lambda knob: order.index(knob.name) if order else 0)
    return RouteSpace(terms, KnobDatabase("landscape", known), tuple(exclude))


def write(landscape: Landscape, path: Path) -> None:
    """Write a landscape whole, or not at all."""
    space, rows = landscape.space, []
    for route, trial in landscape.trials.items():
        knobs = {t.knob.name: route.as_dict().get(t.knob.name, t.knob.default) for t in space.terms}
        rows.append({"landscape": landscape.name} | knobs | _outcome(trial))
    kinds = [("landscape", pa.string())] + [(term.knob.name, pa.string()) for term in space.terms]
    about = {
        "about": dict(landscape.about),
        "knobs": [
            {"name": t.knob.name, "values": t.values, "default": t.knob.default, "fixed": not t.variable}
            for t in space.terms
        ],
        "exclude": space.exclude,
        "order": [name for name in space.database if name in {term.knob.name for term in space.terms}],
    }
    schema = pa.schema(kinds + list(OUTCOME.items()), metadata={ABOUT: json.dumps(about).encode()})
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), unfinished, compression="zstd")
    unfinished.replace(path)


def read(path: Path) -> Landscape:
    """Read a landscape, which is named as its file is.

    Raises:
        BadInput: the file is none.
    """
    table = pq.read_table(path)
    raw = (table.schema.metadata or {}).get(ABOUT)
    if raw is None:
        raise BadInput(f"{path} is no landscape: its metadata lack {ABOUT.decode()}")
    told = json.loads(raw)
    space = space_of(told["knobs"], told["exclude"], told["order"])
    names = [term.knob.name for term in space.terms]
    rows = table.to_pylist()
    found = {}
    for row in rows:
        route = space.route({name: row[name] for name in names})
        found[route] = _trial(route, row)
    return Landscape(path.stem, space, found, told["about"])


def _outcome(trial: Trial) -> dict[str, Any]:
    return {
        "eligible": trial.eligible,
        "outcome": str(trial.outcome),
        "reason": trial.reason,
        "speed": trial.speed,
        "low": trial.low,
        "high": trial.high,
        "abandoned": trial.abandoned,
        "alias_of": trial.alias_of,
        "loss": trial.loss,
        "losses": None if trial.losses is None else json.dumps(trial.losses),
        "build_seconds": trial.seconds.get("build"),
    }


def _trial(route: Route, row: Mapping[str, Any]) -> Trial:
    outcome = Outcome(row["outcome"])
    failed = outcome not in (Outcome.ELIGIBLE, Outcome.INACCURATE)
    return Trial(
        route,
        alias_of=row["alias_of"],
        loss=row["loss"],
        losses=None if row["losses"] is None else json.loads(row["losses"]),
        speed=row["speed"],
        low=row["low"],
        high=row["high"],
        abandoned=bool(row["abandoned"]),
        failure=Failure(outcome, row["reason"], "build") if failed else None,
        accepted=None if failed else outcome is Outcome.ELIGIBLE,
        verdict="" if failed else row["reason"],
        seconds={} if row["build_seconds"] is None else {"build": row["build_seconds"]},
    )
