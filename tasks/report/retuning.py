"""The report of a retune, for a person: as tables, and as the markdown that Prefect shows."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from routetune.tasks.report.summary import speed_text

_COLOURS = {"fresh": "green", "tuned": "green", "failed": "red", "refused": "red"}


def table(answer: dict[str, Any], console: Console) -> None:
    """One row per target that was not simply fresh; below, what moved and why something was not done."""
    rows = [one for one in answer["targets"] if (one["state"], one["outcome"]) != ("fresh", "fresh")]
    found = Table("target", "was", "outcome", "speed", "gain", "builds", box=None, pad_edge=False)
    for one in rows:
        colour = _COLOURS.get(one["outcome"], "yellow")
        outcome = f"[{colour}]{one['outcome']}[/]"
        gain = f"[red]{one['gain']}[/]" if one["gain"] == "lost" else one["gain"] or ""
        found.add_row(escape(one["target"]), one["state"], outcome, _speeds(one), gain, str(one["builds"]))
    if rows:
        console.print(found)
    for one in rows:
        for line in [*one["changes"], *([one["detail"]] if one["detail"] else [])]:
            console.print(escape(f"{one['target']}: {line}"))
    console.print(headline(answer))


def headline(answer: dict[str, Any]) -> str:
    """The night in one line."""
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(answer["counts"].items()))
    lost = f"; gain lost: {', '.join(answer['lost'])}" if answer["lost"] else ""
    spent = f"{answer['seconds']:.1f} s, devices held for {answer['device_seconds']:.1f} s"
    return f"{len(answer['targets'])} targets: {counts}; {answer['builds']} builds; {spent}{lost}"


def markdown(answer: dict[str, Any]) -> str:
    """The summary artifact of a retune."""
    lines = ["# Retune", headline(answer)]
    for title, outcomes in (
        ("Tuned", ("tuned",)),
        ("Failed", ("failed", "refused")),
        ("Left as it was", ("busy", "skipped", "backing off", "cannot tell")),
    ):
        rows = [one for one in answer["targets"] if one["outcome"] in outcomes]
        if rows:
            lines += ["", f"## {title}", "", "| target | was | what moved | outcome | speed | gain |"]
            lines += ["|---|---|---|---|---|---|", *map(_row, rows)]
    return "\n".join(lines)


def _row(one: dict[str, Any]) -> str:
    outcome = f"{one['outcome']}: {one['detail']}" if one["detail"] else one["outcome"]
    gain = {"lost": "**lost**", None: ""}.get(one["gain"], one["gain"])
    cells = (one["target"], one["state"], "<br>".join(one["changes"]), outcome, _speeds(one), gain)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|').replace(chr(10), ' ') for cell in cells)} |"


def _speeds(one: dict[str, Any]) -> str:
    """ "1.100x [1.080, 1.120] -> 1.200x [1.180, 1.220]" where both are known."""
    before, after = one["speed_before"], one["speed"]
    if after is None:
        return ""
    told = speed_text(after)
    return told if before is None or before == after else f"{speed_text(before)} -> {told}"
