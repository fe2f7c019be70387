"""Answers as tables for a person. Each function takes the plain answer that `--json` would print."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from routetune.tasks.report.explanation import sentences
from routetune.tasks.report.summary import DEFAULT, effect_rows, speed_text
from routetune.tasks.report.timing import times_text

_COLOURS = {
    **dict.fromkeys(("fresh", "tuned", "kept"), "green"),
    **dict.fromkeys(("stale", "reselect"), "yellow"),
}


def run_summary(answer: dict[str, Any], console: Console) -> None:
    """The result of a tune, or what is published."""
    state = answer["state"]
    colour = _COLOURS.get(state, "red")
    console.print(f"[bold]{escape(answer['target'])}[/] [{colour}]{answer.get('note', state)}[/]")
    facts = Table.grid(padding=(0, 2))
    control = answer["control"]
    facts.add_row("default", "1.000x" if control == "" else f"no control of its own; timed against {control}")
    facts.add_row("winner", escape(f"{answer['route'] or DEFAULT}  {speed_text(answer['speed'])}"))
    facts.add_row("because", escape(answer["decision"]["reason"]))
    objective = answer["objective"]
    facts.add_row(objective["of"], escape(times_text(answer["times"], objective["streams"])))
    facts.add_row("accuracy", escape(answer["accuracy"]["verdict"]))
    for doubt in answer["accuracy"].get("warnings", ()):
        facts.add_row("[bold red]beware[/]", f"[bold red]{escape(doubt)}[/]")
    facts.add_row("trials", _counts(answer["counts"]))
    facts.add_row("where", escape(answer["environment"]))
    facts.add_row("engine", escape(answer["engine"]))
    console.print(facts)
    for remark in answer["remarks"]:
        console.print(f"[yellow]{escape(remark)}[/]")
    _explanation(answer.get("explanation"), console)
    _explanations(answer["decision"]["explanations"], console)
    _excluded(answer["excluded"], console)
    for change in answer.get("changes", []):
        console.print(escape(f"moved: {change['text']}"))
    if answer.get("detail"):
        console.print(f"[yellow]{escape(answer['detail'])}[/]")


def refusal(answer: dict[str, Any], console: Console) -> None:
    """Every route of a run that ended without an eligible one."""
    _excluded(answer["excluded"], console)


def freshness(answer: dict[str, Any], console: Console) -> None:
    """One row per target, and below it each field that moved."""
    table = Table("target", "state", "costs", "speed", "route", box=None, pad_edge=False)
    for one in answer["targets"]:
        colour = _COLOURS.get(one["state"], "red")
        speed = one["speed"] and speed_text(one["speed"])
        route = "" if one["route"] is None else one["route"] or DEFAULT
        table.add_row(
            escape(one["target"]), f"[{colour}]{one['state']}[/]", one["cost"], speed or "", escape(route)
        )
    console.print(table)
    for one in answer["targets"]:
        if one["detail"]:
            console.print(escape(f"{one['target']}: {one['detail']}"))
        for change in one["changes"]:
            console.print(escape(f"{one['target']}: {change['text']}"))


def knobs(answer: dict[str, Any], console: Console) -> None:
    """The knob database."""
    table = Table("knob", "values", "default", "meaning", box=None, pad_edge=False)
    for one in answer["tuner_options"]:
        values = one["allowed_values"].partition("=")[2]
        table.add_row(*(escape(text) for text in (one["option"], values, one["default_value"], one["help"])))
    console.print(table)
    console.print(f"{len(answer['tuner_options'])} knobs of {escape(answer['tuner_version'])}")
    for text in (*answer["notes"], *answer["malformed"]):
        console.print(escape(text))


def knob_difference(answer: dict[str, Any], console: Console) -> None:
    """What changed between two knob databases."""
    console.print(f"{escape(answer['old_version'])} -> {escape(answer['new_version'])}")
    for word in ("new", "gone"):
        for name in answer[word]:
            console.print(escape(f"{word}: {name}"))
    for change in answer["changed"]:
        console.print(
            escape(f"changed: {change['option']} {change['field']}: {change['old']} -> {change['new']}")
        )
    if not (answer["new"] or answer["gone"] or answer["changed"]):
        console.print("the same knobs, values and defaults")


def expansion(answer: dict[str, Any], console: Console) -> None:
    """Routes in the order in which they would be tried."""
    for route in answer["routes"]:
        console.print(escape(route or DEFAULT))
    planned = answer["planned"]
    console.print(
        f"{len(answer['routes'])} shown of {'an unknown number' if planned is None else planned} planned by "
        f"{answer['algorithm']}; the space holds {answer['size']}. {escape(answer['explanation'])}"
    )


def imported(answer: dict[str, Any], console: Console) -> None:
    """What became of a tuning log."""
    kept = f"{answer['trials']} trials kept for {answer['target'] or 'every target'}"
    counts = f"{answer['usable']} can be tried first, {answer['crashed']} crashed"
    console.print(escape(f"{answer['file']}: {kept}; {counts}"))
    for problem in answer["problems"]:
        console.print(f"[yellow]{escape(problem)}[/]")


def verification(answer: dict[str, Any], console: Console) -> None:
    """Problems, one a line."""
    for problem in answer["problems"]:
        console.print(f"[red]{escape(problem)}[/]")
    if not answer["problems"]:
        count = len(answer["environments"])
        console.print(f"{escape(answer['target'])}: all bytes as published ({count} environment(s))")


def examination(answer: dict[str, Any], console: Console) -> None:
    """What doctor found."""
    table = Table("", "what", "found", box=None, pad_edge=False)
    for one in answer["checks"]:
        mark = "[green]ok[/]" if one["ok"] else "[red]no[/]"
        table.add_row(mark, escape(one["name"]), escape(one["found"]))
    console.print(table)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{value} {name}" for name, value in counts.items())


def _explanation(explanation: dict[str, Any] | None, console: Console) -> None:
    """What the knobs did, what was put off, and what would come next."""
    if not explanation:
        return
    if rows := effect_rows(explanation):
        table = Table("knob", "speed with / without it", "routes", box=None, pad_edge=False)
        for row in rows:
            table.add_row(*(escape(cell) for cell in row))
        console.print(table)
    for sentence in sentences(explanation):
        console.print(escape(sentence))


def _explanations(explanations: dict[str, str], console: Console) -> None:
    if explanations:
        table = Table("finalist", "why it did not win", box=None, pad_edge=False, title_justify="left")
        for route, why in explanations.items():
            table.add_row(escape(route or DEFAULT), escape(why))
        console.print(table)


def _excluded(excluded: list[dict[str, Any]], console: Console) -> None:
    if excluded:
        table = Table("excluded", "outcome", "reason", box=None, pad_edge=False)
        for one in excluded:
            table.add_row(escape(one["route"] or DEFAULT), one["outcome"], escape(one["reason"]))
        console.print(table)
