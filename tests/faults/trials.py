"""Faults inside a trial: a backend whose knob `+fault` does it, in the worker of a real tune."""

from __future__ import annotations

import json

from tests.faults.fault import Case
from tests.faults.faulty_backend import FLOOD
from tests.faults.questions import Findings, rows_of, snapshot
from tests.faults.site import Site

#: Value of the knob -> name in the table, what it does, and the outcome of its route.
TRIALS = {
    "segfault": ("SIGSEGV in a trial", "a read of address 0", "crashed"),
    "abort": ("SIGABRT in a trial", "a real signal", "crashed"),
    "division": ("SIGFPE in a trial", "a real signal", "crashed"),
    "sigkill": ("SIGKILL in a trial", "the worker kills itself", "killed"),
    "exit": ("exit without a result in a trial", "exit code 0, an empty engine file", "failed"),
    "empty": ("empty engine in a trial", "the build ends well and leaves no bytes", "failed"),
    "hang": ("hang in a trial", "sleeps past the limit of 4 s", "timed out"),
    "stubborn": ("grandchild that will not die", "both ignore SIGTERM and sleep past the limit", "timed out"),
    "exhaust": ("memory exhaustion in a trial", "takes all that its address space allows", "out of memory"),
    "flood": ("log flood in a trial", f"prints {FLOOD} MiB", "eligible"),
}
#: What the store may grow by in a tune with a flood, in MiB.
ROOM = 8


def faulty(site: Site) -> None:
    """Make the target of the site one whose routes have each fault once, among others that are well."""
    routes = [f"+fault=[none|{'|'.join(TRIALS)}]", "-graph_optimization_level=[disabled|all]"]
    routes.append("-session.disable_prepacking=[0|1]")
    fields = {"routes": json.dumps(routes), "algorithm": "fast", "trial_seconds": 4}
    site.write(backend="faulty_backend:FaultyBackend", **fields)


def inject_all(case: Case) -> dict[str, Findings]:
    """One tune with every fault, and another after it; what each fault has to answer for, by its name."""
    site = case.site()
    faulty(site)
    case.verdicts = {
        "": "eligible",
        "-graph_optimization_level=disabled": "eligible",
        "-session.disable_prepacking=1": "inaccurate",
    }
    with site.running() as tune:
        first = case.findings.ended(tune.wait())
    before, kept = snapshot(site), rows_of(site)
    stored = sum(file.stat().st_size for file in site.store.rglob("*") if file.is_file()) / 2**20
    # Another store-wide look: what may be tried again is, what is known of a route is not.
    second = case.conclude(site, before, "--force")
    each = {}
    for value, (name, _, outcome) in TRIALS.items():
        found = each[name] = Findings(2, [*case.findings.lost], [*case.findings.wrong], [*case.findings.hung])
        for ended in (first, second):
            rows = {route: row for (run, route), row in rows_of(site).items() if run == ended.summary["run"]}
            row = rows.get(f"+fault={value}")
            if row is None or row["outcome"] != outcome:
                found.wrong.append(f"{value}: {row and (row['outcome'], row['reason'])}, not {outcome}")
        if not any(route == f"+fault={value}" for _, route in kept):
            found.lost.append(f"no row of {value}")
    if stored > ROOM:
        each[TRIALS["flood"][0]].wrong.append(f"the store holds {stored:.0f} MiB after a flood")
    return each
