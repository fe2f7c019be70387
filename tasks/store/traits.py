"""Traits: a few facts of every model that was tuned, to compare others with. No key holds them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from routetune.tasks.store import names
from routetune.tasks.store.files import Damaged, put_away
from routetune.tasks.store.mirror import Mirror, write_shared
from routetune.tasks.store.sealed import is_sealed, read_sealed, seal

SCHEMA = 1


class Traits:
    """The traits under `root`, the folder of the store: traits/<model digest>.json."""

    def __init__(self, root: Path, mirror: Mirror | None = None) -> None:
        self.root = root
        self.mirror = mirror
        self.folder = root / "traits"

    def put(self, model: str, traits: Mapping[str, Any]) -> None:
        """Keep what is known of a model; the same again writes nothing.

        Args:
            model: the model's digest.
            traits: plain JSON, as `likeness.traits_of` makes it.
        """
        if self.get(model) != dict(traits):
            raw = seal({"schema": SCHEMA, "traits": dict(traits)})
            write_shared(self.mirror, self._path(model), raw)

    def get(self, model: str) -> dict[str, Any] | None:
        """What was kept of a model, or None; a damaged file is set aside with a warning."""
        path = self._path(model)
        self._fetch(path)
        try:
            found: dict[str, Any] = read_sealed(path, SCHEMA, "traits")["traits"]
            return found
        except FileNotFoundError:
            return None
        except (Damaged, KeyError) as damage:
            put_away(self.root, path, "traits", damage)
            return None

    def _fetch(self, path: Path) -> None:
        if self.mirror is not None and not path.exists():
            raw = self.mirror.read(path)
            if raw is not None and is_sealed(path.name, raw):
                self.mirror.keep(path, raw)

    def _path(self, model: str) -> Path:
        return self.folder / f"{names.digest(model)}.json"
