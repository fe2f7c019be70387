"""Has the machine changed? Each environment of the targets as it stands, beside how it was seen last."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from routetune.tasks.errors import BadInput
from routetune.tasks.status import find_targets
from routetune.tasks.store.seen import Seen
from routetune.tasks.subject import resolve, today
from routetune.tasks.targets.changes import Change, compare
from routetune.tasks.targets.environment import Environment
from routetune.tasks.targets.schema import load_target


@dataclass(frozen=True, slots=True)
class Sighting:
    """One environment of this machine.

    Attributes:
        place: what tells it from others: {"host", "backend", "device"}.
        now: as it stands.
        before: its fields when it was seen last; None at the first look.
    """

    place: dict[str, str]
    now: Environment
    before: dict[str, Any] | None

    @property
    def state(self) -> str:
        """ "cannot tell", "first look", "unchanged" or "changed"."""
        if self.now.cannot_tell:
            return "cannot tell"
        if self.before is None:
            return "first look"
        return "changed" if self.moved else "unchanged"

    @property
    def moved(self) -> list[Change]:
        """The fields that differ from those seen last."""
        if self.before is None:
            return []
        return compare({"environment": self.before}, {"environment": self.now.fields})

    def to_json(self) -> dict[str, Any]:
        moved = [] if self.state == "cannot tell" else self.moved
        return {
            **self.place,
            "state": self.state,
            "label": self.now.label,
            "unknown": self.now.cannot_tell,
            "moved": [{"field": c.field, "old": c.old, "new": c.new, "text": str(c)} for c in moved],
        }


def look(places: Iterable[Path], seen: Seen) -> tuple[list[Sighting], list[str]]:
    """Look at every environment that the targets of `places` are tuned in; writes nothing.

    Returns: the sightings, and a sentence for each target that cannot be read.

    Raises:
        BadInput: a place holds no target, or none of its targets can be read.
    """
    today.cache_clear()  # who watches for long must not be answered with what was so at the first look
    found: dict[tuple[str, str], Environment] = {}
    refused: list[str] = []
    for path in find_targets(list(places)):
        try:
            where = resolve(load_target(path))
            found.setdefault(where, today(*where))
        except BadInput as error:
            refused.append(str(error) if str(path) in str(error) else f"{path}: {error}")
    if not found:
        raise BadInput(f"no target can be read, so there is no device to watch: {refused[0]}")
    sightings = []
    for (backend, device), environment in found.items():
        place = {"host": platform.node(), "backend": backend, "device": device}
        sightings.append(Sighting(place, environment, seen.get(place)))
    return sightings, refused
