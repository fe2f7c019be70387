"""Stage: from the target's route expression to routes, batch by batch, within the budget."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from routetune.tasks.bench import Bench
from routetune.tasks.report import progress
from routetune.tasks.routes.route import Route
from routetune.tasks.routes.space import RouteSpace, open_space
from routetune.tasks.search import open_search
from routetune.tasks.search.base import Strategy
from routetune.tasks.search.recorded import Recorded
from routetune.tasks.store.records import row
from routetune.tasks.trial import Trial

#: Work per batch, seconds: long enough that the cost of a Prefect task per stage is lost in it.
BATCH_SECONDS = 4.0
MAX_BATCH = 32
#: Routes of other tools that are tried ahead of the search.
MAX_PRIORS = 10


class Campaign:
    """The search of one run: the default route first, then the strategy's, until the budget is spent.

    Trials told are recorded before the next ones are asked for, so that nothing finished is lost.
    """

    def __init__(self, bench: Bench, strategy: Strategy, first: Sequence[Route] = ()) -> None:
        self.bench = bench
        self.strategy = strategy
        self._first = list(first)
        self.ended = ""
        self._recorded: set[str] = bench.store.records.finished_routes(bench.run.id)
        self._timed: list[float] = []
        self._all_cached = False
        self._last_batch = 1

    def ask(self) -> list[Route]:
        """The next routes to try, or none when the search or the budget is at its end."""
        self._tell_progress("searching")
        budget = self.bench.subject.target.budget
        left = budget.trials - len(self.bench.trials)
        if left <= 0:
            self.ended = f"the budget of {budget.trials} trials is spent"
        elif self.bench.time_is_up:
            self.ended = f"the budget of {budget.seconds:g} seconds is spent"
        elif not self.bench.trials:
            return [Route()]
        elif self._first:
            count = min(left, self._batch_size())
            routes, self._first = self._first[:count], self._first[count:]
            return routes
        elif routes := self.strategy.ask(min(left, self._batch_size())):
            return routes
        else:
            self.ended = "every planned route was tried"
        return []

    def tell(self, trials: list[Trial]) -> None:
        """Record what became of the routes asked for."""
        bench, target = self.bench, self.bench.subject.target
        new = [trial for trial in trials if trial.route.id not in self._recorded]
        if new:
            bench.store.records.append([row(bench.run.id, target.name, bench.subject.key, t) for t in new])
            self._recorded.update(trial.route.id for trial in new)
        worked = [[s for step, s in t.seconds.items() if step not in t.cached] for t in trials]
        self._all_cached = not any(worked)
        self._timed += [sum(s) for t, s in zip(trials, worked, strict=True) if s and t.timing is not None]
        self.strategy.tell(trials)

    def _batch_size(self) -> int:
        if self._all_cached:
            # The next ones may not be in the store: feel the way, since a batch is recorded as a whole.
            self._last_batch *= 2
        else:
            self._last_batch = round(BATCH_SECONDS / max(self._seconds_each, 0.01))
        self._last_batch = max(1, min(MAX_BATCH, self._last_batch))
        return self._last_batch

    @property
    def _seconds_each(self) -> float:
        """What a trial takes: the mean of those that were timed; before there is one, what it may take."""
        return fmean(self._timed) if self._timed else self.bench.subject.target.timing.seconds

    def _tell_progress(self, stage: str) -> None:
        trials = self.bench.trials.values()
        best = max((t for t in trials if t.eligible), key=lambda t: t.speed or 0.0, default=None)
        budget = self.bench.subject.target.budget
        planned = None if self.strategy.total is None else min(self.strategy.total, budget.trials)
        left: float | None = None
        if planned is not None and self._timed:
            left = min(max(planned - len(trials), 0) * self._seconds_each, budget.seconds)
        progress.tell(
            progress.Snapshot(
                stage,
                done=len(trials),
                excluded=sum(not t.eligible for t in trials),
                planned=planned,
                best=best.route.label if best else "",
                speed=best.speed if best else None,
                seconds_left=left,
            )
        )


def open_campaign(bench: Bench, recorded: Sequence[Route] | None = None) -> Campaign:
    """The search that the target asks for; or only the `recorded` routes, to choose among them anew.

    Raises:
        BadInput: an expression or an exclude rule is refused; the message says which token and why.
    """
    if recorded is not None:
        return Campaign(bench, Recorded(recorded))
    search = bench.subject.target.search
    space = open_space(search.routes, bench.database, search.exclude)
    return Campaign(bench, open_search(search.algorithm, space, seed=search.seed), prior_routes(bench, space))


def prior_routes(bench: Bench, space: RouteSpace) -> list[Route]:
    """Routes that other tools found fast, best first: tried ahead of the search, judged like any other."""
    found: dict[Route, None] = {}
    for assignment in bench.store.priors.promising(bench.subject.target.name):
        route = space.route_of(assignment)
        if route is not None and not route.is_default:
            found[route] = None
        if len(found) == MAX_PRIORS:
            break
    return list(found)
