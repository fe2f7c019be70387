"""The entry point of the command line: run a command, and turn what goes wrong into a sentence."""

from __future__ import annotations

import json
import os
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import typer
from routetune.flows.commands import answer, app
from routetune.tasks.errors import RoutetuneError, Terminated

#: Exit code after a Ctrl-C.
INTERRUPTED = 130
#: Prefect may take this long to hand its last events over and to stop a server of its own, and less where the
#: server is lost.
LEAVE_SECONDS = 20.0
LEAVE_THE_LOST_SECONDS = 2.0


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"routetune: warning: {message}", file=sys.stderr)


def main() -> None:
    """Entry point: what goes wrong becomes one sentence and an exit code, never a traceback of ours."""
    warnings.showwarning = _warn
    _mend_streams()
    try:
        code = app(standalone_mode=False)
        if code == INTERRUPTED:  # typer keeps a Ctrl-C to itself
            code = _explained(KeyboardInterrupt())
    except BaseException as error:
        code = _explained(error)
    _leave(int(code or 0))


def _mend_streams() -> None:
    """A stream that the caller closed is as good as one that nobody reads; and what its encoding lacks is
    written by number."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - for as long as the process lasts
        elif stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def _explained(error: BaseException) -> int:
    """Say what went wrong, on stderr and with --json on stdout too; the exit code. Raises what is our bug."""
    details: dict[str, Any] = {}
    if isinstance(error, RoutetuneError):
        text, code, details = str(error), error.exit_code, error.details
    elif isinstance(error, Terminated):
        text, code = "ended by SIGTERM; run again to go on from here", error.exit_code
    elif isinstance(error, (KeyboardInterrupt, typer.Abort)):
        text, code = "interrupted; run again to go on from here", INTERRUPTED
    elif isinstance(error, OSError):
        text, code = f"the system refused: {error}; what was finished is kept", 1
    elif callable(message := getattr(error, "format_message", None)):  # a usage error of the command line
        text, code = f"{message()} (see 'routetune --help')", 2
    else:
        _bound_the_end(1)
        raise error
    try:
        if "--json" in sys.argv:
            print(json.dumps({"error": text} | details, indent=2), flush=True)
        elif details:
            answer(details, as_json=False, table="refusal")
    except OSError:
        pass  # nobody can be told there; _leave sees to the rest
    print(f"routetune: {text}", file=sys.stderr)
    return code


def _leave(code: int) -> None:
    """End, within bounds."""
    try:
        sys.stdout.flush()
    except OSError as error:
        print(f"routetune: the answer cannot be written: {error}", file=sys.stderr)
        code = code or 1
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python tries once more at its end
    _bound_the_end(code)
    sys.exit(code)


def _bound_the_end(code: int) -> None:
    """A dead Prefect server must not hold a process whose answer is out."""
    if "prefect" not in sys.modules:
        return
    server = sys.modules.get("routetune.flows.server")
    seconds = LEAVE_THE_LOST_SECONDS if server and server.is_lost() else LEAVE_SECONDS
    timer = threading.Timer(seconds, os._exit, [code])
    timer.daemon = True
    timer.start()
