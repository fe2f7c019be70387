"""What is published: look at it, check it, go back."""

from __future__ import annotations

import typer
from routetune.flows.commands.common import Json, StoreOption, TargetArgument, answer, app


@app.command()
def show(target: TargetArgument, store: StoreOption = None, as_json: Json = False) -> None:
    """Show what is published for a target, why it won, and each route that was excluded."""
    from routetune.tasks.report.answers import shown
    from routetune.tasks.store import open_store

    answer(shown(target, open_store(store, write=False)), as_json, "run_summary")


@app.command()
def verify(target: TargetArgument, store: StoreOption = None, as_json: Json = False) -> None:
    """Check every byte of what is published for a target against its manifest. Exit 1 on any difference."""
    from routetune.tasks.report.answers import verification
    from routetune.tasks.store import open_store

    found = verification(target, open_store(store, write=False))
    answer(found, as_json, "verification")
    if found["problems"]:
        raise typer.Exit(1)


@app.command()
def rollback(target: TargetArgument, store: StoreOption = None, as_json: Json = False) -> None:
    """Go back to the generation that was current before, in this environment."""
    from routetune.tasks.report.answers import rolled_back
    from routetune.tasks.store import open_store

    answer(rolled_back(target, open_store(store)), as_json, "run_summary")
