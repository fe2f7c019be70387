"""The table of faults in docs/faults.md, from the results that the suite has written."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from routetune.tasks.store.locks import acquire

from tests.faults import changes, damage, kills, servers, trials
from tests.faults.fault import Fault
from tests.faults.questions import Findings

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/faults.md"
RESULTS = ROOT / "tests/benchmarks/results/faults.json"
COMMAND = "ROUTETUNE_WRITE_FIGURES=1 pytest -m faults tests/faults"
BEGIN, END = "<!-- table of faults -->\n", "<!-- end of the table -->\n"

FAULTS: list[Fault] = [*kills.FAULTS, *servers.FAULTS, *damage.FAULTS, *changes.FAULTS]


def described() -> dict[str, str]:
    """Name of every fault -> how it is injected, in the order of the table."""
    inside = {name: how for name, how, _ in trials.TRIALS.values()}
    return (
        {fault.name: fault.how for fault in [*kills.FAULTS, *servers.FAULTS]}
        | inside
        | {f.name: f.how for f in FAULTS}
    )


def note(name: str, findings: Findings) -> None:
    """Write what was found of a fault, when COMMAND asks for it; rows of other runs stay."""
    if not os.environ.get("ROUTETUNE_WRITE_FIGURES"):
        return
    lock = acquire(RESULTS.with_suffix(".lock"), "writing results")  # several of these may run at once
    try:
        _write(name, findings)
    finally:
        lock.release()


def _write(name: str, findings: Findings) -> None:
    results = read() if RESULTS.exists() else {"faults": {}}
    counts = {kind: len(getattr(findings, kind)) for kind in ("lost", "wrong", "hung")}
    results["faults"][name] = {"times": findings.times, **counts}
    results |= {"command": COMMAND, "cores": os.cpu_count(), "python": platform.python_version()}
    results |= {name: version(name) for name in ("onnxruntime", "prefect")}
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    page = PAGE.read_text()
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    PAGE.write_text(before + BEGIN + table() + END + after)


def read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULTS.read_text())
    return found


def table() -> str:
    """The table as Markdown."""
    rows = read()["faults"]
    lines = ["| fault | how | injected | lost | wrong | hung |", "|---|---|---:|---:|---:|---:|"]
    for name, how in described().items():
        if row := rows.get(name):
            counts = " | ".join(str(row[kind]) for kind in ("times", "lost", "wrong", "hung"))
            lines.append(f"| {name} | {how} | {counts} |")
    return "\n".join(lines) + "\n"
