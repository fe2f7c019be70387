"""Watch the machine: when an environment is not what it was, tell Prefect, which rebuilds what is stale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from routetune.tasks.sightings import Sighting, look
from routetune.tasks.store import Store
from routetune.tasks.store.seen import Seen


def watch_once(targets: list[Path], store: Store) -> dict[str, Any]:
    """Look once, tell what changed, and only then take it as seen.

    A kill in between tells the same twice, which costs a look; the other order could tell it never.

    Returns: plain JSON, {"environments": [...], "refused": [...]}; see docs/operations.md.

    Raises:
        BadInput: there is no target to watch for.
        RoutetuneError: something changed, and no Prefect server took the event.
    """
    seen = Seen(store.root)
    sightings, refused = look(targets, seen)
    found = []
    for sighting in sightings:
        event = _tell(sighting, targets) if sighting.state == "changed" else None
        if sighting.state in ("first look", "changed"):
            seen.put(sighting.place, sighting.now.fields)
        found.append(sighting.to_json() | {"event": event})
    return {"environments": found, "refused": refused}


def _tell(sighting: Sighting, targets: list[Path]) -> str:
    from routetune.flows.events import ENVIRONMENT_CHANGED, hand_over, resource_id

    place, fields = sighting.place, sighting.now.fields
    places = [str(target.absolute()) for target in targets]
    resource = {
        "prefect.resource.id": resource_id("environment", *place.values()),
        "prefect.resource.name": sighting.now.label,
        **{f"routetune.{name}": value for name, value in place.items()},
        # What kind of machine it is, so that a deployment of one work pool can wait for its own.
        "routetune.kind": str(fields["gpu.name"] if sighting.now.is_gpu else fields["cpu.model"]),
    }
    payload = {
        "old": sighting.before,
        "new": fields,
        "moved": [str(change) for change in sighting.moved],
        # One place is a string: a template of Prefect's makes text of whatever it is given.
        "targets": places[0] if len(places) == 1 else places,
    }
    return hand_over(ENVIRONMENT_CHANGED, resource, payload)
