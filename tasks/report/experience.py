"""What the store knows from earlier runs, as answers and as tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from routetune.tasks.canonical import number
from routetune.tasks.priors import find_priors
from routetune.tasks.report.explanation import prior_reason
from routetune.tasks.report.summary import DEFAULT, speed_text
from routetune.tasks.routes.space import open_space
from routetune.tasks.store import Store
from routetune.tasks.subject import knobs_of, open_subject
from routetune.tasks.targets.schema import load_target

#: Of a trial's record; raw samples and losses are for `Records.read`.
_COLUMNS = (
    "finished_at",
    "run",
    "target",
    "environment",
    "route",
    "outcome",
    "reason",
    "alias_of",
    "loss",
    "speed",
    "low",
    "high",
    "abandoned",
    "cached",
)


def priors_of(path: Path, store: Store, limit: int) -> dict[str, Any]:
    """What a tune of the target would try right after the default route, and why.

    Raises:
        BadInput: the target or its routes cannot be used.
    """
    subject = open_subject(path)
    search = subject.target.search
    space = open_space(search.routes, knobs_of(subject), search.exclude)
    found = find_priors(store, subject, space, limit=limit)
    return {
        "target": subject.target.name,
        "environment": subject.environment.label,
        "priors": [prior.to_json() for prior in found.priors],
        "dropped": list(found.dropped),
    }


def records_of(path: Path | None, store: Store, limit: int) -> dict[str, Any]:
    """The newest trials on record, of one target or all.

    Raises:
        BadInput: the target cannot be used.
    """
    target = None if path is None else load_target(path).name
    table = store.records.read(target=target, columns=_COLUMNS)
    newest = table.sort_by([("finished_at", "descending")]).slice(0, limit)
    return {
        "store": store.name,
        "target": target,
        "on_record": table.num_rows,
        "records": [_plain(row) for row in newest.to_pylist()],
    }


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    figures = {name: row[name] for name in ("loss", "speed", "low", "high") if row[name] is not None}
    plain = {name: number(value) for name, value in figures.items()}
    return row | plain | {"finished_at": row["finished_at"].isoformat()}


def prior_table(answer: dict[str, Any], console: Console) -> None:
    """Routes in the order in which they would be tried, each with its reason."""
    table = Table("route", "because it", box=None, pad_edge=False)
    for prior in answer["priors"]:
        table.add_row(escape(prior["route"]), escape("; ".join([prior_reason(prior), *prior["notes"]])))
    if answer["priors"]:
        console.print(table)
    else:
        console.print(escape(f"{answer['target']}: no earlier run has anything to say of it"))
    for sentence in answer["dropped"]:
        console.print(f"[yellow]{escape(f'left out: {sentence}')}[/]")


def record_table(answer: dict[str, Any], console: Console) -> None:
    """One row a trial."""
    table = Table("finished", "target", "route", "outcome", "speed", "reason", box=None, pad_edge=False)
    for one in answer["records"]:
        speed = "" if one["low"] is None else speed_text(one | {"ratio": one["speed"]})
        table.add_row(
            one["finished_at"][:19],
            escape(one["target"]),
            escape(one["route"] or DEFAULT),
            one["outcome"],
            speed,
            escape(one["reason"] or ""),
        )
    console.print(table)
    console.print(f"{len(answer['records'])} shown of {answer['on_record']} trials on record")
