"""The flow that measures a published engine again. It publishes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow
from prefect.runtime import flow_run
from routetune.tasks.accuracy import check_accuracy
from routetune.tasks.bench import open_bench
from routetune.tasks.reference import make_references
from routetune.tasks.reproduce import comparison, duel_again, recall
from routetune.tasks.store import open_store
from routetune.tasks.targets.inputs import input_sets


def _name() -> str:
    return f"reproduce {Path(flow_run.parameters['target']).stem}"


@flow(name="reproduce", flow_run_name=_name, persist_result=False, validate_parameters=False)
def reproduce(target: str, store: str | None = None) -> dict[str, Any]:
    """Run references, accuracy and the duel of the published engine again, and compare the verdicts.

    Args:
        target: path of the target file.
        store: folder or URL of the store; by default that of ROUTETUNE_STORE, else the user's data folder.

    Returns: old and new figures as plain JSON; see docs/publications.md.
    """
    opened = open_store(store)
    with open_bench(Path(target), opened, refresh=True, purpose="reproduce") as bench:
        published, trial = recall(bench)
        make_references(bench, input_sets(bench.subject.target, bench.subject.model))
        [trial] = check_accuracy(bench, [trial])
        again = duel_again(bench, (published, trial))
        return comparison(bench, published, trial, again)
