"""Routes: what a compiler is told, written in one canonical way."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Route:
    """An assignment of values to knobs, canonical: database order, defaults left out.

    Build one with `KnobDatabase.route` or `parse_route`, which validate and order the settings; two
    spellings of one route are then equal, and have one string and one id.

    Attributes:
        settings: (knob name with its family sign, value) pairs; empty for the default route.
    """

    settings: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """The route as the user would write it, "" for the default route."""
        return spell(dict(self.settings))

    def __len__(self) -> int:
        """How many knobs are named; fewer is simpler."""
        return len(self.settings)

    def __bool__(self) -> bool:
        # The length of the default route is 0, and still it is a route like any other.
        return True

    @property
    def id(self) -> str:
        """First 16 hex digits of the SHA-256 of the canonical string."""
        return hashlib.sha256(str(self).encode()).hexdigest()[:16]

    @property
    def is_default(self) -> bool:
        return not self.settings

    @property
    def label(self) -> str:
        """The string for tables and messages, never empty."""
        return str(self) or "default route"

    def as_dict(self) -> dict[str, str]:
        """Knob name -> value, in canonical order."""
        return dict(self.settings)


def spell(assignment: Mapping[str, str]) -> str:
    """The tokens of an assignment in its own order, defaults included: "-a=on -b=2"."""
    return " ".join(f"{name}={value}" for name, value in assignment.items())
