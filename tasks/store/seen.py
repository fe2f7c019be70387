"""The environments seen last: what `watch` compares today's with."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from routetune.tasks.canonical import dumps
from routetune.tasks.store.files import Damaged, put_away, write_atomically
from routetune.tasks.store.sealed import read_sealed, seal

SCHEMA = 1


class Seen:
    """The environments under `root`, the folder of the store: seen/<hex>.json, one file per place.

    A place is a dict that tells environments apart, such as {"host", "backend", "device"}: a store may be
    shared by hosts.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def get(self, place: Mapping[str, str]) -> dict[str, Any] | None:
        """The fields seen last at `place`; None where it was never looked at. A damaged file is set aside.

        Raises:
            BadInput: a newer routetune wrote it.
        """
        path = self._path(place)
        try:
            fields: dict[str, Any] = read_sealed(path, SCHEMA, "seen environment")["fields"]
            return fields
        except FileNotFoundError:
            return None
        except (Damaged, KeyError) as damage:
            put_away(self.root, path, "environment", damage)
            return None

    def put(self, place: Mapping[str, str], fields: Mapping[str, Any]) -> None:
        """Keep `fields` as what was seen last at `place`."""
        content = {"schema": SCHEMA, "place": dict(place), "fields": dict(fields)}
        write_atomically(self._path(place), seal(content))

    def _path(self, place: Mapping[str, str]) -> Path:
        name = hashlib.sha256(dumps(dict(place)).encode()).hexdigest()[:32]
        return self.root / "seen" / f"{name}.json"
