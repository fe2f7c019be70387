"""Denormal numbers as zero, for the calling thread.

`session.set_denormal_as_zero` reaches the threads of a session's pools, but the thread that calls `run`
computes as well, and the library sets that one's floating-point mode only when the first session of the
process is made, and then for good: in a long-lived process the entry would act on part of the work, and
could leave every later session, and NumPy, without denormals. So the mode of the calling thread is set here
around each use, and put back.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

# x86-64's fenv_t, in glibc and musl alike: 28 bytes of x87 state, then MXCSR.
_SIZE = 32
_MXCSR = 28
_FLUSH_TO_ZERO = 1 << 15
_DENORMALS_ARE_ZERO = 1 << 6


@cache
def _libm() -> Any:
    return ctypes.CDLL("libm.so.6")


class FlushingMode:
    """The current thread's floating-point environment, and the same with denormals flushed."""

    def __init__(self) -> None:
        self._kept = ctypes.create_string_buffer(_SIZE)
        _libm().fegetenv(self._kept)
        raw = bytearray(self._kept.raw)
        mxcsr = int.from_bytes(raw[_MXCSR:], "little") | _FLUSH_TO_ZERO | _DENORMALS_ARE_ZERO
        raw[_MXCSR:] = mxcsr.to_bytes(_SIZE - _MXCSR, "little")
        self._flushing = ctypes.create_string_buffer(bytes(raw), _SIZE)
        self._set = _libm().fesetenv

    def enter(self) -> None:
        self._set(self._flushing)

    def leave(self) -> None:
        self._set(self._kept)


@contextmanager
def flushing(active: bool) -> Iterator[None]:
    """Flush denormals on this thread meanwhile, where `active`; the mode before is put back in any case."""
    if not active:
        yield
        return
    mode = FlushingMode()
    mode.enter()
    try:
        yield
    finally:
        mode.leave()
