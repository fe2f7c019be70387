"""Run a flow from the command line: Prefect quiet and offline, a progress bar where there is a terminal."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack, closing
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from routetune.tasks.canonical import number
from routetune.tasks.errors import BadInput, RoutetuneError, Terminated
from routetune.tasks.retune import TargetsFailed

#: Set before Prefect is imported, and only where the user has not decided otherwise. The ephemeral server
#: is a child process that prints to our stderr, and has nothing to tell a person who started none.
QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    # Errors reach the user as one sentence of ours; the traceback is in Prefect's own log of the run.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    # Of events that a server which is gone will never get, each with a page of text.
    "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_CLI_PROMPT": "false",
    # Its usual 20 seconds are not enough where other work has the processors.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
}


def run_tune(
    target: Path,
    store: Path | str,
    force: bool = False,
    refresh: bool = False,
    ray: int | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Run the flow `tune` here and now, on the server of PREFECT_API_URL or an ephemeral one."""
    return _run("tune", quiet, str(target.absolute()), str(store), force, refresh, None, ray)


def run_retune(
    targets: list[Path],
    store: Path | str,
    seconds: float | None = None,
    device_seconds: float | None = None,
    force: bool = False,
    ray: int | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Run the flow `retune` likewise; its report, also where targets failed."""
    places = [str(target.absolute()) for target in targets]
    try:
        return _run("retune", quiet, places, str(store), seconds, device_seconds, force, ray)
    except TargetsFailed as failed:
        return failed.report


def run_reproduce(target: Path, store: Path | str, quiet: bool = False) -> dict[str, Any]:
    """Run the flow `reproduce` likewise."""
    return _run("reproduce", quiet, str(target.absolute()), str(store))


def run_publish(
    target: Path,
    store: Path | str,
    epsilon: float,
    metric: str | None,
    run: str | None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Run the flow `publish` likewise."""
    return _run("publish", quiet, str(target.absolute()), number(epsilon), metric, run, str(store))


def _run(name: str, quiet: bool, *arguments: Any) -> dict[str, Any]:
    """Run the flow `name` of the module of that name."""
    for variable, value in QUIET.items():
        os.environ.setdefault(variable, value)
    check_server()
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
    from routetune.flows.server import patiently, run_through
    from routetune.tasks.report.progress import listening

    flow = getattr(import_module(f"routetune.flows.{name}"), name)
    with ExitStack() as stack:
        if sys.stderr.isatty() and not quiet:
            from routetune.tasks.report.bar import Bar

            stack.enter_context(listening(stack.enter_context(closing(Bar()))))
        # Heartbeats pad every flow to a second; they serve deployments, where a dead run must be noticed.
        stack.enter_context(temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}))
        # Prefect ends its run at a SIGTERM, and then hands it on to us.
        stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, _terminate))
        stack.enter_context(patiently())
        report: dict[str, Any] = run_through(flow, *arguments)
    return report


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


def check_server() -> None:
    """Ask the server, where one is named: who names one wants to see the run there.

    Raises:
        BadInput: Prefect refuses its own settings.
        RoutetuneError: it does not answer, or none is named and Prefect has no place for one of its own.
    """
    from routetune.tasks.doctor import prefect_server

    try:
        from prefect.settings import PREFECT_API_URL

        url = PREFECT_API_URL.value() or ""
    except ValueError as error:
        raise BadInput(f"Prefect's settings are not valid: {error}") from error
    answers, found = prefect_server(url)
    if not answers:
        raise RoutetuneError(f"Prefect: {found}")
