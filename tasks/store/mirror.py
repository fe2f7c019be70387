"""A mirror: the local folder of a store whose truth is a remote, and what goes to and fro between them.

An object has the name of its file, so a bucket is a store that any tool can copy. What is missing here is
looked for there; what is made here is offered there once, and whoever was first has it. A file that is still
to be offered is noted in `outbox/` before it is written, so a kill or a dead network loses none.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from routetune.tasks.errors import BadInput
from routetune.tasks.store.files import (
    Damaged,
    StoreWarning,
    is_inside,
    make_folder,
    read_file,
    unfinished,
    write_atomically,
)
from routetune.tasks.store.remote import CHUNK, Listed, Remote, Unreachable, checked
from routetune.tasks.store.sealed import read_sealed, seal

SCHEMA = 1
#: Says of which remote a folder is the mirror.
MARKER = "remote.json"
OUTBOX = "outbox"
#: Seconds for which a remote that failed is left alone: at first, and at most, as it fails again and again.
PAUSE = (15.0, 300.0)
#: A remote that never answers costs a run this part of its time at most, as 1 / (1 + n).
_SHARE = 4.0
#: Seconds after which a note whose file never came is left over from a kill.
_LEFT = 86_400.0
_AT_ONCE = 8

T = TypeVar("T")
#: Whether bytes are what should be under a key.
Sound = Callable[[str, bytes], bool]


def folder_of(url: str) -> Path:
    """The user's mirror of the remote at `url`. Nothing is looked at. Raises BadInput: not such a URL."""
    import platformdirs

    name = hashlib.sha256(checked(url).encode()).hexdigest()[:32]
    return Path(platformdirs.user_cache_dir("routetune")) / "stores" / name


def mark(root: Path, url: str) -> None:
    """Make `root` the mirror of the remote at `url`."""
    if not root.is_dir():
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
    content = seal({"schema": SCHEMA, "url": checked(url)})
    with suppress(FileNotFoundError):
        if (root / MARKER).read_bytes() == content:
            return
    write_atomically(root / MARKER, content)


_known: dict[tuple[str, str], Mirror] = {}


def mirror_of(root: Path) -> Mirror | None:
    """The mirror that the store at `root` is, or None: then it is a store of its own.

    One for all of a process, so that a dead remote is waited for once. A marker counts only in the folder
    that its URL has on this machine: planted in any other, it sends nobody anywhere.

    Raises:
        BadInput: the marker is damaged, or obstore is not installed.
    """
    if not (root / MARKER).is_file():
        return None
    try:
        url = str(read_sealed(root / MARKER, SCHEMA, "mirror")["url"])
        if os.path.realpath(folder_of(url)) != os.path.realpath(root):
            return None
    except (Damaged, KeyError, FileNotFoundError) as damage:
        raise BadInput(f"{root / MARKER} is damaged ({damage}): give the store by its URL") from damage
    place = (os.path.realpath(root), url)
    if place not in _known:
        _known[place] = Mirror(Path(place[0]), Remote(url))
    return _known[place]


def name_of(root: Path) -> str:
    """What a person calls the store at `root`: the folder, or the URL of which it is the mirror."""
    mirror = mirror_of(root)
    return str(root) if mirror is None else mirror.remote.url


def write_shared(mirror: Mirror | None, path: Path, raw: bytes) -> None:
    """`write_atomically`, and give it to the remote, where the store is a mirror."""
    if mirror is not None:
        mirror.note(path)
    write_atomically(path, raw)
    if mirror is not None:
        mirror.offer(path)


class Mirror:
    """The folder `root` as the mirror of a remote.

    Whatever the remote does, nothing here raises for it unless the method says so: the first failure is
    warned of, and for a while nothing is asked of it any more.
    """

    def __init__(self, root: Path, remote: Remote) -> None:
        self.root = root
        self.remote = remote
        self._asleep_until = 0.0
        self._pause = PAUSE[0]
        self._warned = False
        self._there: set[str] = set()
        self._bad: set[str] = set()

    def key(self, path: Path) -> str:
        """What `path` is called at the remote."""
        return path.relative_to(self.root).as_posix()

    def url(self, path: Path) -> str:
        """What `path` is called in messages."""
        return f"{self.remote.url}/{self.key(path)}"

    @property
    def is_asleep(self) -> bool:
        """Whether the remote failed a moment ago."""
        return time.monotonic() < self._asleep_until

    def fell_asleep(self, error: Unreachable, spent: float = 0.0) -> None:
        """Leave the remote alone for a while, the longer the more seconds were spent on it.

        Said once, until it answers again.
        """
        if self.is_asleep:  # another thread has just said so
            return
        self._asleep_until = time.monotonic() + max(self._pause, _SHARE * spent)
        self._pause = min(2 * self._pause, PAUSE[1])
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{error}; going on with {self.root} alone. What is made meanwhile is kept there, and is "
                "shared by the next run",
                StoreWarning,
                stacklevel=4,
            )

    def attempt(self, act: Callable[[], T], otherwise: T) -> T:
        """What `act` gives; `otherwise` where the remote fails, or did so a moment ago."""
        if self.is_asleep:
            return otherwise
        began = time.monotonic()
        try:
            found = act()
        except Unreachable as error:
            self.fell_asleep(error, time.monotonic() - began)
            return otherwise
        self._pause, self._warned = PAUSE[0], False
        return found

    # What the remote has.

    def read(self, path: Path) -> bytes | None:
        """The bytes that the remote has for a small file, unchecked; None where it has none."""
        return self.attempt(lambda: self.remote.read(self.key(path)), None)

    def has(self, path: Path, size: int) -> bool:
        """Whether the remote has a file of that size for `path`."""
        return self.attempt(lambda: self.remote.size(self.key(path)) == size, False)

    def download(self, path: Path, digest: str) -> bool:
        """Put what the remote has for `path` there, if it has that SHA-256; it is read-only then."""
        make_folder(path.parent)
        temporary = unfinished(path.parent)
        try:
            found = self.attempt(lambda: self.remote.fetch(self.key(path), temporary), None)
            if found is None:
                return False
            if found != digest:
                self.disown(path, f"its bytes have the SHA-256 {found}, not {digest}")
                return False
            temporary.chmod(0o444)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        self._there.add(self.key(path))
        return True

    def disown(self, path: Path, why: str) -> None:
        """What the remote has for `path` is damaged: a miss, and replaced by whoever makes it again."""
        self._bad.add(self.key(path))
        self._there.discard(self.key(path))
        warnings.warn(f"{self.url(path)} is damaged: {why}; counted as missing", StoreWarning, stacklevel=3)

    def listed(self, folder: str) -> list[Listed]:
        """What the remote has below a folder."""
        nothing: list[Listed] = []
        return self.attempt(lambda: self.remote.list(folder), nothing)

    def pull(self, folder: str, named: re.Pattern[str], sound: Sound) -> None:
        """Fetch every small file below `folder` that is missing here.

        Args:
            named: what a key must match in full; others are none of ours.
            sound: judges the bytes; what is not is passed over with a warning.
        """
        listed = self.listed(folder)
        keys = [one.key for one in listed if named.fullmatch(one.key)]
        missing = [key for key in keys if not (self.root / key).exists()]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for key, raw in zip(
                missing, pool.map(lambda key: self.read(self.root / key), missing), strict=True
            ):
                if raw is None:
                    continue
                if sound(key, raw):
                    self.keep(self.root / key, raw)
                else:
                    self.disown(self.root / key, "it is not what was written")

    def keep(self, path: Path, raw: bytes) -> None:
        """Write bytes that the remote has."""
        if is_inside(self.root, path):
            write_atomically(path, raw)
            self._there.add(self.key(path))

    # What it is given.

    def note(self, path: Path) -> None:
        """Remember that `path`, which may not be there yet, is to be offered."""
        write_atomically(self._note(path), self.key(path).encode())

    def settle(self, path: Path) -> None:
        """Forget that `path` was to be offered."""
        self._note(path).unlink(missing_ok=True)

    def is_pending(self, path: Path) -> bool:
        """Whether `path` is still to be offered."""
        return self._note(path).exists()

    def pending(self) -> list[Path]:
        """The files that are still to be offered; notes whose file never came are cleared away in time."""
        found = []
        for note in sorted((self.root / OUTBOX).glob("[0-9a-f]*")):
            with suppress(OSError, Damaged, ValueError):
                path = self.root / read_file(note).decode()
                if path.is_file() and is_inside(self.root, path):
                    found.append(path)
                elif note.stat().st_mtime < time.time() - _LEFT:
                    note.unlink(missing_ok=True)
        return found

    def offer(self, path: Path) -> bool:
        """Give a small file to the remote; False where that has had another under this name before.

        Where it cannot be reached now, the file stays noted, and ours counts until then.
        """
        try:
            first = self.attempt(lambda: self.give(path), None)
        except FileNotFoundError:  # collected, or disowned
            first = True
        self._noted(path, first is not None)
        return first is not False

    def give(self, path: Path) -> bool:
        """As `offer`, but notes nothing. Raises Unreachable, or FileNotFoundError: there is no such file."""
        # What two writers may name alike is JSON. Other names have a digest, or a number that was claimed.
        large = path.stat().st_size > CHUNK and path.suffix != ".json"
        return self._sent(path) if large else self._given(self.key(path), path.read_bytes())

    def offer_blob(self, path: Path) -> bool:
        """Give a blob to the remote; False where it could not be reached."""
        return self.attempt(lambda: self._sent(path), False)

    def insist(self, path: Path) -> None:
        """Give a small file to the remote in place of one that nobody can use."""
        raw = path.read_bytes()
        self._noted(path, self.attempt(lambda: self._put_anew(self.key(path), raw), False))

    def delete(self, path: Path) -> None:
        """Delete the remote's of what was deleted here; where it cannot be reached, it stays."""
        self.settle(path)
        self._there.discard(self.key(path))
        self.attempt(lambda: self.remote.delete(self.key(path)), None)

    def _given(self, key: str, raw: bytes) -> bool:
        if key in self._bad:
            return self._put_anew(key, raw)
        # A lost answer makes our own look like somebody's: the bytes tell.
        if key not in self._there and not self.remote.create(key, raw) and self.remote.read(key) != raw:
            return False
        self._there.add(key)
        return True

    def _put_anew(self, key: str, raw: bytes) -> bool:
        self.remote.replace(key, raw)
        self._bad.discard(key)
        self._there.add(key)
        return True

    def _sent(self, path: Path) -> bool:
        key, size = self.key(path), path.stat().st_size
        if key in self._there:
            return True
        # Named by its digest, it is written over only by its like: so it can go up in parts.
        if key in self._bad or self.remote.size(key) != size:
            self.remote.replace(key, path)
        self._bad.discard(key)
        self._there.add(key)
        return True

    def _noted(self, path: Path, done: bool) -> None:
        if done:
            self.settle(path)
        elif not self.is_pending(path):
            self.note(path)

    def _note(self, path: Path) -> Path:
        return self.root / OUTBOX / hashlib.sha256(self.key(path).encode()).hexdigest()[:32]
