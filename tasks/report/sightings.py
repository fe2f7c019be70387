"""What `watch` found, as a table."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

_COLOURS = {"unchanged": "green", "first look": "green", "changed": "yellow"}


def looks(answer: dict[str, Any], console: Console) -> None:
    """One row for each environment, and below it each field that moved."""
    table = Table("backend", "device", "state", "environment", box=None, pad_edge=False)
    for one in answer["environments"]:
        state = f"[{_COLOURS.get(one['state'], 'red')}]{one['state']}[/]"
        table.add_row(escape(one["backend"]), one["device"], state, escape(one["label"]))
    console.print(table)
    for one in answer["environments"]:
        for change in one["moved"]:
            console.print(escape(f"{one['device']}: {change['text']}"))
        if one["unknown"]:
            unknown = ", ".join(one["unknown"])
            console.print(escape(f"{one['device']}: cannot read {unknown}; nothing is told until it can be"))
        if one["event"]:
            console.print(f"{one['device']}: told Prefect (event {one['event']})")
    for reason in answer["refused"]:
        console.print(f"[red]{escape(reason)}[/]")
