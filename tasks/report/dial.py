"""Tables of the frontier and of what helps to choose ε; see `tables`."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from routetune.tasks.report.summary import DEFAULT, speed_text

#: A longer staircase is shown where the fastest route changes; `--json` has all of it.
MANY = 40
#: Whether the fastest clears the gain asked for is by the screening: only a duel decides.
HEADS = ("ε from", "eligible", "fastest", "its loss", "speed", "clears")


def frontier(answer: dict[str, Any], console: Console) -> None:
    """The staircase from the largest ε down."""
    _head(answer, console)
    steps = answer["steps"]
    shown = telling(steps)
    labels = answer["labels"]
    table = Table(*HEADS, *(["its top-1"] if labels else []), box=None, pad_edge=False)
    for step in shown:
        table.add_row(*_cells(step), *([_share(step["top1"])] if labels else []))
    console.print(table)
    if len(shown) < len(steps):
        console.print(f"{len(steps)} steps; those where the fastest route changes are shown")
    if steps and steps[-1]["epsilon"] != 0:
        console.print(f"below ε = {_number(steps[-1]['epsilon'])} no route is eligible")
    for one in answer["answers"]:
        epsilon, eligible, fastest, loss, speed, _ = _cells(one)
        at = f"at ε = {epsilon}: {eligible} eligible"
        found = f", the fastest {fastest} with {speed}, loss {loss}" if one["speed"] else ""
        console.print(at + found + (f", top-1 {_share(one['top1'])}" if one["top1"] is not None else ""))
    if labels:
        console.print(_labelled(labels))
    _never(answer["never"], console)


def telling(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps, or of very many those at which the fastest route changes."""
    if len(steps) <= MANY:
        return steps
    return [one for at, one in enumerate(steps) if not at or one["fastest"] != steps[at - 1]["fastest"]]


def epsilon(answer: dict[str, Any], console: Console) -> None:
    """Losses to hold ε against, and what each step costs in the task."""
    _head(answer, console)
    labels = answer["labels"]
    marks = Table("what", "loss", *(["top-1"] if labels else []), "route", box=None, pad_edge=False)
    for one in answer["marks"]:
        told = "not tried" if one["loss"] is None else _number(one["loss"])
        share = [_share(one["top1"])] if labels else []
        marks.add_row(escape(one["name"]), told, *share, _route(one["route"]))
    console.print(marks)
    if any(one["loss"] is None for one in answer["marks"]):
        console.print(escape("what was not tried is, with places such as @fp16=[*] in search.routes"))
    console.print()
    if labels is None:
        console.print("no labels: what a step costs in the task cannot be told; see reference.labels")
    else:
        console.print(_labelled(labels))
    table = Table(*HEADS, *(["its top-1", "lowest top-1"] if labels else []), box=None, pad_edge=False)
    for step in answer["steps"]:
        shares = [_share(step["top1"]), _share(step["lowest_top1"])] if labels else []
        table.add_row(*_cells(step), *shares)
    console.print(table)


def _head(answer: dict[str, Any], console: Console) -> None:
    console.print(
        escape(
            f"{answer['target']}: {answer['trials']} trials of run {answer['run']}, {answer['runnable']} "
            f"runnable; ε bounds {answer['metric']}, and the target file has {_number(answer['tolerance'])}"
        )
    )
    for change in answer["moved"]:
        console.print(f"[yellow]moved since: {escape(change)}[/]")


def _labelled(labels: dict[str, Any]) -> str:
    sets = ", ".join(f"{rows} of {name}" for name, rows in labels["sets"].items())
    share = _share(labels["top1"])
    return escape(f"top-1 accuracy over {labels['rows']} labelled rows ({sets}); the reference has {share}")


def _cells(step: dict[str, Any]) -> list[str]:
    speed = speed_text(step["speed"]) if step["speed"] else ""
    loss = "" if step["loss"] is None else _number(step["loss"])
    clears = "yes" if step["clears"] else "no" if step["speed"] and step["default_eligible"] else ""
    return [_number(step["epsilon"]), str(step["eligible"]), _route(step["fastest"]), loss, speed, clears]


def _route(route: str | None) -> str:
    return "" if route is None else escape(route or DEFAULT)


def _number(value: float | str) -> str:
    return f"{float(value):.6g}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"


def _never(never: list[dict[str, Any]], console: Console) -> None:
    if never:
        table = Table("at no ε", "outcome", "reason", box=None, pad_edge=False)
        for one in never:
            table.add_row(_route(one["route"]), one["outcome"], escape(one["reason"]))
        console.print(table)


def report(answer: dict[str, Any], console: Console) -> None:
    """Where the report is."""
    head = answer["headline"]
    console.print(escape(f"{answer['target']}: {head['speed']} {head['interval']}".rstrip()))
    console.print(escape(f"{answer['file']} ({answer['bytes'] // 1024} kB)"))
