"""The timing cache: what the builder has measured of tactics, shared by all routes of an environment.

It is kept in a file of ours: a mark, the SHA-256 of the rest, then TensorRT's bytes. TensorRT itself answers
a damaged cache with an empty one and a warning, and reads it with native code, so bytes are checked first.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from pathlib import Path
from typing import Any

from routetune.tasks.engines.tensorrt.library import log

MARK = b"routetune timing cache 1\n"
_HEAD = len(MARK) + hashlib.sha256().digest_size


def attach(config: Any, path: Path) -> None:
    """Give the configuration the cache of `path`, or an empty one; what cannot be used is set aside."""
    data = _read(path)
    seen = len(log().warnings)
    cache = config.create_timing_cache(data)
    taken = cache is not None and config.set_timing_cache(cache, ignore_mismatch=False)
    refused = [text for text in log().warnings[seen:] if "timing cache" in text.lower()]
    log().take()  # errors on the way to a fresh cache are not the route's
    if data and (refused or not taken):
        _set_aside(path, "TensorRT does not take it; it is of another GPU or version")
        empty = config.create_timing_cache(b"")
        if empty is not None:
            config.set_timing_cache(empty, ignore_mismatch=False)


def keep(config: Any, path: Path) -> None:
    """Write the configuration's cache back; what others wrote meanwhile is merged in."""
    cache = config.get_timing_cache()
    if cache is None:
        return
    meanwhile = _read(path)
    if meanwhile:
        other = config.create_timing_cache(meanwhile)
        if other is not None:
            cache.combine(other, ignore_mismatch=False)
    _write(path, bytes(cache.serialize()))


def _read(path: Path) -> bytes:
    """The cache's bytes; b"" where there is none, or only a damaged one."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return b""
    data = raw[_HEAD:]
    if raw[:_HEAD] == MARK + hashlib.sha256(data).digest():
        return data
    _set_aside(path, "it is damaged")
    return b""


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_bytes(MARK + hashlib.sha256(data).digest() + data)
    unfinished.replace(path)


def _set_aside(path: Path, why: str) -> None:
    aside = path.with_name(f"{path.name}.set-aside")
    path.replace(aside)
    warnings.warn(f"timing cache {path}: {why}; set aside as {aside.name}, and begun anew", stacklevel=3)
