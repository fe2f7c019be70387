"""What the worker does for a backend: build an engine, load one, make reference outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from routetune.tasks.engines.base import BuildOrder, Engine, Runner, open_backend
from routetune.tasks.engines.proof import digest_of


class TamperedEngine(Exception):
    """The engine's bytes are not those whose digest was recorded; it was not loaded."""


class EmptyEngine(Exception):
    """The build ended well but wrote nothing: a full disk, or a library that lies; no result either way."""


class RunError(Exception):
    """The engine could be built but not loaded or run; the message is the library's."""


def build(backend: str, order: Mapping[str, Any]) -> dict[str, Any]:
    """Build one engine; `order` holds the fields of BuildOrder, paths as text."""
    paths = {"model": Path(order["model"]), "output": Path(order["output"])}
    engine = open_backend(backend).build(BuildOrder(**{**order, **paths}))
    size = engine.path.stat().st_size if engine.path.exists() else 0
    if not size:
        raise EmptyEngine(
            f"the build ended without an error but left an empty engine file {engine.path.name}"
        )
    return {
        "digest": engine.digest,
        "size": size,
        "identity": engine.identity,
        "options": dict(engine.options),
    }


def engine_from(path: str, engine: Mapping[str, Any]) -> Engine:
    """The Engine of a build's result and the place where its bytes are now."""
    fields = {name: engine[name] for name in ("digest", "size", "identity", "options")}
    return Engine(path=Path(path), **fields)


@contextmanager
def loaded(backend: str, engine: Engine, device: str, settings: Mapping[str, Any]) -> Iterator[Runner]:
    """A runner for the engine, closed afterwards; the bytes are verified first, by `proof`.

    Raises:
        TamperedEngine: the file is not the one that was recorded.
        RunError: the library cannot load it.
    """
    found = digest_of(engine.path)
    if found != engine.digest:
        raise TamperedEngine(f"engine {engine.path} has SHA-256 {found}, expected {engine.digest}")
    try:
        runner = open_backend(backend).load(engine, device, settings)
    except MemoryError:
        raise
    except Exception as error:
        raise RunError(f"the engine does not load: {error}") from error
    try:
        yield runner
    finally:
        runner.close()


def versions(backend: str, device: str = "cpu") -> dict[str, str]:
    """What the backend's libraries say of themselves in a worker."""
    return open_backend(backend).versions(device)
