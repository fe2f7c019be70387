"""Replay searches on landscapes: the outcomes are the recorded ones, only the choices are the search's.

As in a run, the default route is the first build. Regret after n builds is how much faster the best eligible
route of the landscape is than the best eligible one found so far, as a share; before any was found, than the
slowest eligible one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from routetune.tasks.priors import MAX_OF_A_RUN
from routetune.tasks.routes.route import Route
from routetune.tasks.routes.space import RouteSpace
from routetune.tasks.search import open_search
from routetune.tasks.search.base import Strategy
from routetune.tasks.trial import Trial

from tests.benchmarks.search.landscape import Landscape

#: Opens a search of a space with a seed.
Opener = Callable[[RouteSpace, int], Strategy]
SEEDS = 35
BUILDS = 64


class Truth(Protocol):
    """Anything that can be looked up by route; `Landscape`, or one too large to list."""

    name: str
    space: RouteSpace

    @property
    def best(self) -> float: ...


def ours(name: str) -> Opener:
    """One of the product's own strategies."""
    return lambda space, seed: open_search(name, space, seed=seed)


def builds(
    landscape: Any, search: Strategy, limit: int = BUILDS, priors: Sequence[Route] = ()
) -> Iterator[Trial]:
    """The trials of a search in the order in which they are built: the default route's, `priors`, its own."""
    first = [landscape.trials[route] for route in dict.fromkeys([Route(), *priors])][:limit]
    search.tell(first)
    yield from first
    done = len(first)
    while done < limit and (batch := search.ask(min(8, limit - done))):
        trials = [landscape.trials[route] for route in batch]
        search.tell(trials)
        done += len(trials)
        yield from trials


def regrets(
    landscape: Any, search: Strategy, limit: int = BUILDS, priors: Sequence[Route] = ()
) -> np.ndarray[Any, Any]:
    """Regret after 1, 2, ... `limit` builds; a search that ends early keeps what it found."""
    worst = min(landscape.eligible) if isinstance(landscape, Landscape) else 1.0
    best, found = worst, np.empty(limit)
    at = 0
    for at, trial in enumerate(builds(landscape, search, limit, priors)):
        if trial.eligible and trial.speed:
            best = max(best, _true_speed(landscape, trial))
        found[at] = max(0.0, landscape.best / best - 1)
        if not found[at]:
            break  # nothing that follows can change it
    found[at:] = found[at]
    return found


def _true_speed(landscape: Any, trial: Trial) -> float:
    if isinstance(landscape, Landscape):
        return landscape.true_speed(trial.route)
    return trial.speed or 0.0


def experience(sibling: Landscape, landscape: Landscape) -> list[Route]:
    """What a run that knew all of a sibling would bring forward, as `routetune.tasks.priors` does."""
    good = [
        trial
        for route, trial in sibling.trials.items()
        if trial.eligible and not trial.alias_of and route in landscape.trials and route != Route()
        if not sibling.default_is_eligible or (trial.low or 0.0) > 1
    ]
    ranked = sorted(good, key=lambda trial: (-(trial.speed or 0.0), str(trial.route)))
    return [trial.route for trial in ranked[:MAX_OF_A_RUN]]


def table(
    landscapes: Sequence[Any], opener: Opener, seeds: Sequence[int], limit: int = BUILDS
) -> np.ndarray[Any, Any]:
    """Regrets of every landscape and seed: shape (landscapes, seeds, limit)."""
    return np.array([[regrets(one, opener(one.space, seed), limit) for seed in seeds] for one in landscapes])
