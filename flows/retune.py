"""The flow that looks at all targets and tunes the stale ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow
from routetune.flows.events import tell
from routetune.flows.firings import absorb_waiting
from routetune.flows.tune import tune
from routetune.tasks.status import find_targets, freshness
from routetune.tasks.store import open_store


@flow(name="retune", persist_result=False, validate_parameters=False, on_running=[absorb_waiting])
def retune(
    targets: str | list[str] = ".",
    store: str | None = None,
    seconds: float | None = None,
    device_seconds: float | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Tune the targets that are not fresh."""
    opened = open_store(store and Path(store))
    places = [Path(place) for place in ([targets] if isinstance(targets, str) else targets)]
    rows = []
    for path in find_targets(places):
        state = freshness(path, opened)
        row: dict[str, Any] = {
            "target": state.target,
            "outcome": state.state,
            "detail": state.detail,
            "gain": None,
        }
        if force or state.state not in ("fresh", "cannot tell", "refused"):
            try:
                tune(str(path), str(opened.root), force)
                row["outcome"] = "tuned"
            except Exception as error:
                row |= {"outcome": "failed", "detail": str(error)}
        rows.append(row)
    report = {"targets": rows}
    tell(report)
    return report
