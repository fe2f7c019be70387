"""The machine that tunes."""

from __future__ import annotations

from typing import Annotated

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


@app.command()
def gc(
    max_size: Annotated[
        str | None,
        typer.Option(help="What the store may have, such as 20GB or 5GiB; engines that lost go first."),
    ] = None,
    max_age: Annotated[
        float | None, typer.Option(min=0, help="Days without use after which entries and blobs go.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing; tell what would go.")] = False,
    remote: Annotated[
        bool,
        typer.Option(
            "--remote", help="Of a store in a bucket, collect what the bucket has, not this host's copy."
        ),
    ] = False,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Delete from the store what nobody needs, and what is over a limit; beside tunes, too. Records stay."""
    from routetune.tasks.collect import byte_count, collect

    limit = None if max_size is None else byte_count(max_size)
    answer(collect(store, limit, max_age, dry_run, remote), as_json, "collecting:collection_table")
