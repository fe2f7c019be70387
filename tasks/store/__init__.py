"""The store: one folder of our own for blobs, entries, records, runs and publications; or a bucket, and then
the folder is a mirror of that."""

from __future__ import annotations

import errno
import os
import warnings
from dataclasses import dataclass
from pathlib import Path

from routetune.tasks.errors import BadInput, RoutetuneError
from routetune.tasks.store.blobs import Blobs
from routetune.tasks.store.entries import Entries
from routetune.tasks.store.files import Damaged, StoreWarning, Unreadable, unfinished, write_atomically
from routetune.tasks.store.mirror import MARKER as MIRROR
from routetune.tasks.store.mirror import OUTBOX, Mirror, folder_of, mark, mirror_of
from routetune.tasks.store.priors import Priors
from routetune.tasks.store.publications import Publications
from routetune.tasks.store.records import Records
from routetune.tasks.store.remote import Unreachable, is_url
from routetune.tasks.store.runs import Runs
from routetune.tasks.store.sealed import read_sealed, seal
from routetune.tasks.store.traits import Traits

#: The layout as a whole; each kind of file has a schema of its own besides.
SCHEMA = 1

VARIABLE = "ROUTETUNE_STORE"
_MARKER = "store.json"
#: Working folders of runs.
SCRATCH = "scratch"
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
    OUTBOX,
)


@dataclass(frozen=True, slots=True)
class Store:
    """An opened store.

    Attributes:
        root: its folder; of one in a bucket, the folder of its mirror.
        mirror: what goes to and from the bucket; None for a folder of its own.
    """

    root: Path
    blobs: Blobs
    entries: Entries
    records: Records
    runs: Runs
    publications: Publications
    priors: Priors
    traits: Traits
    mirror: Mirror | None = None

    @property
    def name(self) -> str:
        """What a person calls it: the folder, or the URL."""
        return str(self.root) if self.mirror is None else self.mirror.remote.url

    def share(self) -> int:
        """Offer the remote what it could not be given when it was made; how many files it still lacks."""
        if self.mirror is None:
            return 0
        for path in self.mirror.pending():
            part = self.mirror.key(path).partition("/")[0]
            if self.mirror.is_asleep:
                break
            if part == "entries":
                self.entries.share(path)
            elif part == "publications":
                self.publications.share(path)
            else:
                self.mirror.offer(path)
        return len(self.mirror.pending())


def open_store(path: Path | str | None = None, write: bool = True) -> Store:
    """Open the store, making it if need be.

    Args:
        path: the folder, or the URL of a bucket or of a prefix in one; else that of ROUTETUNE_STORE, else the
            user's data folder.
        write: False to only look: nothing is made, and the folder may be read-only or missing.

    Raises:
        BadInput: the folder cannot be made or written to, holds something else, or is of a newer routetune;
            the bucket is not there, or does not take our credentials.
        RoutetuneError: it, or a part of it, is on a file system that is mounted read-only.
    """
    root = store_root(path)
    if not write:
        try:
            return _opened(root)
        except OSError as error:
            raise BadInput(
                f"store {root} cannot be read ({error.strerror}): with --store or {VARIABLE} name one that "
                "can be"
            ) from error
    store = _made(root)
    _reach(store)
    return store


def _made(root: Path) -> Store:
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
            try:
                probe.touch()
            except OSError as error:  # whoever is to make room must get in
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
            probe.unlink(missing_ok=True)


def _reach(store: Store) -> None:
    """Give the remote what it lacks. A bucket that is misspelt is refused now, and not after a night."""
    if store.mirror is None or store.mirror.is_asleep:
        return
    try:
        store.mirror.remote.check()
        store.share()
    except Unreachable as error:
        if error.wrong:
            raise BadInput(f"{error}. See docs/store.md, On object storage") from error
        store.mirror.fell_asleep(error)


def _opened(root: Path) -> Store:
    mirror = mirror_of(root)
    root = root if mirror is None else mirror.root
    for part in (*_PARTS, SCRATCH):
        if (root / part).is_symlink():
            raise BadInput(
                f"{root / part} is a link to {os.path.realpath(root / part)}; the store follows none: remove "
                "it, or move the whole store there and pass its new path"
            )
    blobs = Blobs(root, mirror)
    return Store(
        root,
        blobs,
        Entries(root, blobs, mirror),
        Records(root, mirror),
        Runs(root, mirror),
        Publications(root, blobs, mirror),
        Priors(root, mirror),
        Traits(root, mirror),
        mirror,
    )


def store_root(path: Path | str | None = None) -> Path:
    """Where the store is: `path`, else ROUTETUNE_STORE, else the user's data folder.

    Of a URL it is the folder of its mirror, which is made if need be; of any other, nothing is looked at.

    Raises:
        BadInput: the URL cannot be that of a store, or its mirror cannot be made.
    """
    named = path or os.environ.get(VARIABLE)
    if named and is_url(named):
        root = folder_of(str(named))
        try:
            mark(root, str(named))
        except OSError as error:
            raise BadInput(
                f"the mirror {root} of store {named} cannot be written to ({error.strerror}): let "
                "XDG_CACHE_HOME name a folder that can"
            ) from error
        return root
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
        except Unreadable as error:
            raise BadInput(f"store {root} cannot be used: {marker}: {error}") from error
        except Damaged as damage:
            warnings.warn(f"{marker}: {damage}; written again", StoreWarning, stacklevel=3)
    else:
        ours = (_MARKER, MIRROR)
        others = [found.name for found in root.iterdir() if found.name[0] != "." and found.name not in ours]
        if (root / MIRROR).exists():
            pass  # it was only looked into until now
        elif any(name in _PARTS for name in others):
            warnings.warn(f"{marker} was gone; written again", StoreWarning, stacklevel=3)
        elif others:
            raise BadInput(
                f"store {root} is a folder with other things in it ({sorted(others)[0]}, ...): give an "
                "empty or a new folder"
            )
    write_atomically(marker, seal({"schema": SCHEMA}))
