"""Tune, and say how fresh what was tuned is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from routetune.flows.commands.common import (
    Json,
    RayOption,
    StoreOption,
    TargetArgument,
    TargetsArgument,
    answer,
    app,
)
from routetune.tasks.errors import RoutetuneError

#: Exit code of a check that found something stale.
STALE = 3


@app.command()
def tune(
    target: TargetArgument,
    store: StoreOption = None,
    as_json: Json = False,
    force: Annotated[bool, typer.Option("--force", help="Tune although what is published is fresh.")] = False,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Answer no step from the store; implies --force.")
    ] = False,
    ray: RayOption = None,
) -> None:
    """Tune one target: references, builds, accuracy, timing, selection, publication.

    Exit codes: 0 done or fresh, 1 failed, 2 bad input, 4 no eligible route.
    """
    from routetune.tasks.status import freshness_of
    from routetune.tasks.store import open_store
    from routetune.tasks.store.signing import open_signer
    from routetune.tasks.subject import check_inputs, open_subject

    opened = open_store(store)
    subject = open_subject(target)
    state = freshness_of(subject, opened)
    if state.state == "cannot tell":
        raise RoutetuneError(f"target {subject.target.name!r}: {state.detail}")
    damaged = state.state == "fresh" and opened.publications.verify(subject.target.name, subject.key)
    if state.state == "fresh" and not (force or refresh or damaged):
        from routetune.tasks.report.summary import published_summary

        answer(published_summary(state), as_json, "run_summary")
        return
    check_inputs(subject)
    open_signer(subject.target.publish.sign_key, opened.root)
    from routetune.flows.run import run_tune

    forced = force or bool(damaged)
    answer(
        run_tune(target, opened.name, force=forced, refresh=refresh, ray=ray, quiet=as_json),
        as_json,
        "run_summary",
    )


@app.command()
def status(
    targets: TargetsArgument = None,
    store: StoreOption = None,
    as_json: Json = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 3 unless every target is fresh.")] = False,
    rehash: Annotated[
        bool, typer.Option("--rehash", help="Read every file anew, also those that look unchanged.")
    ] = False,
) -> None:
    """Say which targets are fresh, which are stale, and what moved."""
    from routetune.tasks.status import find_targets, look_at
    from routetune.tasks.store import open_store

    opened = open_store(store, write=False)
    found = look_at(find_targets(targets or [Path()]), opened, rehash)
    answer({"targets": [one.to_json() for one in found]}, as_json, "freshness")
    if any(one.state == "refused" for one in found):
        raise typer.Exit(2)
    if check and any(one.state != "fresh" for one in found):
        raise typer.Exit(STALE)
