"""SIGKILL to workers of a fleet, again and again, in whatever they do, also as they start."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from routetune.tasks.engines.fleet import Fleet


@contextmanager
def killing(fleets: Callable[[], Iterable[Fleet]], numbers: set[int]) -> Iterator[None]:
    """Until the block ends: kill the workers of these numbers whenever they are there.

    Args:
        fleets: asked anew each time, since a run opens its fleet as it goes.
    """
    over = threading.Event()

    def kill() -> None:
        while not over.wait(0.02):
            for member in [member for fleet in fleets() for member in fleet.members]:
                process = member.attempts.worker._process
                if member.number in numbers and process is not None:
                    with suppress(ProcessLookupError):
                        os.kill(process.popen.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        over.set()
        killer.join()
