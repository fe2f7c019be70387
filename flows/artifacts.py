"""What a run leaves with Prefect for people to look at."""

from __future__ import annotations

import base64
import warnings
from importlib.util import find_spec
from typing import Any

from prefect.artifacts import create_image_artifact, create_markdown_artifact, create_table_artifact
from routetune.tasks.bench import Bench
from routetune.tasks.report.dial import telling
from routetune.tasks.report.staircase import Staircase, staircase_of
from routetune.tasks.report.summary import DEFAULT, markdown


def leave_artifacts(summary: dict[str, Any], bench: Bench) -> None:
    """Show the result in Prefect; a server that is gone by now takes nothing back that is published."""
    name = "".join(c if c.isalnum() else "-" for c in summary["target"].lower())
    columns = ("route", "outcome", "speed", "low", "high", "loss", "reason")
    rows = [{column: one[column] for column in columns} for one in summary["trials"]]
    try:
        create_table_artifact(rows, key=f"trials-{name}", description=f"Trials of {summary['target']}")
        create_markdown_artifact(markdown(summary), key=f"summary-{name}")
        _leave_frontier(staircase_of(bench), name, f"ε of {summary['target']}, and the fastest route at each")
    except Exception as error:
        warnings.warn(f"the artifacts of the run could not be left with Prefect: {error}", stacklevel=2)


def _leave_frontier(stairs: Staircase, name: str, description: str) -> None:
    """The staircase as a table, and as a picture where there is what draws it."""
    steps = telling([stairs.step(step) for step in stairs.steps])
    rows = [
        {column: step[column] for column in ("epsilon", "eligible", "default_eligible", "loss")}
        | {"fastest": step["fastest"] if step["fastest"] != "" else DEFAULT}
        | (step["speed"] or {})
        for step in steps
    ]
    create_table_artifact(rows, key=f"frontier-{name}", description=description)
    if find_spec("matplotlib") is not None and rows:
        from routetune.tasks.report.drawings import Colours, frontier_picture

        picture = frontier_picture(stairs, float(stairs.target.accuracy.tolerance), Colours()).png()
        address = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
        create_image_artifact(address, key=f"frontier-picture-{name}", description=description)
