"""The machine that tunes."""

from __future__ import annotations

import typer
from routetune.flows.commands.common import Json, StoreOption, answer, app


@app.command()
def doctor(store: StoreOption = None, as_json: Json = False) -> None:
    """Check the machine: libraries, devices, store, Prefect; says what is missing and what to do."""
    from routetune.tasks.doctor import examine

    found = examine(store)
    answer(found, as_json, "examination")
    if any(not one["ok"] for one in found["checks"]):
        raise typer.Exit(1)
