"""What a run leaves with Prefect for people to look at."""

from __future__ import annotations

import warnings
from typing import Any

from prefect.artifacts import create_markdown_artifact, create_table_artifact
from routetune.tasks.report.summary import markdown


def leave_artifacts(summary: dict[str, Any]) -> None:
    """Show the result in Prefect; a server that is gone by now takes nothing back that is published."""
    name = "".join(c if c.isalnum() else "-" for c in summary["target"].lower())
    columns = ("route", "outcome", "speed", "low", "high", "loss", "reason")
    rows = [{column: one[column] for column in columns} for one in summary["trials"]]
    try:
        create_table_artifact(rows, key=f"trials-{name}", description=f"Trials of {summary['target']}")
        create_markdown_artifact(markdown(summary), key=f"summary-{name}")
    except Exception as error:
        warnings.warn(f"the artifacts of the run could not be left with Prefect: {error}", stacklevel=2)
