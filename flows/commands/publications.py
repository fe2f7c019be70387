"""What is published: look at it, check it, go back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from routetune.flows.commands.common import Json, StoreOption, TargetArgument, answer, app

Served = Annotated[
    Path, typer.Argument(help="The target file; or its name, on a machine that has only the store.")
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="Refuse an engine that is stale in anything, even if it would run."),
]

PublicKeys = Annotated[
    list[Path] | None,
    typer.Option(
        "--public-key", help="Refuse what is not signed by this key, a PEM file; or by another, if repeated."
    ),
]


@app.command()
def show(target: TargetArgument, store: StoreOption = None, as_json: Json = False) -> None:
    """Show what is published for a target, why it won, and each route that was excluded."""
    from routetune.tasks.report.answers import shown
    from routetune.tasks.store import open_store

    answer(shown(target, open_store(store, write=False)), as_json, "run_summary")


@app.command()
def verify(
    target: TargetArgument,
    public_key: PublicKeys = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Check every byte of what is published for a target against its manifest. Exit 1 on any difference."""
    from routetune.tasks.report.answers import verification
    from routetune.tasks.store import open_store

    found = verification(target, open_store(store, write=False), public_key)
    answer(found, as_json, "verification")
    if found["problems"]:
        raise typer.Exit(1)


@app.command()
def rollback(target: TargetArgument, store: StoreOption = None, as_json: Json = False) -> None:
    """Go back to the generation that was current before, in this environment."""
    from routetune.tasks.report.answers import rolled_back
    from routetune.tasks.store import open_store

    answer(rolled_back(target, open_store(store)), as_json, "run_summary")


@app.command()
def path(
    target: Served,
    strict: Strict = False,
    public_key: PublicKeys = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Print the engine file that a service on this machine should load, every byte of it checked.

    An engine for another kind of device is refused; one that is merely stale is printed, with a warning.
    """
    from routetune.tasks.service import located

    answer(located(target, store, strict, public_key), as_json, "serving:engine_path")


@app.command()
def export(
    target: Served,
    triton: Annotated[
        Path, typer.Option("--triton", file_okay=False, help="A model repository of Triton to export to.")
    ],
    model_name: Annotated[
        str | None, typer.Option("--model-name", help="Its name there. [default: the target's]")
    ] = None,
    strict: Strict = False,
    public_key: PublicKeys = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Export what is published into a Triton model repository; its version is the generation's number."""
    from routetune.tasks.triton import exported

    answer(exported(target, store, triton, model_name, strict, public_key), as_json, "serving:exported")


@app.command()
def reproduce(target: TargetArgument, store: StoreOption = None, as_json: Json = False) -> None:
    """Measure the published engine again: references, accuracy, and the duel with the control.

    Exit codes: 0 the verdict still holds, 1 it does not.
    """
    from routetune.tasks.service import find
    from routetune.tasks.store import open_store

    find(target, store, strict=False)
    opened = open_store(store)
    from routetune.flows.run import run_reproduce

    found = run_reproduce(target, opened.name, quiet=as_json)
    answer(found, as_json, "serving:reproduced")
    if not found["holds"]:
        raise typer.Exit(1)
