"""The flow that tunes one target, from references to publication."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow
from prefect.runtime import flow_run
from routetune.flows.artifacts import leave_artifacts
from routetune.tasks.accuracy import check_accuracy
from routetune.tasks.bench import open_bench
from routetune.tasks.build import build_engines
from routetune.tasks.expand import open_campaign
from routetune.tasks.publish import publish_winner
from routetune.tasks.reference import make_references
from routetune.tasks.report.summary import published_summary, run_summary
from routetune.tasks.select import select_winner
from routetune.tasks.status import freshness, freshness_of
from routetune.tasks.store import open_store
from routetune.tasks.targets.inputs import input_sets
from routetune.tasks.timing import time_engines


def _name() -> str:
    return f"tune {Path(flow_run.parameters['target']).stem}"


@flow(name="tune", flow_run_name=_name, persist_result=False, validate_parameters=False)
def tune(target: str, store: str | None = None, force: bool = False, refresh: bool = False) -> dict[str, Any]:
    """Tune one target and publish the winner; what is fresh is left alone.

    Args:
        target: path of the target file.
        store: folder of the store; by default that of ROUTETUNE_STORE, else the user's data folder.
        force: tune although what is published is fresh.
        refresh: answer no step from the store; implies force.

    Returns: the run's summary as plain JSON; see docs/publications.md.
    """
    opened, anew = open_store(store and Path(store)), force or refresh
    if not anew and (state := freshness(Path(target), opened)).state == "fresh":
        return published_summary(state)
    with open_bench(Path(target), opened, refresh) as bench:
        # Again, now that the device is ours: whoever had it may have tuned the same.
        if not anew and (state := freshness_of(bench.subject, opened)).state == "fresh":
            return published_summary(state)
        make_references(bench, input_sets(bench.subject.target, bench.subject.model))
        search = open_campaign(bench)
        while routes := search.ask():
            trials = build_engines(bench, routes)
            trials = check_accuracy(bench, trials)
            search.tell(time_engines(bench, trials))
        selection = select_winner(bench, list(bench.trials.values()))
        publication = publish_winner(bench, selection)
        summary = run_summary(bench, publication, search.ended)
        bench.finish({"generation": publication.reference.generation})
    leave_artifacts(summary, bench)
    return summary
