"""Answers on what services load, for a person: where it lies, where it was exported to, if it still holds."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from routetune.tasks.report.summary import DEFAULT, speed_text


def engine_path(answer: dict[str, Any], console: Console) -> None:
    """The path alone, so that a script can take it."""
    console.print(escape(answer["path"]))


def exported(answer: dict[str, Any], console: Console) -> None:
    """Where the engine went, and what the configuration there cannot express."""
    console.print(escape(f"{answer['target']}: version {answer['version']} of {answer['model']}"))
    console.print(escape(answer["engine"]))
    for sentence in answer["unsaid"]:
        console.print(f"[yellow]not in {escape(answer['config'])}: {escape(sentence)}[/]")


def reproduced(answer: dict[str, Any], console: Console) -> None:
    """Old and new figures side by side."""
    word = "[green]holds[/]" if answer["holds"] else "[red]does not hold[/]"
    route = answer["route"] or DEFAULT
    console.print(f"{escape(answer['target'])}: generation {answer['generation']}, {escape(route)}: {word}")
    table = Table("", "published", "now", "", box=None, pad_edge=False)
    accuracy, speed = answer["accuracy"], answer["speed"]
    losses = [str(accuracy[side]["loss"]) for side in ("old", "new")]
    table.add_row("loss", *losses, escape(accuracy["reason"]))
    table.add_row("speed", *(_speed(speed[side]) for side in ("old", "new")), escape(speed["reason"]))
    console.print(table)
    for line in answer["stale"]:
        console.print(escape(f"moved: {line}"))


def _speed(found: dict[str, Any] | None) -> str:
    return "not measured" if found is None else speed_text(found)
