"""Search strategies by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from routetune.tasks.errors import BadInput
from routetune.tasks.search import fast, full, mixed, sampled

if TYPE_CHECKING:
    from routetune.tasks.routes.space import RouteSpace
    from routetune.tasks.search.base import Strategy

STRATEGIES = ("fast", "full", "mixed", "random")


def open_search(name: str, space: RouteSpace, seed: int = 0) -> Strategy:
    """A fresh search of a space; `seed` matters to "random" only.

    Raises:
        BadInput: no strategy has this name.
    """
    if name == "fast":
        return fast.Fast(space)
    if name == "full":
        return full.Full(space)
    if name == "mixed":
        return mixed.Mixed(space)
    if name == "random":
        return sampled.Sampled(space, seed)
    raise BadInput(f"search algorithm {name!r} is not known; choose one of {', '.join(STRATEGIES)}")


def expand(name: str, space: RouteSpace, seed: int = 0) -> Iterator[dict[str, str]]:
    """What a search tries before it was told anything, lazily, as full assignments in the expression's order.

    For "mixed" this is its first phase; the second depends on what the first one shows.

    Raises:
        BadInput: no strategy has this name.
    """
    open_search(name, space, seed)
    if name == "full":
        return full.plan(space)
    return sampled.plan(space, seed) if name == "random" else fast.plan(space)
