"""Run a flow from the command line: Prefect quiet and offline, a progress bar where there is a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from routetune.tasks.canonical import number
from routetune.tasks.errors import RoutetuneError

#: Set before Prefect is imported, and only where the user has not decided otherwise. The ephemeral server
#: is a child process that prints to our stderr, and has nothing to tell a person who started none.
QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    # Errors reach the user as one sentence of ours; the traceback is in Prefect's own log of the run.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_CLI_PROMPT": "false",
}


def run_tune(
    target: Path, store: Path, force: bool = False, refresh: bool = False, quiet: bool = False
) -> dict[str, Any]:
    """Run the flow `tune` here and now, on the server of PREFECT_API_URL or an ephemeral one."""
    with _prefect(quiet):
        from routetune.flows.tune import tune

        report: dict[str, Any] = tune(str(target.absolute()), str(store), force, refresh)
    return report


def run_publish(
    target: Path, store: Path, epsilon: float, metric: str | None, run: str | None, quiet: bool = False
) -> dict[str, Any]:
    """Run the flow `publish` here and now, as `run_tune` does."""
    with _prefect(quiet):
        from routetune.flows.publish import publish

        path = str(target.absolute())
        report: dict[str, Any] = publish(path, number(epsilon), metric, run, str(store))
    return report


@contextmanager
def _prefect(quiet: bool) -> Iterator[None]:
    """Prefect set up for a flow in this process, with a progress bar where there is a terminal."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    _check_server()
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
    from routetune.tasks.report.progress import listening

    with ExitStack() as stack:
        if sys.stderr.isatty() and not quiet:
            from routetune.tasks.report.bar import Bar

            stack.enter_context(listening(stack.enter_context(closing(Bar()))))
        # Heartbeats pad every flow to a second; they serve deployments, where a dead run must be noticed.
        stack.enter_context(temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}))
        yield


def _check_server() -> None:
    """Ask the server, where one is named, before Prefect fails on it with a traceback."""
    from routetune.tasks.doctor import prefect_server

    answers, found = prefect_server()
    if not answers:
        raise RoutetuneError(f"Prefect: {found}")
