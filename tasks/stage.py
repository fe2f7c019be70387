"""How a stage's plain function becomes a Prefect task."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.context import TaskRunContext
from prefect.logging import get_run_logger
from prefect.settings import get_current_settings
from prefect.states import Completed
from routetune.tasks import canonical
from routetune.tasks.bench import Bench

Batch = TypeVar("Batch")
Stage = Callable[[Bench, Any], Batch]


class _Work:
    """A call that Prefect does not look into: it would visit every raw sample of every trial."""

    def __init__(self, function: Callable[..., Any], bench: Bench, batch: Any) -> None:
        self.function, self.bench, self.batch = function, bench, batch

    def __call__(self, refresh: bool) -> tuple[Any, bool]:
        """The result, and whether the store gave all of it."""
        bench = self.bench
        before, bench.refresh = bench.refresh, bench.refresh or refresh
        bench.asked.clear()
        try:
            result = self.function(bench, self.batch)
        finally:
            bench.refresh = before
        return result, bool(bench.asked) and all(cached for _, cached in bench.asked)


def stage(name: str, of: str = "route") -> Callable[[Stage[Batch]], Stage[Batch]]:
    """Make a task of a function (bench, batch) -> batch, where a batch is a list of routes or trials.

    Results stay in our store, which Prefect's own caching would only repeat at more cost and with less care:
    Prefect persists nothing, a batch answered wholly from the store ends in a state named "Cached", and
    `refresh_cache` takes nothing that was there before the run. The key dicts go to the run's log at level
    debug.

    Args:
        name: the task's name for a person, such as "build engines".
        of: what a batch is counted in.
    """

    def decorate(function: Stage[Batch]) -> Stage[Batch]:
        @task(name=name, task_run_name=name + ": {label}", cache_policy=NO_CACHE, persist_result=False)
        def run(work: _Work, label: str) -> Any:
            result, cached = work(refresh=_refresh_asked())
            _log_keys(work.bench)
            if cached:
                return Completed(name="Cached", message=f"{label}: all in the store", data=result)
            return result

        @wraps(function)
        def call(bench: Bench, batch: Any) -> Batch:
            label = f"{len(batch)} {of}{'' if len(batch) == 1 else 's'}" if isinstance(batch, list) else of
            state: Any = run(_Work(function, bench, batch), label, return_state=True)
            result: Batch = state.result()
            return result

        call.fn = function  # type: ignore[attr-defined]  # as on any Prefect task: the work without Prefect
        return call

    return decorate


def _refresh_asked() -> bool:
    context = TaskRunContext.get()
    asked = None if context is None else context.task.refresh_cache
    return get_current_settings().tasks.refresh_cache if asked is None else bool(asked)


def _log_keys(bench: Bench) -> None:
    logger = get_run_logger()
    if logger.isEnabledFor(logging.DEBUG):
        for key, cached in bench.asked:
            logger.debug("%s %s", "from the store:" if cached else "made:", canonical.dumps(key))
