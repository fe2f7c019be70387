"""What earlier runs know: every trial on record, and what they say to try first."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from routetune.flows.commands.common import Json, StoreOption, TargetArgument, answer, app


@app.command()
def priors(
    target: TargetArgument,
    store: StoreOption = None,
    limit: Annotated[int, typer.Option(min=1, help="Routes to list at the most.")] = 10,
    as_json: Json = False,
) -> None:
    """Show which routes earlier experience says to try first, and why. Builds nothing."""
    from routetune.tasks.report.experience import priors_of
    from routetune.tasks.store import open_store

    answer(priors_of(target, open_store(store, write=False), limit), as_json, "experience:prior_table")


@app.command()
def records(
    target: Annotated[
        Path | None, typer.Argument(help="The target file whose trials to list. [default: all targets]")
    ] = None,
    store: StoreOption = None,
    limit: Annotated[int, typer.Option(min=1, help="Trials to list at the most.")] = 20,
    as_json: Json = False,
) -> None:
    """List trials on record, of any run and environment, the newest first."""
    from routetune.tasks.report.experience import records_of
    from routetune.tasks.store import open_store

    answer(records_of(target, open_store(store, write=False), limit), as_json, "experience:record_table")
