"""What a running tune tells whoever watches: a bar on a terminal, or nobody."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where a run stands.

    Attributes:
        stage: what is being done, for a person.
        done: trials that have ended, those answered from the store included.
        excluded: how many of them cannot win.
        planned: trials in all, as far as is known, or None.
        best: the fastest eligible route's label, or "".
        speed: its speed against the control (1.0 = as fast), or None.
        seconds_left: an estimate, or None while there is nothing to estimate from.
    """

    stage: str
    done: int = 0
    excluded: int = 0
    planned: int | None = None
    best: str = ""
    speed: float | None = None
    seconds_left: float | None = None


class Listener(Protocol):
    def update(self, snapshot: Snapshot) -> None: ...


_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Send the snapshots of runs in this context to `listener`; parameters of a flow could not carry it."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def tell(snapshot: Snapshot) -> None:
    listener = _listener.get()
    if listener is not None:
        listener.update(snapshot)
