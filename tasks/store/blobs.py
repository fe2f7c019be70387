"""Blobs: bytes named by their SHA-256 (engines, references, logs)."""

from __future__ import annotations

import errno
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from routetune.tasks.errors import RoutetuneError
from routetune.tasks.store import names
from routetune.tasks.store.files import (
    OTHER_THINGS,
    copy_hashed,
    hash_file,
    make_folder,
    mark_used,
    refuse_way_out,
    set_aside,
    sync_folder,
    unfinished,
    write_atomically,
)
from routetune.tasks.store.locks import using
from routetune.tasks.store.mirror import Mirror

# Nobody writes to a blob again; a library told to write its output there shall fail.
_READ_ONLY = 0o444


class Missing(RoutetuneError, LookupError):
    """A blob is not in the store, or was damaged and has been put aside: to the caller, a miss."""


class Blobs:
    """The blobs under `root`, the folder of the store; what a mirror lacks is fetched when it is used."""

    def __init__(self, root: Path, mirror: Mirror | None = None) -> None:
        self.root = root
        self.mirror = mirror
        self.folder = root / "blobs"

    def path(self, digest: str) -> Path:
        """Where the blob lies or would lie; nothing is looked at. Raises BadInput for what is no digest."""
        return names.fan_out(self.folder, names.digest(digest))

    def has(self, digest: str, size: int | None = None) -> bool:
        """Whether the blob is there, with `size` bytes when given. Its bytes are not read."""
        try:
            found = self.path(digest).stat()
        except OSError:
            return False
        return size is None or found.st_size == size

    def size(self, digest: str) -> int:
        """Bytes of the blob. Raises Missing."""
        try:
            return self.path(digest).stat().st_size
        except OSError as error:
            raise Missing(f"blob {digest} is not in the store {self.root}: {error.strerror}") from error

    def put_bytes(self, data: bytes) -> str:
        """Keep `data`; returns its digest."""
        digest = hashlib.sha256(data).hexdigest()
        if not self._is_kept(digest):
            with using(self.root):
                write_atomically(self.path(digest), data, _READ_ONLY)
        return digest

    def put_file(self, source: Path, *, move: bool = False, told: str | None = None) -> str:
        """Keep the bytes of `source`; returns their digest.

        Args:
            move: `source` may be used up; no bytes are copied when it is on the disk of the store.
            told: the digest they are said to have: where its blob is here and whole, that is the answer, and
                `source` is not read.
        """
        if told is not None and names.is_digest(told) and self._is_kept(told):
            if move:
                source.unlink()
            return told
        make_folder(self.folder)
        temporary = unfinished(self.folder)
        try:
            # A copy is hashed as it is written, a moved file after its name is ours alone: the name is then
            # always that of the bytes kept, even while somebody still writes to `source`.
            if move and _moved(source, temporary):
                temporary.chmod(_READ_ONLY)
                digest = _hashed_and_synced(temporary)
            else:
                digest = copy_hashed(source, temporary, _READ_ONLY)
            if not self._is_kept(digest):
                path = self.path(digest)
                make_folder(path.parent)
                os.utime(temporary)  # a moved file may be old
                with using(self.root):
                    temporary.replace(path)
                sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
        if move:
            source.unlink(missing_ok=True)
        return digest

    def obtain(self, digest: str, size: int | None = None) -> bool:
        """`has`, after fetching from the remote what a mirror lacks."""
        if self.has(digest, size):
            return True
        fetched = self.mirror is not None and self.mirror.download(self.path(digest), digest)
        return fetched and self.has(digest, size)

    def verified(self, digest: str) -> Path:
        """The path of the blob, its bytes read and found right; it counts as used now.

        Raises:
            Missing: it is not there, or its bytes are wrong; then it is set aside with a warning.
            BadInput: a link leads out of the store.
        """
        path = self.path(digest)
        refuse_way_out(self.root, path)
        self.obtain(digest)
        self.use(digest)
        try:
            found = hash_file(path)
        except FileNotFoundError:
            raise Missing(f"blob {digest} is not in the store {self.root}") from None
        except OSError as error:
            if error.errno not in OTHER_THINGS:
                raise Missing(f"blob {digest} cannot be read: {error.strerror}") from error
            found = str(error.strerror)
        if found != digest:
            set_aside(self.root, path, f"the bytes of this blob have another digest: {found}")
            if self.obtain(digest):
                return path
            raise Missing(f"blob {digest} was damaged and has been put aside; it has to be made again")
        return path

    def use(self, digest: str) -> None:
        """Mark the blob as used now, so that no collector takes it for a while. Raises Missing."""
        with using(self.root):
            self.mark(digest)

    def mark(self, digest: str) -> None:
        """`use`, for who holds `locks.using` already."""
        try:
            mark_used(self.path(digest))
        except FileNotFoundError:
            raise Missing(f"blob {digest} is not in the store {self.root}") from None

    def _is_kept(self, digest: str) -> bool:
        # Read again, since keeping what was just made again must also heal what was damaged.
        if not self.has(digest):
            return False
        try:
            self.verified(digest)
        except Missing:
            return False
        return True


def _moved(source: Path, target: Path) -> bool:
    """Rename `source`; False when it is a link or on another file system, so that it has to be copied."""
    if source.is_symlink():
        return False
    try:
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


def _hashed_and_synced(path: Path) -> str:
    """The digest of a file that is on the disk then: the processor reads while the disk writes."""
    with ThreadPoolExecutor(1) as pool:
        synced = pool.submit(_sync, path)
        digest = hash_file(path)
        synced.result()
    return digest


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
