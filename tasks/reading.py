"""Files of a user, read within bounds: regular files only, and no more of them than is sensible."""

from __future__ import annotations

import stat
from pathlib import Path

from routetune.tasks.errors import BadInput

_MIB = 1 << 20
#: What `look` gives; empty for what is not there.
Look = tuple[int, ...]
#: Bytes of the largest text that a person writes: target files and files of route expressions.
TEXT = _MIB
#: Bytes of the largest tuning log: ten thousand trials take some ten megabytes.
LOG = 256 * _MIB


def look(path: Path) -> Look:
    """Size, mtime, ctime, device and inode of a file, times in ns, links followed; empty where it is not.

    Where they are equal, nobody wrote to it meanwhile.
    """
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino


def check_regular(path: Path, what: str) -> int:
    """The size of the file at `path` in bytes, links followed.

    Raises:
        OSError: it cannot be looked at, or is a folder.
        BadInput: a pipe, a device or a socket, of which a read may never end.
    """
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(f"{path} is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise BadInput(
            f"{what} {path} is no regular file, but a pipe, a device or a socket; write the contents to a "
            "file and name that"
        )
    return status.st_size


def read_bounded(path: Path, what: str, limit: int) -> bytes:
    """All bytes of a regular file of at most `limit` bytes; `what` is what messages call it.

    Raises:
        OSError: it cannot be read.
        BadInput: it is no regular file, or larger.
    """
    size = check_regular(path, what)
    if size > limit:
        raise BadInput(f"{what} {path} has {size} bytes; no more than {limit} are read")
    return path.read_bytes()


def spare_memory() -> int:
    """Bytes that can be taken without pushing other processes out."""
    import psutil

    return int(psutil.virtual_memory().available)


def check_fits(size: int, what: str) -> None:
    """Refuse what would not fit into memory, before any of it is taken.

    Args:
        size: bytes.
        what: the subject of the sentence, such as "inputs a.npz".

    Raises:
        BadInput: it is more than there is to spare.
    """
    spare = spare_memory()
    if size > spare:
        raise BadInput(f"{what} would take {size} bytes of memory, but {spare} are free; make it smaller")
