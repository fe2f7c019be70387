"""The one protocol of all search strategies: ask for routes, tell what became of them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from routetune.tasks.routes.route import Route
    from routetune.tasks.routes.space import RouteSpace
    from routetune.tasks.trial import Trial


class Strategy(Protocol):
    """Chooses which routes to try, in which order.

    For the same outcomes the routes and their order are the same, whatever the batch sizes and in whatever
    order the trials of a batch are told. `tests/contracts/test_strategy.py` runs on each implementation.
    """

    name: str

    def ask(self, n: int) -> list[Route]:
        """Up to `n` routes that were neither asked nor told before.

        Fewer, down to none, when the next choice waits for trials not told yet. None at all when everything
        asked was told: the search is over.
        """
        ...

    def tell(self, trials: Sequence[Trial]) -> None:
        """Report trials, of any outcome and in any order.

        Trials of routes that were not asked (of an earlier run, or the control) count as if they had been.
        """
        ...

    @property
    def total(self) -> int | None:
        """How many routes the search plans in all as known now; None when unknown."""
        ...

    def explain(self) -> str:
        """One line for a person: what it did or would do."""
        ...


class Staged(ABC):
    """A strategy of one or more stages, each planned when everything asked before was told.

    Args:
        space: the routes there are.
    """

    name: str

    def __init__(self, space: RouteSpace) -> None:
        self.space = space
        self._told: dict[Route, Trial] = {}
        self._asked: set[Route] = set()
        self._pending: set[Route] = set()
        self._plans = self._stages()
        self._plan: Iterator[Route] = iter(())

    @abstractmethod
    def _stages(self) -> Iterator[Iterable[Route]]:
        """The plan of each stage; the generator is resumed once the stage before it was told in full."""

    def ask(self, n: int) -> list[Route]:
        batch: list[Route] = []
        while len(batch) < n:
            route = next(self._plan, None)
            if route is None:
                stage = None if self._pending else next(self._plans, None)
                if stage is None:
                    break
                self._plan = iter(stage)
            elif route not in self._asked and route not in self._told:
                self._asked.add(route)
                self._pending.add(route)
                batch.append(route)
        return batch

    def tell(self, trials: Sequence[Trial]) -> None:
        self._told.update((trial.route, trial) for trial in trials)
        self._pending.difference_update(trial.route for trial in trials)


def spoken(count: int) -> str:
    """A count for a person: exact below a billion, else its order of magnitude."""
    return f"{count:,}" if count < 10**9 else f"about 10^{math.log10(count):.0f}"
