"""The worker process: waits for a step, runs it, answers; everything it prints goes to the step's log.

Run as `python -P -m routetune.tasks.engines.child REQUEST_FD REPLY_FD PARENT_PID CORES`; CORES are those
to stay on, as "0,1", or empty.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any

from routetune.tasks.engines import wire

#: Steps are functions of ours only: a message can name nothing else.
STEPS = "routetune.tasks."
PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> int:
    request, reply, parent = (int(text) for text in argv[:3])
    _die_with(parent)
    if argv[3]:  # before any library is loaded, since some count the cores and start threads when they are
        os.sched_setaffinity(0, map(int, argv[3].split(",")))
    for fd in (request, reply):
        os.set_inheritable(fd, False)  # a grandchild must not keep the pipe open after we are gone
    faulthandler.enable()  # a crash then leaves the stack in the log of its step
    wire.send(reply, {"result": "ready"})
    while True:
        try:
            message = wire.receive(request)
        except wire.Closed:
            return 0
        _log_to(message["log"])
        started = time.monotonic()
        answered = answer(message["step"], message["arguments"])
        told = {"seconds": time.monotonic() - started, "device_bytes": _device_bytes()}
        wire.send(reply, answered | told)


def answer(step: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Run one step; a Python exception becomes data, since only a dead process is the parent's to judge."""
    try:
        return {"result": _resolve(step)(**arguments)}
    except MemoryError as error:
        return {"error": "MemoryError", "message": str(error) or "out of memory"}
    except Exception as error:
        traceback.print_exc()
        return {"error": type(error).__name__, "message": str(error)}
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _device_bytes() -> int:
    """Bytes in use on the GPU after a step that used one, else 0."""
    harness = sys.modules.get("routetune.tasks.engines.cuda")  # not imported for those that did not
    return 0 if harness is None else int(harness.used_memory())


def _resolve(step: str) -> Callable[..., Any]:
    module, _, name = step.partition(":")
    if not module.startswith(STEPS):
        raise ValueError(f"step {step!r} is not one of ours")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


def _die_with(parent: int) -> None:
    """Ask the kernel to kill us when the parent goes, however it goes."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it went before the kernel knew
        os._exit(1)


def _log_to(path: str) -> None:
    """Point descriptors 1 and 2 at the log: native libraries write there, not through Python."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
