"""Knobs, routes, and what other tools found out about them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from routetune.flows.commands.common import KNOBS_AS_ARGUMENTS, Json, StoreOption, TargetArgument, answer, app


@app.command(context_settings=KNOBS_AS_ARGUMENTS)
def knobs(
    name: Annotated[
        str | None, typer.Argument(help="A knob, a glob such as '-session.*', or a target file (.toml).")
    ] = None,
    family: Annotated[
        str | None, typer.Option(help="compiler, builder or qdq: the knobs that begin with -, + or @.")
    ] = None,
    backend: Annotated[str, typer.Option(help="Whose knobs, without a target.")] = "onnxruntime",
    device: Annotated[
        str | None,
        typer.Option(help="For which device. [default: cuda:0 where the backend can use a GPU, else cpu]"),
    ] = None,
    diff: Annotated[
        Path | None,
        typer.Option("--diff", help="A knob database saved before (by --json, or trtexec --helpBuildRoute)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the knobs of the installed backend, or with --diff what is new, gone or changed in them.

    Of a target they are those that its routes may hold: its backend's, and the places of its model.
    """
    from routetune.tasks.report.answers import knob_difference
    from routetune.tasks.report.knobs import knob_table

    if diff is not None:
        answer(knob_difference(backend, device, diff), as_json, "knob_difference")
        return
    answer(knob_table(backend, device, name, family), as_json, "knobs")


@app.command(context_settings=KNOBS_AS_ARGUMENTS)
def expand(
    what: Annotated[str, typer.Argument(help="A target file, or a route expression.")],
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="auto, fast, full, guided, mixed, model, racing, random or screening. "
            "[default: the target's, else mixed]"
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Routes to list at the most.")] = 20,
    backend: Annotated[str, typer.Option(help="Whose knobs, for an expression.")] = "onnxruntime",
    as_json: Json = False,
) -> None:
    """Show which routes a target or an expression stands for, and how many. Builds nothing."""
    from routetune.tasks.report.answers import expansion

    answer(expansion(what, algorithm, limit, backend), as_json, "expansion")


@app.command()
def import_trials(
    file: Annotated[Path, typer.Argument(help="A tuning log of trtexec or Torch-TensorRT (JSON lines).")],
    target: Annotated[
        Path | None, typer.Option(help="The target file that its trials are for. [default: every target]")
    ] = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Keep what another tool found out about routes, to be tried first; it is never taken as a result."""
    from routetune.tasks.report.exchange import import_trials as keep
    from routetune.tasks.store import open_store

    answer(keep(file, target, open_store(store)), as_json, "imported")


@app.command()
def export_trials(
    target: TargetArgument,
    store: StoreOption = None,
    run: Annotated[str | None, typer.Option(help="Which run. [default: the latest]")] = None,
) -> None:
    """Print the trials of a run in the format of trtexec's --tuningCacheFile (JSON lines)."""
    from routetune.tasks.report.exchange import export_trials as log_of
    from routetune.tasks.store import open_store

    typer.echo(log_of(target, open_store(store, write=False), run), nl=False)
