"""The flow that keeps targets fresh: look at all of them, tune those that need it, say what came of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Failed
from routetune.flows.artifacts import artifact_name, leaving
from routetune.flows.events import tell
from routetune.flows.firings import absorb_waiting
from routetune.flows.server import run_through
from routetune.flows.tune import tune
from routetune.tasks.report.retuning import markdown
from routetune.tasks.retune import Night, TargetsFailed, failures_told, open_night
from routetune.tasks.status import Freshness
from routetune.tasks.store import open_store


def _name() -> str:
    targets = flow_run.parameters["targets"]
    return f"retune {targets if isinstance(targets, str) else ' '.join(targets)}"


@flow(
    name="retune",
    flow_run_name=_name,
    on_running=[absorb_waiting],
    persist_result=False,
    validate_parameters=False,
)
def retune(
    targets: str | list[str] = ".",
    store: str | None = None,
    seconds: float | None = None,
    device_seconds: float | None = None,
    force: bool = False,
    ray: int | None = None,
) -> dict[str, Any] | State[Any]:
    """Tune what is not fresh, worst first, one target per device at a time; the others go on when one fails.

    Where targets failed or were refused the flow run ends as failed, with a sentence that names them.

    Args:
        targets: target files, or folders of them.
        store: folder or URL of the store; by default that of ROUTETUNE_STORE, else the user's data folder.
        seconds: no target is begun later than this after the start.
        device_seconds: no target is begun once devices were held for this long, added up.
        force: try those too that back off after failures.
        ray: as for `tune`.

    Returns: the report as plain JSON; see docs/freshness.md.

    Raises:
        TargetsFailed: some failed or were refused; it has the report.
    """
    places = [Path(place) for place in ([targets] if isinstance(targets, str) else targets)]
    night = open_night(places, open_store(store), seconds, device_seconds, force)
    _side_by_side(night, night.queues(), ray)
    report = night.report()
    _leave_artifact(report, "-".join(place.absolute().name for place in places))
    tell(report)
    if told := failures_told(report):
        # A state of the usual name, which automations look for; not raised, since nothing here went wrong.
        return Failed(message=told, data=TargetsFailed(told, report))
    return report


def _side_by_side(night: Night, queues: list[list[Freshness]], ray: int | None) -> None:
    """Each queue from front to back; those of several devices at once, in threads that know this flow run."""
    if len(queues) < 2:
        for queue in queues:
            _one_by_one(night, queue, ray)
        return
    with ThreadPoolExecutor(len(queues)) as threads:
        begun = [threads.submit(copy_context().run, _one_by_one, night, queue, ray) for queue in queues]
        try:
            for one in begun:
                one.result()
        except BaseException:
            night.stopped = True  # by Ctrl-C or a cancellation: what was begun is finished, and nothing more
            raise


def _one_by_one(night: Night, queue: list[Freshness], ray: int | None) -> None:
    name = night.store.name
    for state in queue:
        night.work(state, lambda one, patience: run_through(tune, one.path, name, patience=patience, ray=ray))


def _leave_artifact(report: dict[str, Any], name: str) -> None:
    """Show the report in Prefect; a server that is gone by now takes nothing back that is published."""
    key = f"retune-{artifact_name(name)}"
    with leaving("the artifact of the run"):
        create_markdown_artifact(markdown(report), key=key, description="What a retune found and did")
