"""Keep what is tuned fresh: watch the machine, serve the nightly run."""

from __future__ import annotations

import json
import math
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from routetune.flows.commands.common import Json, StoreOption, TargetsArgument, answer, app
from routetune.tasks.errors import BadInput


@app.command()
def watch(
    targets: TargetsArgument = None,
    store: StoreOption = None,
    once: Annotated[bool, typer.Option("--once", help="Look once and end; the default.")] = False,
    every: Annotated[
        float | None, typer.Option("--every", min=1, help="Look again and again, so many seconds apart.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Look whether the targets' devices, drivers and libraries are what they were; tell Prefect if not.

    The event is routetune.environment.changed. With --every and --json, one object a look.
    Exit codes: 0 looked, and told what was to tell; 1 a change could not be told; 2 bad input.
    """
    if every is not None:
        if once:
            raise BadInput("--once and --every exclude each other: give one of them")
        if not math.isfinite(every):
            raise BadInput(f"--every takes seconds, found {every}: give a number, or --once")
        arguments = [*map(str, targets or []), *(["--store", str(store)] if store else [])]
        _keep_watching(arguments + ["--json"] * as_json, every)
    from routetune.flows.watch import watch_once
    from routetune.tasks.store import open_store

    answer(watch_once(targets or [Path()], open_store(store)), as_json, "sightings:looks")


def _keep_watching(arguments: list[str], seconds: float) -> None:
    """Look in a new process each time: this one would see the libraries and the driver that it began with."""
    while True:
        started = time.monotonic()
        subprocess.run([sys.executable, "-m", "routetune.flows", "watch", *arguments], check=False)
        time.sleep(max(0.0, started + seconds - time.monotonic()))


@app.command()
def serve(
    targets: TargetsArgument = None,
    store: StoreOption = None,
    cron: Annotated[str, typer.Option("--cron", help="When to look at every target.")] = "10 0 * * *",
    timezone: Annotated[
        str, typer.Option("--timezone", help="Whose clocks, such as America/Montreal.")
    ] = "UTC",
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the deployment. [default: this host]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Serve the nightly run on this machine, until a signal ends it: by the schedule, and when `watch` finds
    that the machine has changed. Needs a Prefect server (PREFECT_API_URL)."""
    from routetune.flows.serving import serve as serve_here
    from routetune.tasks.status import find_targets
    from routetune.tasks.store import open_store

    places = targets or [Path()]
    find_targets(places)
    place = open_store(store).name

    def say(found: dict[str, object]) -> None:
        if as_json:
            print(json.dumps(found), flush=True)
        else:
            print(f"serving {found['deployment']} of {place}: {cron} {timezone}, and on changes", flush=True)

    serve_here(places, place, cron, timezone, name or platform.node(), say)
