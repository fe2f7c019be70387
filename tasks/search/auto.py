"""The strategy that the replay benchmark shows to be best."""

from __future__ import annotations

from typing import TYPE_CHECKING

from routetune.tasks.search.guided import Guided
from routetune.tasks.search.screening import Screening

if TYPE_CHECKING:
    from routetune.tasks.routes.space import RouteSpace

#: Above this many variable knobs, pairs are too many to learn from builds; groups come first.
MANY = 20


class AutoGuided(Guided):
    """Few enough knobs to weigh every route, or a good sample of them, after each build."""

    name = "auto"


class AutoScreening(Screening):
    """Many knobs, of which few will matter: find those first."""

    name = "auto"


def open_auto(space: RouteSpace, seed: int = 0, at_once: int = 1) -> Guided | Screening:
    """A fresh search, the kind chosen by the number of knobs."""
    many = sum(term.variable and len(term.values) > 1 for term in space.terms) > MANY
    return AutoScreening(space, seed) if many else AutoGuided(space, seed, at_once)
