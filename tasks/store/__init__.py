"""The store: one folder of our own for blobs, entries, records, runs and publications."""

from __future__ import annotations

import errno
import os
import warnings
from dataclasses import dataclass
from pathlib import Path

from routetune.tasks.errors import BadInput, RoutetuneError
from routetune.tasks.store.blobs import Blobs
from routetune.tasks.store.entries import Entries
from routetune.tasks.store.files import StoreWarning, unfinished, write_atomically
from routetune.tasks.store.priors import Priors
from routetune.tasks.store.publications import Publications
from routetune.tasks.store.records import Records
from routetune.tasks.store.runs import Runs
from routetune.tasks.store.sealed import Damaged, read_sealed, seal
from routetune.tasks.store.traits import Traits

#: The layout as a whole; each kind of file has a schema of its own besides.
SCHEMA = 1

VARIABLE = "ROUTETUNE_STORE"
_MARKER = "store.json"
_PARTS = (
    "blobs",
    "entries",
    "records",
    "runs",
    "publications",
    "locks",
    "timing-caches",
    "priors",
    "digests",
    "traits",
    "seen",
    "set-aside",
)


@dataclass(frozen=True, slots=True)
class Store:
    """An opened store."""

    root: Path
    blobs: Blobs
    entries: Entries
    records: Records
    runs: Runs
    publications: Publications
    priors: Priors
    traits: Traits


def open_store(path: Path | str | None = None, write: bool = True) -> Store:
    """Open the store, making it if need be.

    Args:
        path: the folder; else that of ROUTETUNE_STORE, else the user's data folder.
        write: False to only look: nothing is made, and the folder may be read-only or missing.

    Raises:
        BadInput: the folder cannot be made or written to, holds something else, or is of a newer routetune.
        RoutetuneError: it, or a part of it, is on a file system that is mounted read-only.
    """
    root = store_root(path)
    if not write:
        return _opened(root)
    try:
        if not root.exists():
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
        root = root.resolve(strict=True)
        _check_marker(root)
        _probe(root)
    except OSError as error:
        if error.errno == errno.EROFS:
            raise RoutetuneError(
                f"store {root} cannot be written to, so nothing was started: {error.filename} is on a file "
                f"system that is mounted read-only. Mount it for writing, or name another with --store or "
                f"{VARIABLE}"
            ) from error
        raise BadInput(
            f"store {root} cannot be used ({error.strerror}): with --store or {VARIABLE} give a folder "
            "that can be written to"
        ) from error
    return _opened(root)


def _probe(root: Path) -> None:
    """Write to every part that is there: each may be a mount of its own. Raises OSError."""
    for folder in (root, *(root / part for part in _PARTS)):
        if folder.is_dir():
            probe = unfinished(folder)
            probe.touch()
            probe.unlink()


def _opened(root: Path) -> Store:
    blobs = Blobs(root)
    return Store(
        root,
        blobs,
        Entries(root, blobs),
        Records(root),
        Runs(root),
        Publications(root, blobs),
        Priors(root),
        Traits(root),
    )


def store_root(path: Path | str | None = None) -> Path:
    """Where the store is: `path`, else ROUTETUNE_STORE, else the user's data folder. Nothing is looked at."""
    named = path or os.environ.get(VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_data_dir("routetune"))


def _check_marker(root: Path) -> None:
    marker = root / _MARKER
    if marker.exists():
        try:
            read_sealed(marker, SCHEMA, "store")
            return
        except Damaged as damage:
            warnings.warn(f"{marker}: {damage}; written again", StoreWarning, stacklevel=3)
    else:
        others = [found.name for found in root.iterdir() if found.name[0] != "." and found != marker]
        if any(name in _PARTS for name in others):
            warnings.warn(f"{marker} was gone; written again", StoreWarning, stacklevel=3)
        elif others:
            raise BadInput(
                f"store {root} is a folder with other things in it ({sorted(others)[0]}, ...): give an "
                "empty or a new folder"
            )
    write_atomically(marker, seal({"schema": SCHEMA}))
