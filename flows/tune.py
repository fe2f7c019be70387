"""The flow that tunes one target, from references to publication."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow
from routetune.flows.artifacts import leave_artifacts
from routetune.flows.display import leave_asset, run_name, tag_run
from routetune.tasks.accuracy import check_accuracy
from routetune.tasks.bench import Bench, open_bench
from routetune.tasks.build import build_engines
from routetune.tasks.calibrate import calibrate, is_needed
from routetune.tasks.challenge import challenge_published, kept_because
from routetune.tasks.expand import open_campaign
from routetune.tasks.publish import publish_winner
from routetune.tasks.reference import make_references
from routetune.tasks.report.summary import published_summary, run_summary
from routetune.tasks.reselect import recorded_routes
from routetune.tasks.routes.route import Route
from routetune.tasks.select import select_winner
from routetune.tasks.status import freshness, freshness_of
from routetune.tasks.store import open_store
from routetune.tasks.store.manifests import Publication
from routetune.tasks.targets.inputs import input_sets
from routetune.tasks.timing import time_engines


@flow(
    name="tune",
    flow_run_name=run_name,
    on_running=[tag_run],
    persist_result=False,
    validate_parameters=False,
)
def tune(
    target: str,
    store: str | None = None,
    force: bool = False,
    refresh: bool = False,
    patience: float | None = None,
    ray: int | None = None,
) -> dict[str, Any]:
    """Tune one target and publish the winner; what is fresh is left alone.

    Where only a tolerance or the like moved, what is known is judged anew, and nothing is built.

    Args:
        target: path of the target file.
        store: folder or URL of the store; by default that of ROUTETUNE_STORE, else the user's data folder.
        force: tune although what is published is fresh.
        refresh: answer no step from the store; implies force.
        patience: seconds to wait for a busy device at most, where the target says "wait"; None: for ever.
        ray: how many workers of the Ray cluster of RAY_ADDRESS do the work, in place of this machine.

    Returns: the run's summary as plain JSON; see docs/publications.md.
    """
    opened, anew = open_store(store), force or refresh
    if not anew and (state := freshness(Path(target), opened)).state == "fresh":
        return published_summary(state)
    with open_bench(Path(target), opened, refresh, patience, ray=ray) as bench:
        # Again, now that the device is ours: whoever had it may have tuned the same.
        state = freshness_of(bench.subject, opened)
        if state.state == "fresh" and not anew:
            return published_summary(state)
        publication, summary = tune_on(bench, None if anew else recorded_routes(bench, state))
    leave_asset(bench, publication)
    leave_artifacts(summary, bench)
    return summary


def tune_on(bench: Bench, known: list[Route] | None) -> tuple[Publication, dict[str, Any]]:
    """Tune whatever became of the last tune, on a bench that is open.

    Args:
        known: routes whose trials are recorded, to be judged anew with no search; None: search.

    Returns: what is published now, and the run's summary.
    """
    make_references(bench, input_sets(bench.subject.target, bench.subject.model))
    if is_needed(bench):
        calibrate(bench, bench.references)
    search = open_campaign(bench, known)
    while routes := search.ask():
        trials = build_engines(bench, routes)
        trials = check_accuracy(bench, trials)
        search.tell(time_engines(bench, trials))
    selection = select_winner(bench, list(bench.trials.values()))
    selection = challenge_published(bench, selection)
    publication = publish_winner(bench, selection)
    summary = run_summary(bench, publication, search.ended, search.explanation(), kept_because(selection))
    told = ("generation", "route", "speed", "explanation", "counts", "devices")
    bench.finish({name: summary[name] for name in told})
    return publication, summary
