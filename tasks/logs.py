"""Logs of steps: what is kept of them has bounds, however much a library prints."""

from __future__ import annotations

import os
from pathlib import Path

#: Of a longer log this many bytes are kept: a quarter from its beginning, the rest from its end.
KEPT_BYTES = 2**20


def cut(log: Path) -> None:
    """Shorten a log to its beginning and its end, with a line between them that tells what is left out."""
    size = log.stat().st_size
    if size <= KEPT_BYTES:
        return
    head = KEPT_BYTES // 4
    with log.open("r+b") as file:
        file.seek(head - KEPT_BYTES, os.SEEK_END)
        tail = file.read()
        file.truncate(head)
        file.seek(head)
        file.write(f"\n... {size - KEPT_BYTES} bytes are left out here ...\n".encode())
        file.write(tail)
