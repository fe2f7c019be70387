"""One run for all the firings that were missed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any


def absorb_waiting(flow: Any, flow_run: Any, state: Any) -> None:
    """Cancel the runs of the same deployment that are due, wait, and were asked for the same as this one.

    A hook for `on_running`. A retune looks at every target when it starts, so it answers all firings that
    came before, from the schedule or from an event: after twelve nights without a worker one run does the
    work of twelve. Prefect's own limit on the runs of a deployment would also hold back or cancel the
    newest, and keeps the place of a killed run for minutes.
    """
    from prefect.client.orchestration import get_client
    from prefect.states import Cancelled

    if flow_run.deployment_id is None:
        return
    reason = f"run {flow_run.name!r} started after this one was due, and looks at the same targets"
    asked = {flow_run.id}
    with get_client(sync_client=True) as client:
        # A page at a time; whoever will not be cancelled is asked only once.
        while waiting := [one for one in _due(client, flow_run) if one.id not in asked]:
            for one in waiting:
                asked.add(one.id)
                if one.parameters == flow_run.parameters:
                    client.set_flow_run_state(one.id, Cancelled(message=reason))


def _due(client: Any, run: Any) -> list[Any]:
    from prefect.client.schemas.filters import FlowRunFilter

    found: list[Any] = client.read_flow_runs(
        flow_run_filter=FlowRunFilter.model_validate(
            {
                "deployment_id": {"any_": [run.deployment_id]},
                "state": {"type": {"any_": ["SCHEDULED", "PENDING"]}},
                "expected_start_time": {"before_": datetime.now(UTC)},
            }
        )
    )
    return found
