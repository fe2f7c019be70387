"""Which files this process has read and found to have a digest, so that a large engine is read once.

A worker loads the same engine several times: to check it, to time it, and as the control of every other
one. A file that has the size, times and inode that it had when it was read has its bytes, too.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

_Look = tuple[int, ...]

#: A file written this shortly before it was read may be written again within one tick of the kernel's clock,
#: and look the same; where its times show no more than milliseconds, within the grain of the file system.
_TICK_NS = 10_000_000
_GRAIN_NS = 2_000_000_000
#: More than the engines of any duel.
_MOST = 256

_read: dict[_Look, str] = {}


def digest_of(path: Path) -> str:
    """SHA-256 of the bytes of a file, hex; they are not read again while nobody wrote to it."""
    with path.open("rb") as file:  # on a network file system, opening is what asks for today's times
        before = _look(file.fileno())
        if (known := _read.get(before)) is not None:
            return known
        started = time.time_ns()
        found = hashlib.file_digest(file, "sha256").hexdigest()
        if _look(file.fileno()) == before and _is_settled(before, started):
            if len(_read) >= _MOST:
                _read.clear()
            _read[before] = found
    return found


def _look(descriptor: int) -> _Look:
    """Device, inode, size, mtime and ctime: the last moves with every write, and no call sets it."""
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _is_settled(look: _Look, started: int) -> bool:
    """Whether whatever writes to the file after `started` gives it other times."""
    latest = max(look[3:])
    fine = all(stamp % 1_000_000 for stamp in look[3:])
    return started - latest > (_TICK_NS if fine else _GRAIN_NS)
