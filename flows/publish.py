"""The flow that publishes by another ε, from what a run of the target has recorded; nothing is built."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.runtime import flow_run
from routetune.flows.artifacts import leave_artifacts
from routetune.flows.display import leave_asset
from routetune.tasks.bench import open_bench
from routetune.tasks.canonical import to_float
from routetune.tasks.publish import publish_winner
from routetune.tasks.recall import recall_trials
from routetune.tasks.recorded import recorded
from routetune.tasks.reference import make_references
from routetune.tasks.report.summary import run_summary
from routetune.tasks.select import select_winner
from routetune.tasks.store import open_store
from routetune.tasks.subject import judged_by
from routetune.tasks.targets.inputs import input_sets


def _name() -> str:
    return f"publish {Path(flow_run.parameters['target']).stem} at {flow_run.parameters['epsilon']}"


@flow(name="publish", flow_run_name=_name, persist_result=False, validate_parameters=False)
def publish(
    target: str,
    epsilon: float | str,
    metric: str | None = None,
    run: str | None = None,
    store: str | None = None,
) -> dict[str, Any]:
    """Select among the trials of a run by another ε than the target file's, and publish the winner.

    Args:
        target: path of the target file.
        epsilon: the tolerance; "inf" switches the check off.
        metric: what it bounds; by default the target's own metric.
        run: whose trials; by default the latest run in this environment.
        store: folder or URL of the store; by default that of ROUTETUNE_STORE, else the user's data folder.

    Returns: the run's summary as plain JSON; see docs/publications.md.
    """
    opened = open_store(store)
    amend = partial(judged_by, tolerance=to_float(epsilon), metric=metric)
    with open_bench(Path(target), opened, amend=amend) as bench:
        make_references(bench, input_sets(bench.subject.target, bench.subject.model))
        source = recorded(bench.subject, opened, run, columns=("route",)).run
        trials = recall_trials(bench, source.id)
        selection = select_winner(bench, trials)
        publication = publish_winner(bench, selection)
        ended = f"selected anew at ε = {epsilon} among the trials of run {source.id}"
        summary = run_summary(bench, publication, ended, source.summary.get("explanation"))
        summary["note"] = f"published at ε = {epsilon}"
        bench.finish({name: summary[name] for name in ("generation", "explanation")})
    leave_asset(bench, publication)
    leave_artifacts(summary, bench)
    return summary
