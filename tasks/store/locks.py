"""Locks between processes: flock alone is the truth, and the kernel frees it however its holder ends."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from routetune.tasks.errors import BadInput, RoutetuneError
from routetune.tasks.store import names
from routetune.tasks.store.files import Damaged, make_folder, read_file

#: Shared by all who use a file of the store, and held alone by who deletes some.
IN_USE = "in-use.lock"

_POLL = (0.005, 0.1)  # seconds between two looks at a lock: at first, and at most


class Busy(RoutetuneError):
    """Somebody else holds the lock."""


class BusyDevice(Busy):
    """Another process uses the device."""


class Lock:
    """A lock that is held; `release` gives it back. Not re-entrant: the same thread waits for itself."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        # Removed while still held: whoever waits on this file sees that the name is gone and starts again.
        # Unless somebody has removed it before us: then the name is another's lock by now, or nobody's.
        if _is_still(descriptor, self.path):
            self.path.unlink(missing_ok=True)
        # Unlocked by name, since a forked child may still share the descriptor.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def acquire(path: Path, what: str, timeout: float | None = None) -> Lock:
    """Take the lock at `path`.

    Args:
        what: what its holder does with it, for the messages of those who wait.
        timeout: seconds to wait; None waits for ever, 0 not at all.

    Raises:
        Busy: it was not free in time; the message names the holder.
        BadInput: the file system has no locks.
    """
    make_folder(path.parent)
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        descriptor = _opened(path)
        try:
            _wait(descriptor, path, deadline)
            if _is_still(descriptor, path):
                _sign(descriptor, what)
                return Lock(path, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


@contextmanager
def making(
    root: Path, digest: str, what: str = "making an entry", timeout: float | None = None
) -> Iterator[None]:
    """Hold the key `digest` of the store at `root` while what it names is made.

    Look for the entry again once inside: whoever held the lock before has probably made it.

    Raises:
        Busy: another process made it for longer than `timeout` seconds.
    """
    lock = acquire(root / "locks" / f"{names.digest(digest)}.lock", what, timeout)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def using(root: Path) -> Iterator[None]:
    """Keep collectors out of the store at `root` while a file is looked at and marked as used.

    Any number may at once; hold it for a moment only.

    Raises:
        BadInput: the file system has no locks.
    """
    with _flocked(root / "locks" / IN_USE, fcntl.LOCK_SH):
        yield


@contextmanager
def clearing(root: Path) -> Iterator[None]:
    """Have the files of the store at `root` alone, to delete some; raises as `using`."""
    with _flocked(root / "locks" / IN_USE, fcntl.LOCK_EX):
        yield


@contextmanager
def _flocked(path: Path, how: int) -> Iterator[None]:
    # The file stays, unlike those of `acquire`: it is locked thousands of times in a run.
    make_folder(path.parent)
    descriptor = _opened(path)
    try:
        _flock(descriptor, path, how)
        yield
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether somebody holds the lock at `path`. Whoever takes it at this very moment may meet us there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        _flock(descriptor, path, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


@contextmanager
def device_lock(
    device: str, *, wait: bool = True, timeout: float | None = None, what: str = "measuring"
) -> Iterator[None]:
    """Hold a device of this machine; two stores of one user share the lock.

    Args:
        device: a name that means the same to every process: "cpu", or for a GPU its UUID (an index like
            "cuda:0" depends on CUDA_VISIBLE_DEVICES).
        wait: False answers at once.
        timeout: seconds to wait at most; None waits for ever.

    Raises:
        BusyDevice: another process holds it; the message names that process.
    """
    name = hashlib.sha256(device.encode()).hexdigest()[:32]
    try:
        lock = acquire(runtime_folder() / f"{name}.lock", f"{what} on {device}", timeout if wait else 0.0)
    except Busy as busy:
        raise BusyDevice(f"device {device} is in use: {busy}") from None
    try:
        yield
    finally:
        lock.release()


def runtime_folder() -> Path:
    """The folder of this user and machine for locks that stores share; it is 0700 and ours.

    Raises:
        BadInput: somebody else owns it.
    """
    user = os.getuid()
    usual = os.environ.get("XDG_RUNTIME_DIR", "")
    # A cron job has no XDG_RUNTIME_DIR, yet must meet the locks of the same user's logins.
    places = [Path(usual) / "routetune"] if usual.startswith("/") else []
    places += [Path(f"/run/user/{user}/routetune"), Path(tempfile.gettempdir()) / f"routetune-{user}"]
    for folder in places:
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == user:
                folder.chmod(0o700)
                return folder
        except OSError:
            continue
    raise BadInput(
        f"no folder for the locks of this machine: none of {', '.join(map(str, places))} can be made as a "
        f"folder of user {user}; set XDG_RUNTIME_DIR to one that exists"
    )


def holder(path: Path) -> str:
    """Who holds the lock at `path`, in words; only for messages, since a dead holder's note may be left."""
    try:
        note = json.loads(read_file(path))
        return f"process {note['pid']} ({note['what']}, since {note['since']})"
    except (OSError, Damaged, ValueError, KeyError, TypeError):
        return "another process"


def _opened(path: Path) -> int:
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o666)
        except PermissionError as refused:  # another user's; NFS alone asks for more than reading
            try:
                return os.open(path, os.O_RDONLY | flags)
            except FileNotFoundError:  # given back just now, or the folder is not ours to write to
                if not os.access(path.parent, os.W_OK):
                    raise refused from None


def _wait(descriptor: int, path: Path, deadline: float | None) -> None:
    pause = _POLL[0]
    while True:
        try:
            _flock(descriptor, path, fcntl.LOCK_EX | (0 if deadline is None else fcntl.LOCK_NB))
            return
        except BlockingIOError:
            assert deadline is not None
            left = deadline - time.monotonic()
            if left <= 0:
                raise Busy(f"{holder(path)} holds {path}; wait for it to end, or end it") from None
            time.sleep(min(pause, left))
            pause = min(2 * pause, _POLL[1])


def _flock(descriptor: int, path: Path, how: int) -> None:
    """Raises BlockingIOError where `how` says not to wait, and BadInput where there are no locks."""
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        raise
    except OSError as error:
        raise BadInput(
            f"{path} cannot be locked ({error.strerror}): put the store on a file system that has flock"
        ) from error


def _is_still(descriptor: int, path: Path) -> bool:
    """Whether the file that was locked is the one that the name now means."""
    try:
        named = path.lstat()
    except FileNotFoundError:
        return False
    locked = os.fstat(descriptor)
    return (named.st_dev, named.st_ino) == (locked.st_dev, locked.st_ino)


def _sign(descriptor: int, what: str) -> None:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    note = json.dumps({"pid": os.getpid(), "what": what, "since": since}).encode()
    with suppress(OSError):  # only messages need it, and where a disk is full, gc must get in
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, note, 0)
