"""What a collection did, for a person."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

_WORDS = {
    "engines": "engines",
    "blobs": "other blobs",
    "entries": "entries",
    "unfinished": "unfinished files",
    "set_aside": "damaged files set aside",
    "scratch": "working folders of killed runs",
}


def collection_table(answer: dict[str, Any], console: Console) -> None:
    """What went, kind by kind; what stays, and why."""
    went = "would go" if answer["dry_run"] else "gone"
    table = Table(went, "files", "size", box=None, pad_edge=False)
    for kind, words in _WORDS.items():
        if (tally := answer["collected"][kind])["files"]:
            table.add_row(words, str(tally["files"]), decimal(tally["bytes"]))
    console.print(table if table.row_count else f"nothing {went}")
    console.print(
        escape(f"{answer['store']}: {decimal(answer['before'])} before, {decimal(answer['after'])} after")
    )
    console.print(f"pinned: {_tally(answer['pinned'])}{_reasons(answer['pinned']['by'])}")
    runs = answer["in_use"]["runs"]
    console.print(f"in use: {_tally(answer['in_use'])}{escape(' by ' + ', '.join(runs)) if runs else ''}")
    if answer["over"]:
        over = decimal(answer["over"])
        console.print(
            f"[yellow]still {over} over the limit: the rest is pinned, in use, or no blob or entry[/]"
        )


def _tally(tally: dict[str, Any]) -> str:
    return f"{tally['files']} blobs, {decimal(tally['bytes'])}"


def _reasons(by: dict[str, int]) -> str:
    return f" ({', '.join(f'{why} {count}' for why, count in by.items())})" if by else ""
