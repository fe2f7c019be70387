"""Entries: what a stage found, under the whole key that decided it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from routetune.tasks.canonical import dumps
from routetune.tasks.store import names
from routetune.tasks.store.blobs import Blobs
from routetune.tasks.store.files import Damaged, mark_used, put_away, read_file, write_atomically
from routetune.tasks.store.locks import using
from routetune.tasks.store.mirror import Mirror
from routetune.tasks.store.sealed import seal, unseal

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One kept result.

    Attributes:
        key: the whole key, as `keys.stage_key` made it.
        value: plain JSON.
        blobs: digests of the blobs that belong to it.
        path: the file.
    """

    key: dict[str, Any]
    value: Any
    blobs: tuple[str, ...]
    path: Path


class Entries:
    """The entries under `root`, the folder of the store. Any number of processes may use them at once.

    What a mirror lacks is looked for at its remote, and what is put there is offered to that: of two hosts
    that make one key, the first keeps its value, and the other one takes that.
    """

    def __init__(self, root: Path, blobs: Blobs, mirror: Mirror | None = None) -> None:
        self.root = root
        self.mirror = mirror
        self.blobs = blobs
        self.folder = root / "entries"

    def get(self, key: Mapping[str, Any]) -> Entry | None:
        """The entry of `key`, or None when there is none.

        A damaged one is set aside with a warning, and counts as none.

        The bytes of its blobs are not read here; `Blobs.verified` does that when they are used.

        Raises:
            TypeError: `key` is not plain JSON.
        """
        text = dumps(key)
        path = self._path(text)
        return self._read(path, text) or self._fetched(path, text)

    def put(
        self,
        key: Mapping[str, Any],
        value: Any,
        blobs: Sequence[str] = (),
        anew: bool = False,
        share: bool = True,
    ) -> Entry:
        """Keep `value` under `key`; an earlier entry is replaced. Returns what `get` would.

        Args:
            blobs: digests of blobs already in the store.
            anew: it was made although there may be one: a mirror keeps it, whatever its remote has.
            share: offer it to a mirror's remote now; otherwise `share` may later.

        Raises:
            TypeError: `key` or `value` is not plain JSON.
            Missing: a blob is not in the store.
        """
        text = dumps(key)
        path = self._path(text)
        sizes = [[digest, self.blobs.size(digest)] for digest in blobs]
        raw = seal({"schema": SCHEMA, "key": key, "value": value, "blobs": sizes})
        # A blob that nobody named until now may be on the list of a collector: its time is moved, and the
        # entry written, before that can look again.
        with using(self.root):
            for digest in blobs:
                self.blobs.mark(digest)
            if self.mirror is not None and share and not anew:
                self.mirror.note(path)
            write_atomically(path, raw)
        theirs = self.share(path, anew) if share else None
        return theirs or Entry(json.loads(text), unseal(raw)["value"], tuple(blobs), path)

    def share(self, path: Path, anew: bool = False) -> Entry | None:
        """Offer an entry to the remote, its blobs first; the remote's own, where that was there before.

        Args:
            path: the entry's file.
            anew: leave ours as it is all the same; then it is offered only this once.
        """
        entry = self._read(path, None) if self.mirror is not None else None
        if self.mirror is None or entry is None:
            return None
        if all(self.mirror.offer_blob(self.blobs.path(digest)) for digest in entry.blobs):
            ours = self.mirror.offer(path)
        else:
            ours = True
            self.mirror.note(path)
        if anew:
            self.mirror.settle(path)
        if ours or anew:
            return None
        theirs = self._fetched(path, None)
        if theirs is None:
            self.mirror.insist(path)
        return theirs

    def use(self, entry: Entry) -> None:
        """Mark an entry as used now, so that no collector takes it for a while; gone is no error."""
        with using(self.root), suppress(FileNotFoundError):
            mark_used(entry.path)

    def path(self, key: Mapping[str, Any]) -> Path:
        """Where the entry of `key` lies or would lie."""
        return self._path(dumps(key))

    def __iter__(self) -> Iterator[Entry]:
        """Every valid entry, in no useful order; damaged ones are set aside."""
        for path in sorted(self.folder.glob("??/??/*.json")):
            entry = self._read(path, None)
            if entry is not None:
                yield entry

    def _path(self, text: str) -> Path:
        name = hashlib.sha256(text.encode("ascii")).hexdigest()
        return names.fan_out(self.folder, name, ".json")

    def _read(self, path: Path, text: str | None) -> Entry | None:
        try:
            return self._valid(path, read_file(path), text)
        except FileNotFoundError:
            return None
        except Damaged as damage:
            if path.exists():  # else it was collected, with its blobs, since it was read
                put_away(self.root, path, "entry", damage)
            return None

    def _fetched(self, path: Path, text: str | None) -> Entry | None:
        """The remote's entry with its blobs, and ours from now on; None where it has none that is whole."""
        raw = None if self.mirror is None else self.mirror.read(path)
        if raw is None or self.mirror is None:
            return None
        try:
            for digest, size in _parsed(raw)[1]:
                self.blobs.obtain(digest, size)
            entry = self._valid(path, raw, text)
        except Damaged as damage:
            if not self.mirror.is_asleep:  # else it may only be half here
                self.mirror.disown(path, str(damage))
            return None
        with using(self.root):
            for digest in entry.blobs:
                self.blobs.mark(digest)
            self.mirror.keep(path, raw)
        return entry

    def _valid(self, path: Path, raw: bytes, text: str | None) -> Entry:
        """The one place that decides whether bytes are the entry of a key. Raises Damaged with the reason.

        Args:
            text: the canonical text of the key, or None to take the key by which the file is named.
        """
        content, sizes = _parsed(raw)
        key = content["key"]
        if text is None:
            if self._path(dumps(key)) != path:
                raise Damaged("the key in it is not the one it is filed under")
        elif key != json.loads(text):
            raise Damaged("the key in it is not the one asked for")
        for digest, size in sizes:
            if not self.blobs.has(digest, size):
                raise Damaged(f"its blob {digest} is gone or does not have {size} bytes")
        return Entry(key, content["value"], tuple(digest for digest, _ in sizes), path)


def _parsed(raw: bytes) -> tuple[dict[str, Any], list[tuple[str, int]]]:
    """The parts of an entry, and its blobs with their sizes. Raises Damaged: it is none."""
    content = unseal(raw)
    if content.get("schema") != SCHEMA:
        raise Damaged(f"its schema is {content.get('schema')!r}, not {SCHEMA}")
    key, sizes = content.get("key"), content.get("blobs")
    if not isinstance(key, dict) or not isinstance(sizes, list) or "value" not in content:
        raise Damaged("it lacks a key, a value or its list of blobs")
    if not all(map(_names_a_blob, sizes)):
        raise Damaged("its list of blobs does not hold digests and sizes")
    return content, [(digest, size) for digest, size in sizes]


def _names_a_blob(pair: object) -> bool:
    """Whether it is a digest and a size, as `put` writes them."""
    if not isinstance(pair, list) or len(pair) != 2 or type(pair[1]) is not int:
        return False
    return names.is_digest(pair[0])
