"""No search: the routes of an earlier run, judged again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from routetune.tasks.routes.route import Route
    from routetune.tasks.trial import Trial


class Recorded:
    """The routes given, in their order, and no others."""

    name = "recorded"

    def __init__(self, routes: Sequence[Route]) -> None:
        self._left = dict.fromkeys(routes)
        self._total = len(self._left)

    def ask(self, n: int) -> list[Route]:
        batch = list(self._left)[:n]
        for route in batch:
            del self._left[route]
        return batch

    def tell(self, trials: Sequence[Trial]) -> None:
        for trial in trials:
            self._left.pop(trial.route, None)

    @property
    def total(self) -> int | None:
        return self._total

    def explain(self) -> str:
        return f"recorded: the {self._total} routes of an earlier run, judged again"
