"""The command line. Each command asks a plain function for a plain answer, and prints it."""

from __future__ import annotations

import json
import os
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from routetune.tasks.errors import RoutetuneError

app = typer.Typer(
    name="routetune",
    help="Find the fastest acceptable build route of a model: build, check, measure, publish.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout instead of tables.")]
StoreOption = Annotated[
    Path | None,
    typer.Option("--store", help="Folder of engines, entries and records. [env ROUTETUNE_STORE]"),
]
TargetArgument = Annotated[Path, typer.Argument(help="The target file (TOML).")]

STALE = 3
#: Prefect may take this long to hand its last events over and to stop a server of its own.
LEAVE_SECONDS = 20.0
#: Knobs begin with a dash as options do; no command may have short options, or these would be ambiguous.
KNOBS_AS_ARGUMENTS = {"ignore_unknown_options": True}


@app.command()
def tune(
    target: TargetArgument,
    store: StoreOption = None,
    as_json: Json = False,
    force: Annotated[bool, typer.Option("--force", help="Tune although what is published is fresh.")] = False,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Answer no step from the store; implies --force.")
    ] = False,
) -> None:
    """Tune one target: references, builds, accuracy, timing, selection, publication.

    Exit codes: 0 done or fresh, 1 failed, 2 bad input, 4 no eligible route.
    """
    from routetune.tasks.status import freshness_of
    from routetune.tasks.store import open_store
    from routetune.tasks.subject import check_inputs, open_subject

    opened = open_store(store)
    subject = open_subject(target)
    state = freshness_of(subject, opened)
    if state.state == "cannot tell":
        raise RoutetuneError(f"target {subject.target.name!r}: {state.detail}")
    damaged = state.state == "fresh" and opened.publications.verify(subject.target.name, subject.key)
    if state.state == "fresh" and not (force or refresh or damaged):
        from routetune.tasks.report.summary import published_summary

        _answer(published_summary(state), as_json, "run_summary")
        return
    check_inputs(subject)
    from routetune.flows.run import run_tune

    _answer(
        run_tune(target, opened.root, force=force or bool(damaged), refresh=refresh, quiet=as_json),
        as_json,
        "run_summary",
    )


@app.command()
def status(
    targets: Annotated[
        list[Path] | None, typer.Argument(help="Target files, or folders of them. [default: this folder]")
    ] = None,
    store: StoreOption = None,
    as_json: Json = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 3 unless every target is fresh.")] = False,
) -> None:
    """Say which targets are fresh, which are stale, and what moved."""
    from routetune.tasks.status import find_targets, freshness
    from routetune.tasks.store import open_store

    opened = open_store(store, write=False)
    found = [freshness(path, opened) for path in find_targets(targets or [Path()])]
    _answer({"targets": [one.to_json() for one in found]}, as_json, "freshness")
    if any(one.state == "refused" for one in found):
        raise typer.Exit(2)
    if check and any(one.state != "fresh" for one in found):
        raise typer.Exit(STALE)


@app.command(context_settings=KNOBS_AS_ARGUMENTS)
def knobs(
    name: Annotated[str | None, typer.Argument(help="A knob, or a glob such as '-session.*'.")] = None,
    backend: Annotated[str, typer.Option(help="Whose knobs.")] = "onnxruntime",
    device: Annotated[
        str | None, typer.Option(help="For which device. [default: cuda:0 for tensorrt, else cpu]")
    ] = None,
    diff: Annotated[
        Path | None,
        typer.Option("--diff", help="A knob database saved before (by --json, or trtexec --helpBuildRoute)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the knobs of the installed backend, or with --diff what is new, gone or changed in them."""
    from routetune.tasks.report.answers import knob_difference, knob_table

    if diff is not None:
        _answer(knob_difference(backend, device, diff), as_json, "knob_difference")
        return
    _answer(knob_table(backend, device, name), as_json, "knobs")


@app.command(context_settings=KNOBS_AS_ARGUMENTS)
def expand(
    what: Annotated[str, typer.Argument(help="A target file, or a route expression.")],
    algorithm: Annotated[
        str | None, typer.Option(help="fast, full, mixed or random. [default: the target's, else mixed]")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Routes to list at the most.")] = 20,
    backend: Annotated[str, typer.Option(help="Whose knobs, for an expression.")] = "onnxruntime",
    as_json: Json = False,
) -> None:
    """Show which routes a target or an expression stands for, and how many. Builds nothing."""
    from routetune.tasks.report.answers import expansion

    _answer(expansion(what, algorithm, limit, backend), as_json, "expansion")


@app.command()
def show(target: TargetArgument, store: StoreOption = None, as_json: Json = False) -> None:
    """Show what is published for a target, why it won, and each route that was excluded."""
    from routetune.tasks.report.answers import shown
    from routetune.tasks.store import open_store

    _answer(shown(target, open_store(store, write=False)), as_json, "run_summary")


@app.command()
def verify(target: TargetArgument, store: StoreOption = None, as_json: Json = False) -> None:
    """Check every byte of what is published for a target against its manifest. Exit 1 on any difference."""
    from routetune.tasks.report.answers import verification
    from routetune.tasks.store import open_store

    answer = verification(target, open_store(store, write=False))
    _answer(answer, as_json, "verification")
    if answer["problems"]:
        raise typer.Exit(1)


@app.command()
def rollback(target: TargetArgument, store: StoreOption = None, as_json: Json = False) -> None:
    """Go back to the generation that was current before, in this environment."""
    from routetune.tasks.report.answers import rolled_back
    from routetune.tasks.store import open_store

    _answer(rolled_back(target, open_store(store)), as_json, "run_summary")


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

    _answer(keep(file, target, open_store(store)), as_json, "imported")


@app.command()
def export_trials(
    target: TargetArgument,
    store: StoreOption = None,
    run: Annotated[str | None, typer.Option(help="Which run. [default: the latest]")] = None,
) -> None:
    """Print the trials of a run in the format of trtexec's --tuningCacheFile (JSON lines)."""
    from routetune.tasks.report.exchange import export_trials as log_of
    from routetune.tasks.store import open_store

    typer.echo(log_of(target, open_store(store), run), nl=False)


@app.command()
def doctor(store: StoreOption = None, as_json: Json = False) -> None:
    """Check the machine: libraries, devices, store, Prefect; says what is missing and what to do."""
    from routetune.tasks.doctor import examine

    answer = examine(store)
    _answer(answer, as_json, "examination")
    if any(not one["ok"] for one in answer["checks"]):
        raise typer.Exit(1)


def _answer(answer: dict[str, Any], as_json: bool, table: str) -> None:
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    from rich.console import Console
    from routetune.tasks.report import tables

    render: Callable[[dict[str, Any], Console], None] = getattr(tables, table)
    # A pipe or a file has no width of its own; routes and reasons must not be cut there.
    console = Console(width=None if sys.stdout.isatty() else 10_000, highlight=False)
    with console.capture() as text:
        render(answer, console)
    typer.echo("\n".join(line.rstrip() for line in text.get().splitlines()))


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"routetune: warning: {message}", file=sys.stderr)


def main() -> None:
    """Entry point: what goes wrong becomes one sentence and an exit code, never a traceback of ours."""
    warnings.showwarning = _warn
    try:
        code = app(standalone_mode=False)
    except BaseException as error:
        code = _explained(error)
    _leave(int(code or 0))


def _explained(error: BaseException) -> int:
    """Say what went wrong, on stderr and with --json on stdout too; the exit code. Raises what is our bug."""
    details: dict[str, Any] = {}
    if isinstance(error, RoutetuneError):
        text, code, details = str(error), error.exit_code, error.details
    elif isinstance(error, (KeyboardInterrupt, typer.Abort)):
        text, code = "interrupted; run again to go on from here", 130
    elif isinstance(error, OSError):
        text, code = f"the system refused: {error}; what was finished is kept", 1
    elif callable(message := getattr(error, "format_message", None)):  # a usage error of the command line
        text, code = f"{message()} (see 'routetune --help')", 2
    else:
        raise error
    if "--json" in sys.argv:
        print(json.dumps({"error": text} | details, indent=2))
    elif details:
        _answer(details, as_json=False, table="refusal")
    print(f"routetune: {text}", file=sys.stderr)
    return code


def _leave(code: int) -> None:
    """End, within bounds: a dead Prefect server must not hold a process whose answer is out."""
    sys.stdout.flush()
    if "prefect" in sys.modules:
        timer = threading.Timer(LEAVE_SECONDS, os._exit, [code])
        timer.daemon = True
        timer.start()
    sys.exit(code)
