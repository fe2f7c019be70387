"""What travels with a step to a worker on another machine: files as bytes, each known by its SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from routetune.tasks.store import names
from routetune.tasks.store.files import hash_file
from routetune.tasks.subject import Subject


@dataclass
class Bundle:
    """Files that belong together: one blob, or a model and its sidecars.

    Attributes:
        id: names the folder that they lie in.
        files: name within it -> the file here.
    """

    id: str
    files: dict[str, Path]


class Luggage:
    """Which of the paths in the arguments of a step have to travel, and how they are called there.

    Args:
        subject: its model travels with its sidecars.
        store: the root of the store; its blobs travel.
        run: the folder of the run; the files in it that a step names are kept the same on both sides.
    """

    def __init__(self, subject: Subject, store: Path, run: Path) -> None:
        self.run = run
        self._blobs, self._caches = store / "blobs", store / "timing-caches"
        self._model = subject.model.path
        files = {str(file.relative_to(self._model.parent)): file for file in subject.model.files}
        told = [f"{name}\0{hash_file(file)}" for name, file in sorted(files.items())]
        self.model = Bundle(hashlib.sha256("\n".join(told).encode()).hexdigest(), files)

    def packed(self, value: Any, there: str, bundles: dict[str, Bundle], named: set[str]) -> Any:
        """The arguments with every path as it is called there.

        Args:
            there: the folder of the worker.
            bundles: filled with what must be there first, by id.
            named: filled with the names of the files of the run.
        """
        if isinstance(value, Mapping):
            return {key: self.packed(one, there, bundles, named) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.packed(one, there, bundles, named) for one in value]
        if not isinstance(value, str) or not value.startswith("/"):
            return value
        path = Path(value)
        if path == self._model:
            bundles[self.model.id] = self.model
            return f"{there}/files/{self.model.id}/{path.name}"
        if path.is_relative_to(self._blobs) and names.is_digest(path.name):
            bundles[path.name] = Bundle(path.name, {path.name: path})
            return f"{there}/files/{path.name}/{path.name}"
        if path.parent == self.run:
            named.add(path.name)
            return f"{there}/run/{path.name}"
        if path.parent == self._caches:
            return f"{there}/caches/{path.name}"
        return value  # a plugin, a metric of the user's own: at the same place on each node
