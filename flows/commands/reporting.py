"""The report of a run, for people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from routetune.flows.commands.common import Json, StoreOption, TargetArgument, answer, app


@app.command()
def report(
    target: TargetArgument,
    output: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="The file to write. [default: the target's name with .html]"),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(help="Which run. [default: the one that made what is published, else the latest]"),
    ] = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Write what a run found out as one HTML file that needs no network."""
    from routetune.tasks.report.page import write_report
    from routetune.tasks.store import open_store

    answer(write_report(target, open_store(store, write=False), run, output), as_json, "dial:report")
