"""Keep many targets fresh, and watch how fresh they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from routetune.flows.commands.common import Json, RayOption, StoreOption, TargetsArgument, answer, app


@app.command()
def retune(
    targets: TargetsArgument = None,
    store: StoreOption = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", help="Begin no target later than this after the start.")
    ] = None,
    device_seconds: Annotated[
        float | None,
        typer.Option("--device-seconds", help="Begin no target once devices were held for this long."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Try those too that back off after failures.")
    ] = False,
    ray: RayOption = None,
    as_json: Json = False,
) -> None:
    """Tune every target that is not fresh, worst first; the others go on when one fails.

    Exit codes, the first that applies: 1 one failed, 2 bad input, 6 a gain was lost, 5 one was skipped since
    its device was busy or the budget ended, 3 one backs off or its device cannot be read, 0 all are fresh.
    """
    from routetune.tasks.retune import open_night
    from routetune.tasks.store import open_store

    opened, places = open_store(store), targets or [Path()]
    night = open_night(places, opened, seconds, device_seconds, force)
    if night.todo:
        from routetune.flows.run import run_retune

        found = run_retune(places, opened.name, seconds, device_seconds, force, ray, quiet=as_json)
    else:  # nothing to do takes no Prefect
        found = night.report()
    answer(found, as_json, "retuning:table")
    raise typer.Exit(found["exit_code"])


@app.command()
def metrics(
    targets: TargetsArgument = None,
    store: StoreOption = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", dir_okay=False, help="Write here, in one step, for node_exporter's textfile collector."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Figures for Prometheus: targets by state, publications, gains, trials, failures, device-seconds."""
    from routetune.tasks.report.metrics import exposition, measured
    from routetune.tasks.status import find_targets, look_at
    from routetune.tasks.store import open_store
    from routetune.tasks.store.files import write_atomically

    opened = open_store(store, write=False)
    found = measured(look_at(find_targets(targets or [Path()]), opened), opened)
    if file is not None:
        write_atomically(file.absolute(), exposition(found))
    if as_json:
        answer(found, as_json, "")
    elif file is None:
        typer.echo(exposition(found).decode(), nl=False)
