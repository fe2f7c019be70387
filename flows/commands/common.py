"""What every command shares: the application, its common options, and how an answer is printed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="routetune",
    help="Find the fastest acceptable build route of a model: build, check, measure, publish.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout instead of tables.")]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="PLACE",
        help="Where engines, entries and records are: a folder, or s3://BUCKET/PREFIX. [env ROUTETUNE_STORE]",
    ),
]
RayOption = Annotated[
    int | None,
    typer.Option(
        "--ray",
        min=1,
        metavar="N",
        help="Let N workers of the Ray cluster of RAY_ADDRESS do the work, on devices like the one here.",
    ),
]
TargetArgument = Annotated[Path, typer.Argument(help="The target file (TOML).")]
TargetsArgument = Annotated[
    list[Path] | None, typer.Argument(help="Target files, or folders of them. [default: this folder]")
]

#: Knobs begin with a dash as options do; no command may have short options, or these would be ambiguous.
KNOBS_AS_ARGUMENTS = {"ignore_unknown_options": True}


def answer(found: dict[str, Any], as_json: bool, table: str) -> None:
    """Print an answer: as JSON, or by `table`, a function of `tasks/report/tables.py`, or "module:function"
    of another module of `tasks/report`.

    By name, since tables import a library that takes longer to load than most answers take to find.
    """
    if as_json:
        print(json.dumps(found, indent=2), flush=True)
        return
    from rich.console import Console

    module, _, function = table.rpartition(":")
    tables = import_module(f"routetune.tasks.report.{module or 'tables'}")
    render: Callable[[dict[str, Any], Console], None] = getattr(tables, function)
    # A pipe or a file has no width of its own; routes and reasons must not be cut there.
    console = Console(width=None if sys.stdout.isatty() else 10_000, highlight=False)
    with console.capture() as text:
        render(found, console)
    # Not typer's, which takes another stream where it mistrusts the encoding, and loses bytes of a path.
    print("\n".join(line.rstrip() for line in text.get().splitlines()), flush=True)
