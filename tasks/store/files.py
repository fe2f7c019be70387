"""Files of the store: written whole or not at all, hashed in a stream, never outside the store."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
import warnings
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from routetune.tasks.errors import BadInput

#: Unfinished files and folders begin with this. The dot hides them from readers of Parquet folders.
UNFINISHED = ".tmp-"

_BLOCK = 1 << 20
#: Bytes of the largest file that is read at once.
_LARGEST = 1 << 30
#: Errors of opening what is no file: a folder, a link, a pipe.
OTHER_THINGS = (errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO)


class StoreWarning(UserWarning):
    """Something in the store was damaged; it was put aside and counts as missing."""


class Damaged(Exception):
    """The file is not what was written."""


class Unreadable(Damaged):
    """The file cannot be read now, whatever is in it."""


def unfinished(folder: Path) -> Path:
    """A name in `folder` that nobody else has, for something still being written."""
    return folder / f"{UNFINISHED}{os.urandom(8).hex()}"


def write_atomically(path: Path, content: bytes | Callable[[BinaryIO], object], mode: int = 0o666) -> None:
    """Write `path` so that a reader, or a kill at any moment, sees the old file or the whole new one.

    Args:
        path: the file; missing folders are made.
        content: the bytes, or a function that writes them into the open file it is given.
        mode: permissions, less the umask.
    """
    make_folder(path.parent)
    temporary = unfinished(path.parent)
    try:
        with open_new(temporary, mode) as file:
            if callable(content):
                content(file)
            else:
                file.write(content)
            sync_file(file)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def open_new(path: Path, mode: int = 0o666) -> BinaryIO:
    """A new file to write to; fails if `path` exists, also as a dangling link."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb")


def sync_file(file: BinaryIO) -> None:
    """Have the kernel put the contents on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Have the kernel put the names in `folder` on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network and FUSE file systems cannot sync a folder. There a power cut may lose the name, which
        # is a miss; a kill loses nothing.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make `folder` and what is missing above it, each name on the disk before anything is put into it."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folder(folder.parent, mode)
    folder.mkdir(mode=mode, exist_ok=True)
    sync_folder(folder.parent)


def open_regular(path: Path, links: bool = True) -> BufferedReader:
    """A file to read from.

    Args:
        links: whether the last part of the path may be one.

    Raises:
        OSError: it cannot be opened; with EINVAL, it is a pipe, a device or a socket, of which a read may
            never end.
    """
    more = os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | more)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, "it is no regular file", str(path))
    return open(descriptor, "rb")  # noqa: PTH123 - a descriptor, not a path


def read_file(path: Path) -> bytes:
    """All bytes of a small file of the store.

    Raises:
        FileNotFoundError: it is gone.
        Damaged: it is a link, no regular file, or larger than any.
        Unreadable: it may be whole, but cannot be read now.
    """
    try:
        with open_regular(path, links=False) as file:
            if (size := os.fstat(file.fileno()).st_size) > _LARGEST:
                raise Damaged(f"it has {size} bytes, more than any such file")
            return file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        kind = Damaged if error.errno in OTHER_THINGS else Unreadable
        raise kind(f"it cannot be read: {error.strerror}") from error


def hash_file(path: Path) -> str:
    """SHA-256 of the bytes of `path`, as hex; read in a stream."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def copy_hashed(source: Path, target: Path, mode: int = 0o666) -> str:
    """Copy `source` to the new file `target`, onto the disk; returns the SHA-256 of the bytes written."""
    found = hashlib.sha256()
    with open_regular(source) as reader, open_new(target, mode) as writer:
        while block := reader.read(_BLOCK):
            found.update(block)
            writer.write(block)
        sync_file(writer)
    return found.hexdigest()


def mark_used(path: Path) -> None:
    """Move the time of `path` to now. Raises FileNotFoundError: it is gone.

    Where that is not allowed nothing happens: a read-only store is not collected, and one that several users
    write to tells use only by the files' owners.
    """
    try:
        os.utime(path, follow_symlinks=False)
    except PermissionError:
        pass
    except OSError as error:
        if error.errno != errno.EROFS:
            raise


def is_inside(root: Path, path: Path) -> bool:
    """Whether `path`, with every link followed, is still in `root`."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))


def refuse_way_out(root: Path, path: Path) -> None:
    """Raise BadInput when a link takes `path` out of the store: then what it names is not ours to trust."""
    if not is_inside(root, path):
        raise BadInput(
            f"{path} leads out of the store {root}, to {os.path.realpath(path)}; the store follows no such "
            "links: remove the link, or move the whole store there and pass its new path"
        )


def put_away(root: Path, path: Path, what: str, damage: Exception) -> None:
    """Set a damaged file aside. One that cannot be read now is left where it is: it may be whole."""
    if isinstance(damage, Unreadable):
        warnings.warn(f"{path}: {what}: {damage}; counted as missing", StoreWarning, stacklevel=3)
    else:
        set_aside(root, path, f"damaged {what}: {damage}")


def set_aside(root: Path, path: Path, why: str) -> None:
    """Move a damaged file out of the way, where a person can look at it, and warn. Never raises."""
    kept = root / "set-aside" / f"{path.name}-{os.urandom(4).hex()}"
    try:
        # Reached through a link, the file is somebody else's.
        refuse_way_out(root, path.parent)
        make_folder(kept.parent)
        path.rename(kept)
        fate = f"kept as {kept}"
    except FileNotFoundError:
        fate = "already gone"
    except (OSError, BadInput) as error:
        fate = f"could not be moved: {error}"
    warnings.warn(f"{path}: {why}; {fate}, and counted as missing", StoreWarning, stacklevel=3)


def sweep(root: Path, older_than: float) -> int:
    """Delete unfinished files that killed processes left under `root`; returns the bytes freed.

    Args:
        older_than: seconds since the last write; younger ones may still be in the making.
    """
    freed, limit = 0, time.time() - older_than
    for path in list(root.rglob(f"{UNFINISHED}*")):
        try:
            status = path.lstat()
            if status.st_mtime > limit:
                continue
            if path.is_dir() and not path.is_symlink():
                freed += remove_folder(path)
            else:
                path.unlink()
                freed += status.st_size
        except FileNotFoundError:
            continue
    return freed


def remove_folder(folder: Path) -> int:
    """Delete a folder of plain files; returns the bytes freed."""
    freed = 0
    for path in folder.iterdir():
        freed += path.lstat().st_size
        path.unlink()
    folder.rmdir()
    return freed
