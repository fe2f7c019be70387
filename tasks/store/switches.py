"""Switches: how many hosts agree on which generation counts, by way of a bucket.

    publications/<target>/<environment key>/generations/000001/{manifest.json, manifest.<id>.sig, engine.onnx}
    publications/<target>/<environment key>/switches/00000001.json

A switch says what `current.json` does in a folder. It is created once, never changed, and the highest number
counts: who publishes creates the next one, so of two writers one fails, looks again, and decides anew.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import time
import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path

from routetune.tasks.errors import RoutetuneError
from routetune.tasks.store import manifests, names
from routetune.tasks.store.files import (
    UNFINISHED,
    Damaged,
    StoreWarning,
    hash_file,
    make_folder,
    sync_folder,
    unfinished,
    write_atomically,
)
from routetune.tasks.store.locks import Busy, making
from routetune.tasks.store.manifests import MANIFEST, POINTER, Pointer, Reference
from routetune.tasks.store.mirror import Mirror
from routetune.tasks.store.remote import Unreachable
from routetune.tasks.store.sealed import unseal

SWITCHES = "switches"
#: Seconds for which a look at the remote is good enough for who only looks.
_FRESH = 30.0
#: Seconds to wait for another process of this host that is publishing, before the mirror is read as it is.
_PATIENCE = 30.0
_KEY = re.compile(
    rf"publications/(?P<target>{names.PLAIN})/(?P<environment>{names.ENVIRONMENT})/"
    rf"(?:switches/(?P<switch>[0-9]{{8}})\.json|generations/(?P<generation>[0-9]{{6,9}})/(?P<file>{names.PLAIN}))"
)


class Outrun(RoutetuneError):
    """Another writer was first: the number, or the switch, is taken."""


@dataclass(slots=True)
class Shelf:
    """What the remote has of one target in one environment.

    Attributes:
        switches: their numbers; of those that were read, the ones that read well.
        scrap: numbers of those that do not.
        files: generation -> names of its files.
    """

    place: Path
    switches: list[int] = field(default_factory=list)
    scrap: set[int] = field(default_factory=set)
    files: dict[int, list[str]] = field(default_factory=dict)

    @property
    def newest(self) -> int:
        return max(self.switches, default=0)


class Switches:
    """The publications of a mirror, brought up to what the remote has."""

    def __init__(self, mirror: Mirror) -> None:
        self.mirror = mirror
        self._looked: dict[str, float] = {}

    def refresh(self, target: str | None = None, at_once: bool = True) -> None:
        """Bring the mirror up to date for a target, or for all: pointers, manifests, signatures, no engines.

        Where the remote cannot be reached the mirror stays as it is, with a warning.

        Args:
            at_once: also where it was looked at a moment ago.
        """
        now = time.monotonic()
        if not at_once and now - max(self._looked.get(name, -_FRESH) for name in (target or "", "")) < _FRESH:
            return
        self._looked[target or ""] = now
        for shelf in self._shelves(f"publications/{names.target(target)}" if target else "publications"):
            try:
                name = manifests.lock_of(shelf.place.parent.name, shelf.place.name)
                with making(self.mirror.root, name, "looking at what is published", _PATIENCE):
                    follow = partial(self._follow, shelf, heal=target is not None)
                    self.mirror.attempt(follow, None)
            except Busy:
                continue  # whoever publishes here has just looked

    def look(self, place: Path) -> Shelf | None:
        """What the remote has of `place`, with the mirror brought up to it; None where it cannot be reached.

        The lock of the publication must be held.
        """
        if self.mirror.is_asleep:
            return None
        try:
            [shelf] = self._listed(self.mirror.key(place)) or [Shelf(place)]
            self._follow(shelf)
            return shelf
        except Unreachable as error:
            self.mirror.fell_asleep(error)
            return None

    def has_moved(self, place: Path, pointer: Pointer) -> bool:
        """Whether the remote has a later switch than `pointer`; asks for one object."""
        later = self._path(place, pointer.switch + 1)
        return self.mirror.attempt(lambda: self.mirror.remote.size(self.mirror.key(later)), None) is not None

    def put(self, place: Path, shelf: Shelf, pointer: Pointer, new: bool = True) -> Pointer:
        """Make `pointer` what counts at the remote; the pointer with the number that it has there.

        Every generation that it names is given first; to create its manifest is to claim its number.

        Args:
            new: nobody else has the generation that becomes current, or it is refused.

        Raises:
            Outrun: somebody else has the number of a generation, or has switched meanwhile.
            Unreachable: the remote cannot be reached; it may have got some of the files.
        """
        for past in reversed(pointer.newest_first):
            if past.generation not in shelf.files or (new and past == pointer.current):
                self._give(place, past.generation)
        after = max(pointer.switch, shelf.newest) + 1
        turned = replace(pointer, switch=next(number for number in count(after) if number not in shelf.scrap))
        key, raw = self.mirror.key(self._path(place, turned.switch)), manifests.sealed_pointer(turned)
        # A lost answer makes our own switch look like somebody's: the bytes tell.
        if not self.mirror.remote.create(key, raw) and self.mirror.remote.read(key) != raw:
            raise Outrun(f"{self.mirror.remote.url}/{key} was written by another host meanwhile: look again")
        return turned

    def withdraw(self, place: Path, generation: int) -> None:
        """Delete the files of a generation that no switch names."""
        folder = self.mirror.key(manifests.folder_of(place, generation))
        found = [one.key for one in self.mirror.listed(folder)]
        # The manifest last: until then the number is taken.
        for key in sorted(found, key=lambda key: key.endswith(f"/{MANIFEST}")):
            self.mirror.delete(self.mirror.root / key)

    def take_back(self, place: Path, own: Reference) -> None:
        """Delete a generation that was outrun, where its number is ours and not the other writer's."""
        path = manifests.folder_of(place, own.generation) / MANIFEST
        raw = self.mirror.read(path)
        if raw is not None and hashlib.sha256(raw).hexdigest() == own.manifest:
            self.withdraw(place, own.generation)

    def retire(self, shelf: Shelf, pointer: Pointer) -> None:
        """Delete the earlier generations that `pointer` does not name."""
        named = {past.generation for past in pointer.newest_first}
        for number in sorted(shelf.files):
            if pointer.current and number < pointer.current.generation and number not in named:
                self.withdraw(shelf.place, number)

    def _shelves(self, folder: str) -> list[Shelf]:
        none: list[Shelf] = []
        return self.mirror.attempt(lambda: self._listed(folder), none)

    def _listed(self, folder: str) -> list[Shelf]:
        shelves: dict[Path, Shelf] = {}
        for one in self.mirror.remote.list(folder):
            found = _KEY.fullmatch(one.key)
            if found is None:
                continue
            place = manifests.home(self.mirror.root, found["target"], found["environment"])
            shelf = shelves.setdefault(place, Shelf(place))
            if found["switch"]:
                shelf.switches.append(int(found["switch"]))
            else:
                shelf.files.setdefault(int(found["generation"]), []).append(found["file"])
        return list(shelves.values())

    def _path(self, place: Path, switch: int) -> Path:
        return place / SWITCHES / f"{switch:08d}.json"

    def _give(self, place: Path, generation: int) -> None:
        folder = manifests.folder_of(place, generation)
        if not self.mirror.give(folder / MANIFEST):
            raise Outrun(f"generation {generation} of {place.parent.name} was made by another host meanwhile")
        for path in folder.iterdir():
            if not path.name.startswith(UNFINISHED) and not self.mirror.give(path):
                self.mirror.remote.replace(self.mirror.key(path), path)  # left of one that was withdrawn

    def _follow(self, shelf: Shelf, heal: bool = True) -> None:
        """Make the local pointer what the newest switch says, after the manifests that it names are here.

        Args:
            heal: look at the manifests that are here already, too.
        """
        place = shelf.place
        pointer = self._local(place)
        if self.mirror.is_pending(place / POINTER):
            pointer = self._settled(shelf, pointer)
        if shelf.newest and (pointer is None or pointer.switch != shelf.newest):
            theirs = self._latest(shelf)
            if theirs is None:
                return
            if theirs != pointer:
                self._fetch_manifests(place, theirs)
                make_folder(place)
                manifests.write_pointer(place, theirs)
                self._clear(place, theirs)
            pointer = theirs
        elif shelf.newest and pointer is not None and heal:
            self._fetch_manifests(place, pointer)
        if pointer is not None:
            self._fetch_signatures(shelf, pointer)

    def _settled(self, shelf: Shelf, pointer: Pointer | None) -> Pointer | None:
        """Publish at the remote what was published here when it could not be reached; or give way."""
        place = shelf.place
        if pointer is not None and pointer.switch == shelf.newest:
            with suppress(Outrun):
                pointer = self.put(place, shelf, pointer)
                manifests.write_pointer(place, pointer)
                shelf.switches.append(pointer.switch)
                self.mirror.settle(place / POINTER)
                return pointer
            shelf.switches = [at for one in self._listed(self.mirror.key(place)) for at in one.switches]
        theirs = self._latest(shelf)
        self.mirror.settle(place / POINTER)
        if theirs is None:  # only a writer that was killed has our number: there is nothing to go on with
            (place / POINTER).unlink(missing_ok=True)
            self._clear(place, Pointer(None))
        if pointer and pointer.current and pointer.current not in (theirs or Pointer(None)).newest_first:
            warnings.warn(
                f"generation {pointer.current.generation} of {place.parent.name} was published while "
                f"{self.mirror.remote.url} could not be reached, and another host was first: it is not "
                "published there, and what is there counts. Tune again: both meet, and nothing is built",
                StoreWarning,
                stacklevel=4,
            )
        return None

    def _local(self, place: Path) -> Pointer | None:
        try:
            return manifests.read_pointer(place)
        except manifests.BadPublication:
            return None  # the remote heals it

    def _latest(self, shelf: Shelf) -> Pointer | None:
        """What the newest switch says that reads well: scrap behind it takes nothing away."""
        while shelf.newest:
            if (found := self._read(shelf.place, shelf.newest)) is not None:
                return found
            shelf.scrap.add(shelf.newest)
            shelf.switches.remove(shelf.newest)
        return None

    def _read(self, place: Path, switch: int) -> Pointer | None:
        path = self._path(place, switch)
        raw = self.mirror.remote.read(self.mirror.key(path))
        try:
            pointer = manifests.pointer_from(unseal(raw or b""))
            return replace(pointer, switch=switch)
        except Damaged as damage:
            self.mirror.disown(path, str(damage))
            return None

    def _fetch_manifests(self, place: Path, pointer: Pointer) -> None:
        """Fetch what is missing or damaged here; what is damaged at the remote stays missing."""
        for past in pointer.newest_first:
            path = manifests.folder_of(place, past.generation) / MANIFEST
            if path.exists() and hash_file(path) == past.manifest:
                continue
            raw = self.mirror.remote.read(self.mirror.key(path))
            found = hashlib.sha256(raw or b"").hexdigest()
            if path.parent.exists():
                _remove(path.parent)  # damaged, or ours that gave way to another of the same number
            if raw is not None and found == past.manifest:
                write_atomically(path, raw, 0o444)
            else:
                self.mirror.disown(path, f"published with SHA-256 {past.manifest}, now it has {found}")

    def _fetch_signatures(self, shelf: Shelf, pointer: Pointer) -> None:
        for past in pointer.newest_first:
            folder = manifests.folder_of(shelf.place, past.generation)
            for name in shelf.files.get(past.generation, ()):
                path = folder / name
                if path.suffix == ".sig" and folder.is_dir() and not path.exists():
                    raw = self.mirror.remote.read(self.mirror.key(path))
                    if raw is not None:
                        write_atomically(path, raw, 0o444)

    def _clear(self, place: Path, pointer: Pointer) -> None:
        """Remove the generations here that the pointer does not name any more."""
        named: Iterable[int] = {past.generation for past in pointer.newest_first}
        for number in manifests.numbers(place):
            if number not in named:
                _remove(manifests.folder_of(place, number))


def _remove(folder: Path) -> None:
    """By way of a name that no reader takes for a generation."""
    doomed = folder.rename(unfinished(folder.parent))
    sync_folder(doomed.parent)
    shutil.rmtree(doomed, ignore_errors=True)
