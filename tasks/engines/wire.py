"""Messages between the run and its worker: a length, then JSON. Never pickle: a worker's bytes are data."""

from __future__ import annotations

import json
import os
import select
import struct
import time
from typing import Any

_LENGTH = struct.Struct(">I")

#: A reply holds paths, digests and raw samples; anything larger is a fault, not a message.
MAX_BYTES = 256 * 2**20


class Closed(Exception):
    """The other end is gone, or sent something that is not a message."""


class Late(Exception):
    """A message was begun and not ended in time."""


def send(fd: int, message: dict[str, Any]) -> None:
    """Write one message; raises Closed when nobody reads any more."""
    body = json.dumps(message).encode()
    data = memoryview(_LENGTH.pack(len(body)) + body)
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError as error:
        raise Closed(f"the message could not be delivered: {error}") from error


def receive(fd: int, deadline: float | None = None) -> dict[str, Any]:
    """Read one message.

    Args:
        deadline: of the monotonic clock, for all of it; None waits as long as it takes.

    Raises:
        Closed: the stream ended, or this is no message.
        Late: the deadline passed.
    """
    (length,) = _LENGTH.unpack(_exactly(fd, _LENGTH.size, deadline))
    if length > MAX_BYTES:
        raise Closed(f"a message of {length} bytes was announced, more than {MAX_BYTES}")
    try:
        message = json.loads(_exactly(fd, length, deadline))
    except ValueError as error:
        raise Closed(f"the message is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise Closed(f"the message is a {type(message).__name__}, not an object")
    return message


def readable(fds: list[int], seconds: float) -> set[int]:
    """Which of the descriptors can be read without waiting, after at most `seconds`."""
    # poll, not select: a long run may hold descriptors above 1024.
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(max(0, int(seconds * 1000)))}


def _exactly(fd: int, count: int, deadline: float | None) -> bytes:
    parts: list[bytes] = []
    while count:
        if deadline is not None and not readable([fd], deadline - time.monotonic()):
            raise Late(f"{count} bytes of a message did not come")
        part = os.read(fd, min(count, 1 << 20))
        if not part:
            raise Closed("the stream ended")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
