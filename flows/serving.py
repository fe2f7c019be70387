"""Serve the flow `retune` on one machine: by a schedule, and when the machine changes."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from routetune.flows.events import require_server
from routetune.flows.run import check_server
from routetune.tasks.errors import BadInput

if TYPE_CHECKING:
    from prefect.events import DeploymentEventTrigger
    from prefect.schedules import Schedule

#: Set before Prefect is imported, and only where the user has not decided otherwise. A run sends a sign of
#: life every 30 s, so that an automation can mark it as crashed when they end (docs/examples/automations).
SERVED = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
}


def serve(
    targets: list[Path],
    store: Path | str,
    cron: str,
    timezone: str,
    name: str,
    say: Callable[[dict[str, Any]], None],
) -> None:
    """Serve until a signal ends it; `say` is told of the deployment once it is registered.

    One run at a time. Its schedule goes on while nobody serves: what is due by then is answered by one run.

    Raises:
        BadInput: the schedule is none.
        RoutetuneError: no Prefect server is named, or it does not answer.
    """
    for variable, value in SERVED.items():
        os.environ.setdefault(variable, value)
    from prefect.runner import Runner
    from prefect.types.entrypoint import EntrypointType
    from routetune.flows.retune import retune

    schedule = nightly(cron, timezone)
    require_server()
    check_server()
    parameters = {"targets": [str(target.absolute()) for target in targets], "store": str(store)}
    runner = Runner(name=name, limit=1, pause_on_shutdown=False)
    deployment = runner.add_flow(
        retune,
        name=name,
        schedule=schedule,
        triggers=[when_changed(platform.node())],
        parameters=parameters,
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    say(
        {"deployment": f"retune/{name}", "id": str(deployment), "cron": cron, "timezone": timezone}
        | parameters
    )
    asyncio.run(runner.start())


def nightly(cron: str, timezone: str) -> Schedule:
    """A schedule of Prefect's: `cron` by the clocks of `timezone`, summer time and all.

    Raises:
        BadInput: either cannot be read.
    """
    from zoneinfo import ZoneInfo

    from prefect.schedules import Cron

    try:
        ZoneInfo(timezone)
    except (KeyError, OSError, ValueError) as error:
        raise BadInput(f"--timezone {timezone!r} is not a time zone like 'America/Montreal'") from error
    try:
        return Cron(cron, timezone=timezone)
    except ValueError as error:
        raise BadInput(f"--cron {cron!r} is not a schedule like '10 0 * * *': {error}") from error


def when_changed(host: str) -> DeploymentEventTrigger:
    """What starts a run when `routetune watch` finds that `host` is not what it was."""
    from prefect.events import DeploymentEventTrigger
    from routetune.flows.events import ENVIRONMENT_CHANGED

    return DeploymentEventTrigger(
        name=f"{host} has changed: look at its targets",
        expect={ENVIRONMENT_CHANGED},
        match={"prefect.resource.id": "routetune.environment.*", "routetune.host": host},
    )
