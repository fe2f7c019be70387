"""Waits until a run is gone, however it went, and ends the Prefect server that the run left behind.

Run as `python -P -m routetune.flows.warden MARK`, with a pipe as its stdin that the run never writes to. The
kernel's own way, PR_SET_PDEATHSIG, has to be asked for by the server, and that is started by Prefect.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

#: Variable by which the server of a run is known.
MARK = "ROUTETUNE_RUN_MARK"
#: What the command line of such a server has.
SERVER = b"prefect.server.api.server:create_app"


def main(mark: str) -> None:
    os.read(sys.stdin.fileno(), 1)  # ends when the other end is closed, by the kernel if need be
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with suppress(OSError):  # it is gone, or another user's
                _end_if_marked(process, f"{MARK}={mark}".encode())


def _end_if_marked(process: Path, mark: bytes) -> None:
    descriptor = os.pidfd_open(int(process.name))  # before the look: the number may soon be another's
    try:
        is_server = SERVER in (process / "cmdline").read_bytes().split(b"\0")
        if is_server and mark in (process / "environ").read_bytes().split(b"\0"):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main(sys.argv[1])
