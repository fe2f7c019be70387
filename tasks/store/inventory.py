"""The inventory of a store: every file in one walk, what each entry names, when each was last used."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from routetune.tasks.errors import BadInput
from routetune.tasks.store import names
from routetune.tasks.store.entries import SCHEMA
from routetune.tasks.store.files import UNFINISHED, Damaged, open_regular
from routetune.tasks.store.mirror import Mirror
from routetune.tasks.store.remote import Remote
from routetune.tasks.store.sealed import body, unseal

#: Enough of an entry to see whether it names blobs at all; raw samples behind that are not read.
_HEAD = 256
#: Entries that are fetched at once.
_AT_ONCE = 16
#: Parts that have been seen when the rest is; locks come and go, and hold nothing.
_LOOKED_AT = ("entries", "blobs", "scratch", "set-aside", "locks")


@dataclass(slots=True)
class File:
    """A file, or a folder that is one thing.

    Attributes:
        size: bytes, of a folder with all that is in it.
        used: seconds since the epoch of its last use: the time of its last write, which use moves.
    """

    path: str
    size: int
    used: float

    def remove(self) -> None:
        """Delete it; links are not followed, and what is gone already is no error."""
        try:
            Path(self.path).unlink(missing_ok=True)
        except IsADirectoryError:
            shutil.rmtree(self.path, ignore_errors=True)

    def last_used(self) -> float:
        """`used`, looked up anew; 0 for what is gone."""
        try:
            return os.lstat(self.path).st_mtime
        except FileNotFoundError:
            return 0.0

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(slots=True)
class Kept:
    """An entry.

    Attributes:
        blobs: digests of the blobs that it names, each once.
        engine: which of them is the engine of a build; "" for other entries.
    """

    file: File
    blobs: tuple[str, ...] = ()
    engine: str = ""


@dataclass(slots=True)
class Inventory:
    """What a store holds.

    Attributes:
        blobs: by digest.
        unfinished: files and folders that somebody began to write, anywhere in the store.
        set_aside: damaged files.
        scratch: working folders of runs.
        rest: bytes of all else.
    """

    entries: list[Kept] = field(default_factory=list)
    blobs: dict[str, File] = field(default_factory=dict)
    unfinished: list[File] = field(default_factory=list)
    set_aside: list[File] = field(default_factory=list)
    scratch: list[File] = field(default_factory=list)
    rest: int = 0

    @property
    def bytes(self) -> int:
        """Of everything."""
        files = [*self.blobs.values(), *self.unfinished, *self.set_aside, *self.scratch]
        return sum(file.size for file in files) + sum(one.file.size for one in self.entries) + self.rest

    def used(self, kept: Kept) -> float:
        """When an entry or a blob that it names was last used."""
        return max([kept.file.used, *(self.blobs[blob].used for blob in kept.blobs if blob in self.blobs)])


def take_inventory(root: Path) -> Inventory:
    """Look at every file of the store at `root`; nothing is written, links are not followed.

    Raises:
        BadInput: an entry was written by a newer routetune, so that it is not known what it names.
    """
    found = Inventory()
    # Entries before blobs: what an entry names was there before it, so it is seen, unless it really is gone.
    for top in ("entries", "blobs"):
        for file in _files(root / top, found.unfinished):
            if top == "entries" and file.name.endswith(".json"):
                found.entries.append(_kept(file))
            elif top == "blobs" and names.is_digest(file.name):
                found.blobs[file.name] = file
            else:
                found.rest += file.size
    found.scratch += _things(root / "scratch")
    found.set_aside += _things(root / "set-aside")
    for thing in _scanned(root):
        if thing.name in _LOOKED_AT:
            continue
        if thing.is_dir(follow_symlinks=False) and not thing.name.startswith(UNFINISHED):
            found.rest += sum(file.size for file in _files(Path(thing.path), found.unfinished))
        elif thing.name.startswith(UNFINISHED):
            found.unfinished.append(_file(thing))
        else:
            found.rest += _file(thing).size
    return found


@dataclass(slots=True)
class _Object(File):
    """A file of a remote; `path` is its key, and it was last used when it was written."""

    remote: Remote

    def remove(self) -> None:
        self.remote.delete(self.path)

    def last_used(self) -> float:
        return self.remote.modified(self.path)


def list_remote(mirror: Mirror) -> Inventory:
    """What the remote of a mirror holds; an entry that is not here, too, is fetched to see what it names.

    Raises:
        Unreachable: the remote cannot be reached.
        BadInput: as `take_inventory`.
    """
    found, entries = Inventory(), []
    for one in mirror.remote.list(""):
        file = _Object(one.key, one.size, one.modified, mirror.remote)
        top = one.key.partition("/")[0]
        if top == "entries" and file.name.endswith(".json"):
            entries.append(file)
        elif top == "blobs" and names.is_digest(file.name):
            found.blobs[file.name] = file
        else:
            found.rest += file.size
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found.entries += pool.map(lambda file: _named(mirror, file), entries)
    return found


def _named(mirror: Mirror, file: _Object) -> Kept:
    try:
        raw = (mirror.root / file.path).read_bytes()
    except OSError:
        raw = mirror.remote.read(file.path) or b""
    return named_by(file, raw)


def _kept(file: File) -> Kept:
    """An entry with what it names; one that is damaged names nothing, and whoever asks for it finds out."""
    try:
        with open_regular(Path(file.path), links=False) as opened:
            raw = opened.read(_HEAD)
            return named_by(file, raw if names_nothing(raw) else raw + opened.read())
    except OSError:
        return Kept(file)


def names_nothing(raw: bytes) -> bool:
    """Whether an entry that begins like this names no blobs."""
    return body(raw).startswith(b'"blobs":[]')


def named_by(file: File, raw: bytes) -> Kept:
    """The entry in `file` with what its bytes name; raises as `take_inventory`."""
    if names_nothing(raw):
        return Kept(file)
    try:
        content = unseal(raw)
    except Damaged:
        return Kept(file)
    if content.get("schema") != SCHEMA:
        raise BadInput(
            f"entry {file.path} has schema {content.get('schema')!r}, this routetune knows {SCHEMA}: nothing "
            "was deleted; collect with the newer routetune that wrote it"
        )
    try:
        blobs = tuple(dict.fromkeys(names.digest(digest) for digest, _ in content["blobs"]))
        engine = content["value"].get("engine") if content["key"]["stage"] == "build" else None
        return Kept(file, blobs, names.digest(engine["digest"]) if engine else "")
    except (LookupError, TypeError, ValueError, AttributeError, BadInput):
        return Kept(file)  # nobody can use it, so it may name what it likes


def _files(folder: Path, unfinished: list[File]) -> Iterator[File]:
    """Every file below `folder`; unfinished files and folders go to the list instead."""
    waiting = [str(folder)]
    while waiting:
        for thing in _scanned(waiting.pop()):
            if thing.name.startswith(UNFINISHED):
                unfinished.append(_file(thing))
            elif thing.is_dir(follow_symlinks=False):
                waiting.append(thing.path)
            elif (file := _file(thing)).used:
                yield file


def _things(folder: Path) -> list[File]:
    return [_file(thing) for thing in _scanned(folder)]


def _scanned(folder: Path | str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as things:
            return list(things)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _file(thing: os.DirEntry[str]) -> File:
    """What it holds and when it was used; of one that vanished under our eyes, nothing and never."""
    try:
        status = thing.stat(follow_symlinks=False)
        inside = _things(Path(thing.path)) if thing.is_dir(follow_symlinks=False) else []
    except FileNotFoundError:
        return File(thing.path, 0, 0.0)
    size = sum(file.size for file in inside) if inside else status.st_size
    return File(thing.path, size, max([status.st_mtime, *(file.used for file in inside)]))
