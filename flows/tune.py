"""The flow that tunes one target, from references to publication."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.runtime import flow_run
from routetune.tasks.accuracy import check_accuracy
from routetune.tasks.bench import Bench, open_bench
from routetune.tasks.build import build_engines
from routetune.tasks.expand import open_campaign
from routetune.tasks.publish import publish_winner
from routetune.tasks.reference import make_references
from routetune.tasks.report.summary import markdown, run_summary
from routetune.tasks.select import select_winner
from routetune.tasks.store import open_store
from routetune.tasks.subject import open_subject
from routetune.tasks.targets.inputs import input_sets
from routetune.tasks.timing import time_engines


def _name() -> str:
    return f"tune {Path(flow_run.parameters['target']).stem}"


@flow(name="tune", flow_run_name=_name, persist_result=False, validate_parameters=False)
def tune(target: str, store: str | None = None, refresh: bool = False) -> dict[str, Any]:
    """Tune one target and publish the winner.

    Args:
        target: path of the target file.
        store: folder of the store; by default that of ROUTETUNE_STORE, else the user's data folder.
        refresh: answer no step from the store.

    Returns: the run's summary as plain JSON; see docs/publications.md.
    """
    subject = open_subject(Path(target))
    with open_bench(subject, open_store(store and Path(store)), refresh) as bench:
        make_references(bench, input_sets(subject.target, subject.model))
        search = open_campaign(bench)
        while routes := search.ask():
            trials = build_engines(bench, routes)
            trials = check_accuracy(bench, trials)
            search.tell(time_engines(bench, trials))
        selection = select_winner(bench, list(bench.trials.values()))
        publication = publish_winner(bench, selection)
        summary = run_summary(bench, publication, search.ended)
        _leave_artifacts(bench, summary)
        bench.store.records.compact(bench.run.id)
        bench.run.finish("finished", {"generation": publication.reference.generation})
    return summary


def _leave_artifacts(bench: Bench, summary: dict[str, Any]) -> None:
    name = "".join(c if c.isalnum() else "-" for c in bench.subject.target.name.lower())
    columns = ("route", "outcome", "speed", "low", "high", "loss", "reason")
    rows = [{column: one[column] for column in columns} for one in summary["trials"]]
    create_table_artifact(rows, key=f"trials-{name}", description=f"Trials of {bench.subject.target.name}")
    create_markdown_artifact(markdown(summary), key=f"summary-{name}")
