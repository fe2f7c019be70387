"""Garbage collection: what is least worth its room goes first, beside any number of tunes.

Whoever reads or names a blob or an entry moves its time to now, under a shared lock (`locks.using`). A
collector decides by these times at leisure, then looks at them once more with the lock to itself
(`locks.clearing`) just before it deletes. So nothing goes that was used since `since`, which is before the
start of every run under way.

An entry goes before its blobs. A kill between the two leaves blobs that nothing names, and the next
collection takes those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from routetune.tasks.store.inventory import File, Inventory, Kept
from routetune.tasks.store.locks import clearing
from routetune.tasks.store.runs import Runs

#: Seconds for which what was used stays, whoever used it: longer than the way from a blob to the entry that
#: names it, and than clocks of hosts that share a store differ.
GRACE = 3600.0
#: Seconds after which what nobody finished is left over from a kill, and a damaged file was looked at.
LEFT_OVER = 86_400.0
LOOKED_AT = 7 * 86_400.0
#: Files deleted in one go; who wants to use one waits that long, a few milliseconds.
_BATCH = 64

T = TypeVar("T")

KINDS = ("engines", "blobs", "entries", "unfinished", "set_aside", "scratch")


@dataclass(slots=True)
class Tally:
    """How many files, and their bytes."""

    files: int = 0
    bytes: int = 0

    def add(self, size: int) -> None:
        self.files += 1
        self.bytes += size

    def to_json(self) -> dict[str, int]:
        return {"files": self.files, "bytes": self.bytes}


class Collector:
    """One collection.

    Args:
        found: the store as it was a moment ago.
        pins: digests of blobs that stay, and with them the entries that name them.
        since: what was used after this stays; seconds since the epoch.
        dry_run: only count.

    Attributes:
        total: bytes that the store still has.
        collected: kind -> what went, or would go.
    """

    def __init__(
        self, root: Path, found: Inventory, pins: Set[str], since: float, dry_run: bool = False
    ) -> None:
        self.root = root
        self.found = found
        self.pins = pins
        self.since = since
        self.dry_run = dry_run
        self.total = found.bytes
        self.collected = {kind: Tally() for kind in KINDS}
        self._naming = Counter(blob for kept in found.entries for blob in kept.blobs)
        self._engines = {kept.engine for kept in found.entries if kept.engine}
        self._gone: set[int] = set()

    def clear_leftovers(self, now: float, runs: Runs) -> None:
        """Delete what killed processes left, and damaged files that lay aside long enough.

        Args:
            now: seconds since the epoch.
            runs: they tell whose working folders are left.
        """
        for kind, files, age in (
            ("unfinished", self.found.unfinished, LEFT_OVER),
            ("set_aside", self.found.set_aside, LOOKED_AT),
        ):
            for file in files:
                if file.used < now - age:
                    self._remove(file, kind)
        live = {run.id for run in runs.live()}
        for folder in self.found.scratch:
            if folder.used < now - LEFT_OVER and folder.name not in live:
                # A run that was killed long ago may be gone on with at this moment, in this folder.
                with nullcontext(True) if self.dry_run else runs.left(folder.name) as left:
                    if left:
                        self._remove(folder, "scratch")

    def clear_useless(self) -> None:
        """Delete entries whose blobs are gone, which nobody can use, and blobs that no entry names."""
        blobs = self.found.blobs
        self._clear([kept for kept in self.found.entries if any(blob not in blobs for blob in kept.blobs)])
        unnamed = [blob for blob in blobs if not self._naming[blob] and blob not in self.pins]
        for batch in _batches([blob for blob in unnamed if blobs[blob].used < self.since]):
            with self._alone():
                for blob in batch:
                    if not self._used_meanwhile([blobs[blob]]):
                        self._drop_blob(blob)

    def clear_older(self, than: float) -> None:
        """Delete every entry that was not used since `than`, seconds since the epoch, with its blobs."""
        self._clear([kept for kept in self.found.entries if self.found.used(kept) < than])

    def shrink(self, limit: int) -> None:
        """Delete engines, then all else, the least recently used first, until `limit` bytes are left."""
        by_use = sorted(self.found.entries, key=self.found.used)
        self._clear([kept for kept in by_use if kept.engine], limit)
        self._clear([kept for kept in by_use if not kept.engine], limit)

    @property
    def pinned(self) -> Tally:
        """The blobs that are pinned."""
        return self._tally(blob for blob in self.found.blobs if blob in self.pins)

    @property
    def in_use(self) -> Tally:
        """The blobs that are not pinned, and stay since they were used a short while ago or by a live run."""
        found = self.found.blobs
        return self._tally(b for b, file in found.items() if b not in self.pins and file.used >= self.since)

    def _tally(self, blobs: Iterable[str]) -> Tally:
        tally = Tally()
        for blob in blobs:
            tally.add(self.found.blobs[blob].size)
        return tally

    def _clear(self, candidates: list[Kept], limit: int | None = None) -> None:
        free = [kept for kept in candidates if id(kept) not in self._gone and self._is_free(kept)]
        for batch in _batches(free):
            with self._alone():
                for kept in batch:
                    if limit is not None and self.total <= limit:
                        return
                    self._drop(kept)

    def _is_free(self, kept: Kept) -> bool:
        return self.found.used(kept) < self.since and not any(blob in self.pins for blob in kept.blobs)

    def _drop(self, kept: Kept) -> None:
        """Delete an entry, and the blobs that no other entry names."""
        blobs = [blob for blob in kept.blobs if blob in self.found.blobs]
        if self._used_meanwhile([kept.file, *(self.found.blobs[blob] for blob in blobs)]):
            return
        self._gone.add(id(kept))
        self._remove(kept.file, "entries")
        self._naming.subtract(kept.blobs)
        for blob in blobs:
            if not self._naming[blob]:
                self._drop_blob(blob)

    def _drop_blob(self, blob: str) -> None:
        self._remove(self.found.blobs.pop(blob), "engines" if blob in self._engines else "blobs")

    def _remove(self, file: File, kind: str) -> None:
        if not self.dry_run:
            file.remove()
        self.total -= file.size
        self.collected[kind].add(file.size)

    def _used_meanwhile(self, files: list[File]) -> bool:
        """Whether one of them was used since the inventory; the store must be ours alone."""
        return not self.dry_run and any(file.last_used() >= self.since for file in files)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self.dry_run:
            yield
            return
        with clearing(self.root):
            yield


def _batches(items: list[T]) -> Iterator[list[T]]:
    return (items[at : at + _BATCH] for at in range(0, len(items), _BATCH))
