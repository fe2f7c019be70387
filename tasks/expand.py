"""Stage: from the target's route expression to routes, batch by batch, within the budget."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import fmean
from typing import Any

from routetune.tasks.bench import Bench
from routetune.tasks.build import build_order
from routetune.tasks.engines.base import Idle, open_backend
from routetune.tasks.priors import Found, find_priors
from routetune.tasks.pruning import Pruned
from routetune.tasks.report import progress
from routetune.tasks.report.explanation import explained
from routetune.tasks.rewrite import source_of
from routetune.tasks.routes.route import Route
from routetune.tasks.routes.space import RouteSpace
from routetune.tasks.search import open_search
from routetune.tasks.search.base import Strategy
from routetune.tasks.search.recorded import Recorded
from routetune.tasks.store.keys import code_digest
from routetune.tasks.store.records import row
from routetune.tasks.targets.likeness import traits_of
from routetune.tasks.targets.places import names_places
from routetune.tasks.timing import without_samples
from routetune.tasks.trial import Trial

#: Work per batch, seconds: long enough that the cost of a Prefect task per stage is lost in it.
BATCH_SECONDS = 4.0
MAX_BATCH = 32
LOOK = "routetune.tasks.engines.looks:idle"
#: How many of the next routes a run that has ended names.
NEXT = 10


class Campaign:
    """The search of one run: the default route first, then priors, then the strategy's, within the budget.

    Trials told are recorded before the next ones are asked for, so that nothing finished is lost.

    Args:
        space: the routes there are.
        priors: what experience says to try first.
        recorded: the only routes to take, where nothing is searched; None: search.
    """

    def __init__(
        self, bench: Bench, space: RouteSpace, priors: Found, recorded: Sequence[Route] | None = None
    ) -> None:
        self.bench = bench
        self.space = space
        self.priors = priors
        self._only = recorded
        bench.limited = recorded is None  # to judge again what was tried takes no search
        self._first = [prior.route for prior in priors.priors]
        self._idle: Idle = {}
        self._opened: Strategy | None = None
        self.ended = ""
        self._recorded: set[str] = bench.store.records.finished_routes(bench.run.id)
        self._timed: list[float] = []
        self._all_cached = False
        self._last_batch = 1

    @property
    def strategy(self) -> Strategy:
        """The search, opened once the default route was tried: only then is it known whether that runs."""
        if self._opened is None:
            self._idle = idle_knobs(self.bench, self.space) if self._only is None else {}
            self._opened = self._afresh()
        return self._opened

    def _afresh(self) -> Strategy:
        """The search as it stands after every trial so far."""
        search = self.bench.subject.target.search
        if self._only is not None:
            kept: Strategy = Recorded(self._only)
            kept.tell(list(self.bench.trials.values()))
            return kept
        devices = len(self.bench.fleet.members)
        open_it = partial(open_search, search.algorithm, seed=search.seed, at_once=devices)
        strategy: Strategy = open_it(self.space)
        if search.prune:
            strategy = Pruned(open_it, self.space, self._idle)
        strategy.tell(list(self.bench.trials.values()))
        return strategy

    def ask(self) -> list[Route]:
        """The next routes to try, or none when the search or the budget is at its end."""
        self._tell_progress("searching")
        budget = self.bench.subject.target.budget
        left = budget.trials - len(self.bench.trials) if self.bench.limited else MAX_BATCH
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
        worked = [[s for step, s in t.seconds.items() if step not in t.cached] for t in trials]
        anew = {trial.route.id for trial, seconds in zip(trials, worked, strict=True) if seconds}
        anew |= {trial.route.id for trial in trials if trial.alias_of in anew}
        # A run that is gone on with may have recorded it before, and has done some of it again since.
        new = [trial for trial in trials if trial.route.id in anew or trial.route.id not in self._recorded]
        if new:
            bench.store.records.append([row(bench.run.id, target.name, bench.subject.key, t) for t in new])
            self._recorded.update(trial.route.id for trial in new)
        self._all_cached = not any(worked)
        self._timed += [sum(s) for t, s in zip(trials, worked, strict=True) if s and t.timing is not None]
        # Recorded, so that the raw samples are in the store: nothing later needs more than their figures.
        trials = [without_samples(trial) for trial in trials]
        bench.trials.update((trial.route.id, trial) for trial in trials)
        self.strategy.tell(trials)

    def explanation(self) -> dict[str, Any]:
        """What the run tells of itself: what knobs did, what was put off, what comes next; plain JSON."""
        trials = list(self.bench.trials.values())
        upcoming = [*self._first, *self._afresh().ask(NEXT)][:NEXT]
        confidence = self.bench.subject.target.timing.confidence
        return explained(trials, self.space, confidence) | {
            "next": [str(route) for route in upcoming],
            "pruning": self._opened.to_json() if isinstance(self._opened, Pruned) else None,
            "priors": [prior.to_json() for prior in self.priors.priors],
            "dropped": list(self.priors.dropped),
        }

    def _batch_size(self) -> int:
        if self._all_cached:
            # The next ones may not be in the store: feel the way, since a batch is recorded as a whole.
            self._last_batch *= 2
        else:
            self._last_batch = round(BATCH_SECONDS / max(self._seconds_each, 0.01))
        self._last_batch = max(1, min(MAX_BATCH, self._last_batch))
        return self._last_batch * len(self.bench.fleet.members)

    @property
    def _seconds_each(self) -> float:
        """What a trial takes: the mean of those that were timed; before there is one, what it may take."""
        return fmean(self._timed) if self._timed else self.bench.subject.target.timing.seconds

    def _tell_progress(self, stage: str) -> None:
        trials = self.bench.trials.values()
        best = max((t for t in trials if t.eligible), key=lambda t: t.speed or 0.0, default=None)
        budget = self.bench.subject.target.budget
        total = self._opened.total if self._opened else None
        planned = None if total is None else min(total, budget.trials)
        left: float | None = None
        if planned is not None and self._timed:
            work = max(planned - len(trials), 0) * self._seconds_each
            left = min(work / len(self.bench.fleet.members), budget.seconds)
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
    subject = bench.subject
    space = bench.space
    bench.store.traits.put(subject.model.digest, traits_of(subject.model))
    if recorded is not None:
        return Campaign(bench, space, Found((), ()), recorded)
    return Campaign(bench, space, find_priors(bench.store, subject, space, without=bench.run.id))


def idle_knobs(bench: Bench, space: RouteSpace) -> Idle:
    """The knobs of a space that do nothing on the model, as far as the backend can tell, each with the
    settings beside which it is so, or none where it is so beside any; asked in the worker.

    It is not asked where the default route does not run: the answer would cost the same failure again. Nor
    where routes rewrite the model: what does nothing on the one may act on another.
    """
    subject = bench.subject
    search = subject.target.search
    asks = search.prune and not names_places(search.routes) and hasattr(open_backend(subject.backend), "idle")
    if not asks or bench.control is None or not bench.control.route.is_default:
        return {}
    base = space.route(space.baseline())
    knobs = {term.knob.name: list(term.values) for term in space.terms if term.variable}
    order = build_order(bench, source_of(bench, base)) | {"output": str(bench.folder / "idle.onnx")}
    arguments = {"backend": subject.backend, "order": order, "knobs": knobs}
    bound = subject.bound_to["target"]
    key = bench.key(
        "idle",
        code_digest("routetune.tasks.engines.looks"),
        model=bound["model"],
        profiles=bound["profiles"],
        route=str(base),
        knobs=knobs,
    )
    answer = bench.answer(key, lambda: ({"idle": bench.step(LOOK, arguments)}, []))
    found: dict[str, list[list[str]]] = answer.value.get("idle", {})
    return {name: [(knob, value) for knob, value in beside] for name, beside in found.items()}
