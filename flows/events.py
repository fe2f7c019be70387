"""The events that routetune gives to Prefect, for automations to act on."""

from __future__ import annotations

import platform
import re
from typing import Any

from routetune.tasks.errors import RoutetuneError
from routetune.tasks.report.summary import speed_text

#: A machine is not what it was when it was seen last.
ENVIRONMENT_CHANGED = "routetune.environment.changed"
#: A target could not be tuned in its environment.
TARGET_FAILED = "routetune.target.failed"
#: A new publication gains less over its default route than the one before, by more than the interval.
GAIN_LOST = "routetune.gain.lost"


def resource_id(kind: str, *names: str) -> str:
    """ "routetune.environment.host.onnxruntime.cuda-0": what an automation matches with a pattern."""
    plain = (re.sub(r"[^A-Za-z0-9_.]+", "-", name) for name in names)
    return ".".join(("routetune", kind, *plain))


def hand_over(event: str, resource: dict[str, str], payload: dict[str, Any]) -> str:
    """Give an event to the Prefect server, and return its id once the server has it.

    Raises:
        RoutetuneError: no server is named, or it does not take the event.
    """
    from prefect.client.orchestration import get_client
    from prefect.events import Event, Resource

    told = Event(event=event, resource=Resource(resource), payload=payload)
    require_server()
    try:
        with get_client(sync_client=True) as client:
            client.request("POST", "/events", json=[told.model_dump(mode="json")])
    except Exception as error:  # of whatever class: the caller must know that the event is not out
        raise RoutetuneError(
            f"the Prefect server did not take the event {event}: {error}; it is told at the next look"
        ) from error
    return str(told.id)


def require_server() -> None:
    """Make sure that a server is named; an ephemeral one has no schedules, and takes events for nobody.

    Raises:
        RoutetuneError: PREFECT_API_URL is set neither in the environment nor in the profile.
    """
    from prefect.settings import PREFECT_API_URL

    if not PREFECT_API_URL.value():
        raise RoutetuneError(
            "no Prefect server is named: start one (prefect server start), and set PREFECT_API_URL to its "
            "address, such as http://127.0.0.1:4200/api"
        )


def tell(report: dict[str, Any]) -> None:
    """Tell what people want to know of a retune: which targets failed, and where a gain was lost.

    To be called in the flow run, which the events then name as related. Best effort, as Prefect sends events:
    the report is the record.

    Args:
        report: what the flow `retune` answers; the payload of an event is its row, with "host" and "reason".
    """
    for one in report["targets"]:
        if one["outcome"] == "failed":
            _emit(TARGET_FAILED, one, one["detail"])
        elif one["gain"] == "lost":
            _emit(GAIN_LOST, one, f"{speed_text(one['speed'])} after {speed_text(one['speed_before'])}")


def _emit(event: str, row: dict[str, Any], reason: str) -> None:
    from prefect.events import emit_event

    resource = {
        "prefect.resource.id": resource_id("target", row["target"]),
        "prefect.resource.name": row["target"],
        "routetune.host": platform.node(),
    }
    emit_event(event, resource, payload=row | {"host": platform.node(), "reason": reason})
