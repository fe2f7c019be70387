"""Digests remembered: what was read from big files, valid while nobody wrote to them.

A file counts as unchanged while its size, times of change (mtime and ctime), device and inode are the same.
Only looks use this: a tune reads every byte of what it builds.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from routetune.tasks.errors import BadInput
from routetune.tasks.reading import look as look_at
from routetune.tasks.store import manifests
from routetune.tasks.store.files import Damaged, hash_file, write_atomically
from routetune.tasks.store.sealed import read_sealed, seal
from routetune.tasks.targets import memo

SCHEMA = 1
#: A file written this many seconds before it was read may be written again within the grain of its times.
RACY_SECONDS = 2.0

_Look = list[int]


class Digests:
    """The memo under `root`, the folder of the store: digests/memo.json. A damaged one is an empty one.

    Args:
        rehash: read everything anew; what is found is remembered.

    Attributes:
        reads: how many questions had to be answered by reading.
    """

    def __init__(self, root: Path, rehash: bool = False) -> None:
        self.root = root
        self.path = root / "digests" / "memo.json"
        self.reads = 0
        self._code = _code()
        self._rehash = rehash
        self._known = self._load()
        self._looks: dict[str, _Look | None] = {}
        self._answers: dict[str, Any] = {}
        self._new = False

    def __call__(self, what: str, path: Path, read: memo.Read) -> Any:
        """The answer to `what` of the file at `path`; see `targets.memo`."""
        name = f"{what} {path}"
        if name not in self._answers:  # asked once, however many targets share the file
            self._answers[name] = self._answer(name, read)
        return self._answers[name]

    def _answer(self, name: str, read: memo.Read) -> Any:
        known = self._known.get(name)
        if known is not None and not self._rehash and self._is_unchanged(known):
            return known["value"]
        self.reads += 1
        started = time.time()
        value, files = read()
        self._keep(name, value, files, started)
        return value

    def save(self) -> None:
        """Put what was learnt on the disk; what is no store, or cannot be written to, stays as it is."""
        if not self._new or not (self.root / "store.json").is_file():
            return
        kept = {name: known for name, known in self._known.items() if self._is_there(known)}
        content = {"schema": SCHEMA, "code": self._code, "known": kept}
        # Others may save at the same time: the last one wins, and what it does not know is read again.
        with suppress(OSError):
            write_atomically(self.path, seal(content))
            self._new = False

    def _load(self) -> dict[str, Any]:
        try:
            content = read_sealed(self.path, SCHEMA, "memo")
        except (Damaged, OSError, BadInput):
            return {}
        known: dict[str, Any] = content["known"] if content["code"] == self._code else {}
        return known

    def _keep(self, name: str, value: Any, files: Sequence[Path], started: float) -> None:
        looks = {str(file): _look(str(file)) for file in files}
        # Looked at after reading: a write in between has a time later than `started`.
        latest = (started - RACY_SECONDS) * 1e9
        if all(look is not None and max(look[1:3]) < latest for look in looks.values()):
            self._known[name] = {"files": looks, "value": value}
            self._new = True
        else:
            self._known.pop(name, None)

    def _is_unchanged(self, known: dict[str, Any]) -> bool:
        return all(self._seen(file) == look for file, look in known["files"].items())

    def _seen(self, file: str) -> _Look | None:
        """One look at a file for all who ask: a target is judged by one state of its model."""
        if file not in self._looks:
            self._looks[file] = _look(file)
        return self._looks[file]

    def _is_there(self, known: dict[str, Any]) -> bool:
        return all(self._seen(file) is not None for file in known["files"])


def _look(file: str) -> _Look | None:
    """As `reading.look`, in JSON's types; None where there is no such file."""
    return list(look_at(Path(file))) or None


def _code() -> str:
    """What the answers depend on besides the files: our code that reads them, to the byte, and onnx."""
    rooms = [*sorted(Path(memo.__file__).parent.glob("*.py")), Path(manifests.__file__)]
    digests = [hash_file(module) for module in rooms]
    return hashlib.sha256(" ".join([*digests, version("onnx")]).encode()).hexdigest()
