"""What changed between two knob databases, such as those of two versions of a library."""

from __future__ import annotations

from typing import Any

from routetune.tasks.routes.knob import Knob, KnobDatabase


def difference(old: KnobDatabase, new: KnobDatabase) -> dict[str, Any]:
    """Plain JSON: the versions, the knobs that are new or gone, and each changed default or list of values.

    {"old_version", "new_version", "new": [name], "gone": [name],
     "changed": [{"option", "field": "default_value" or "allowed_values", "old", "new"}]}
    """
    both = [name for name in new if name in old]
    return {
        "old_version": old.version,
        "new_version": new.version,
        "new": [name for name in new if name not in old],
        "gone": [name for name in old if name not in new],
        "changed": [change for name in both for change in _changes(old[name], new[name])],
    }


def _changes(old: Knob, new: Knob) -> list[dict[str, str]]:
    pairs = {"default_value": (old.default, new.default), "allowed_values": (old.allowed, new.allowed)}
    return [
        {"option": new.name, "field": field, "old": before, "new": after}
        for field, (before, after) in pairs.items()
        if before != after
    ]
