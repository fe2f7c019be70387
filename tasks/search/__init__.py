"""Search strategies by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from routetune.tasks.errors import BadInput
from routetune.tasks.search import fast, full, mixed, sampled

if TYPE_CHECKING:
    from routetune.tasks.routes.space import RouteSpace
    from routetune.tasks.search.base import Strategy

STRATEGIES = ("auto", "fast", "full", "guided", "mixed", "model", "racing", "random", "screening")


def open_search(name: str, space: RouteSpace, seed: int = 0, at_once: int = 1) -> Strategy:
    """A fresh search of a space; `seed` matters to those that draw, which "fast", "full" and "mixed" do not.

    Args:
        at_once: how many routes are tried side by side. Searches that choose each route by all that is known
            choose so many at a time; the others have more than that to name anyway.

    Raises:
        BadInput: no strategy has this name, or the library that it needs is not installed.
    """
    if name == "fast":
        return fast.Fast(space)
    if name == "full":
        return full.Full(space)
    if name == "mixed":
        return mixed.Mixed(space)
    if name == "random":
        return sampled.Sampled(space, seed)
    if name in STRATEGIES:
        return _open_informed(name, space, seed, at_once)
    raise BadInput(f"search algorithm {name!r} is not known; choose one of {', '.join(STRATEGIES)}")


def _open_informed(name: str, space: RouteSpace, seed: int, at_once: int) -> Strategy:
    # Imported here, since numpy is not needed to print help.
    from routetune.tasks.search import auto, guided, model, racing, screening

    if name == "screening":
        return screening.Screening(space, seed)
    kinds = {"auto": auto.open_auto, "guided": guided.Guided, "model": model.Model, "racing": racing.Racing}
    return kinds[name](space, seed, at_once)


def expand(name: str, space: RouteSpace, seed: int = 0) -> Iterator[dict[str, str]]:
    """What a search tries before it was told anything, lazily, as full assignments in the expression's order.

    For "mixed" this is its first phase; the second depends on what the first one shows. Those that choose
    each route by what is known have one to name.

    Raises:
        BadInput: as `open_search`.
    """
    search = open_search(name, space, seed)
    if name in ("fast", "mixed"):
        return fast.plan(space)
    if name == "full":
        return full.plan(space)
    if name == "random":
        return sampled.plan(space, seed)
    return _asked(search, space)


def _asked(search: Strategy, space: RouteSpace) -> Iterator[dict[str, str]]:
    while batch := search.ask(1):
        told = batch[0].as_dict()
        yield {term.knob.name: told.get(term.knob.name, term.knob.default) for term in space.terms}
