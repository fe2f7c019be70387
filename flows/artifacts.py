"""What a run leaves with Prefect for people to look at."""

from __future__ import annotations

import base64
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from prefect import runtime
from prefect.artifacts import create_image_artifact, create_markdown_artifact, create_table_artifact
from prefect.logging import get_run_logger
from prefect.settings import get_current_settings
from routetune.flows.server import is_lost
from routetune.tasks.bench import Bench
from routetune.tasks.report.dial import telling
from routetune.tasks.report.staircase import Staircase, staircase_of
from routetune.tasks.report.summary import DEFAULT, headline, markdown

COLUMNS = ("route", "outcome", "speed", "low", "high", "loss", "reason")


def leave_artifacts(summary: dict[str, Any], bench: Bench) -> None:
    """Show the result in Prefect; a server that is gone by now takes nothing back that is published."""
    name = artifact_name(summary["target"])
    rows = [{column: one[column] for column in COLUMNS} for one in summary["trials"]]
    links = _links(
        {
            "this run": f"runs/flow-run/{runtime.flow_run.id}",
            "all trials": f"artifacts/key/trials-{name}",
            "results of every run": f"artifacts/key/summary-{name}",
        }
    )
    about = f"{summary['target']} on {summary['environment']}. {links}"
    with leaving("the artifacts of the run"):
        get_run_logger().info(headline(summary))
        create_table_artifact(rows, key=f"trials-{name}", description=f"Trials of {about}")
        create_markdown_artifact(markdown(summary), key=f"summary-{name}", description=f"Summary of {about}")
        _leave_frontier(staircase_of(bench), name, f"ε of {summary['target']}, and the fastest route at each")


@contextmanager
def leaving(what: str) -> Iterator[None]:
    """Warn where Prefect does not take something: what is published stays so."""
    try:
        yield
    except Exception as error:
        if not is_lost():  # of which the user has been told
            warnings.warn(f"{what} could not be left with Prefect: {error}", stacklevel=3)


def _leave_frontier(stairs: Staircase, name: str, description: str) -> None:
    """The staircase as a table, and as a picture where there is what draws it."""
    steps = telling([stairs.step(step) for step in stairs.steps])
    rows = [
        {column: step[column] for column in ("epsilon", "eligible", "default_eligible", "loss", "top1")}
        | {"fastest": step["fastest"] if step["fastest"] != "" else DEFAULT}
        | (step["speed"] or {})
        for step in steps
    ]
    create_table_artifact(rows, key=f"frontier-{name}", description=description)
    if find_spec("matplotlib") is not None and rows:
        from routetune.tasks.report.canvas import Colours
        from routetune.tasks.report.frontier_drawing import frontier_picture

        picture = frontier_picture(stairs, float(stairs.target.accuracy.tolerance), Colours()).png()
        address = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
        create_image_artifact(address, key=f"frontier-picture-{name}", description=description)


def artifact_name(text: str) -> str:
    """As a part of an artifact's key, which takes lower-case letters, digits and dashes."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in text.lower())


def _links(pages: dict[str, str]) -> str:
    """Links into Prefect's pages; nothing where the server has no address of its own."""
    address = get_current_settings().ui_url
    if not address:
        return ""
    return " · ".join(f"[{text}]({address}/{path})" for text, path in pages.items())
