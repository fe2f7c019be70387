"""Three questions asked after every fault: is anything lost, is anything wrong, did anything hang?"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from routetune.tasks.engines.steps import engine_from, loaded
from routetune.tasks.errors import RoutetuneError
from routetune.tasks.store import open_store
from routetune.tasks.store.files import hash_file
from routetune.tasks.store.loader import load_current
from routetune.tasks.store.records import Records
from routetune.tasks.trial import REPRODUCIBLE, Outcome

from tests.faults.site import Ended, Site

#: What the next run answers from the store; of a failure, that depends on how the route failed.
ANSWERED = (Outcome.ELIGIBLE, Outcome.INACCURATE, Outcome.CRASHED)

Rows = dict[tuple[str, str], dict[str, Any]]


@dataclass
class Snapshot:
    """What was finished at a moment.

    Attributes:
        entries: file of an entry -> what tells whether anybody has written it since.
        rows: (run, route) -> its row of the records.
    """

    entries: dict[Path, tuple[int, str]]
    rows: Rows


@dataclass
class Findings:
    """One sentence for each thing that is not as it must be; and how often the fault was injected."""

    times: int = 0
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        return [*self.lost, *self.wrong, *self.hung]

    def ended(self, ended: Ended, killed: bool = False) -> Ended:
        """Note what a tune that is over has to answer for, however it went."""
        if ended.code is None:
            self.hung.append(f"a tune did not end in time: {ended.err[-500:]}")
        elif "Traceback" in ended.err and not killed:
            self.wrong.append(f"a traceback, not a sentence: {ended.err[-1500:]}")
        elif ended.code not in (0, 1, 2, 4, 130, 143) and not (killed and ended.code < 0):
            self.wrong.append(f"a tune ended with {ended.code}: {ended.err[-500:]}")
        return ended


def snapshot(site: Site) -> Snapshot:
    entries = {}
    for path in (site.store / "entries").glob("??/??/*.json"):
        # Not its time of change: whoever uses an entry moves that, for the collector to see.
        entries[path] = (path.stat().st_ino, hash_file(path))
    return Snapshot(entries, rows_of(site))


def rows_of(site: Site) -> Rows:
    if not (site.store / "records").exists():
        return {}
    rows = Records(site.store).read().to_pylist()
    return {(row["run"], row["route"]): row for row in rows}


def lost(site: Site, before: Snapshot, damaged: frozenset[Path] = frozenset()) -> list[str]:
    """What was finished before, and was not answered from the store afterwards.

    Args:
        damaged: entries that the fault itself destroyed: those must be made anew, not answered.
    """
    after = snapshot(site)
    found = [
        f"entry {path.name[:12]} is gone or was made again"
        for path, seen in before.entries.items()
        if path not in damaged and after.entries.get(path) != seen
    ]
    for pair, row in before.rows.items():
        kept = after.rows.get(pair)
        if kept is None:
            found.append(f"the row of route {pair[1]!r} is gone")
        elif row["outcome"] in REPRODUCIBLE and kept["outcome"] != row["outcome"]:
            found.append(f"route {pair[1]!r} was {row['outcome']}, its row now says {kept['outcome']}")
    return found


def repeated(before: Rows, after: Rows) -> list[str]:
    """Steps that a run made though the records of before it say that they were done.

    Args:
        after: the rows of runs that began later; of other runs they are left out.
    """
    done: dict[tuple[str, ...], set[str]] = {}
    for row in before.values():
        if row["outcome"] in ANSWERED:
            done.setdefault(_trial_of(row), set()).update(json.loads(row["seconds"]))
    earlier = {run for run, _ in before}
    return [
        f"route {route!r}: {', '.join(sorted(again))} was done, and was made again by run {run}"
        for (run, route), row in after.items()
        if run not in earlier
        and (again := done.get(_trial_of(row), set()) & set(json.loads(row["seconds"])) - set(row["cached"]))
    ]


def _trial_of(row: dict[str, Any]) -> tuple[str, ...]:
    return row["target"], row["environment"], row["route"]


def wrong(
    site: Site, verdicts: dict[str, str], ended: Ended | None = None, target: str = "faulty"
) -> list[str]:
    """Verdicts that are not as without a fault, and an engine that is not the one that was checked and timed.

    Args:
        verdicts: route -> outcome of a run without a fault.
        ended: the last tune, which must have ended well; None: judge only what is published.
    """
    found = wrongly_published(site, target)
    if ended is None or ended.code is None:
        return found
    if ended.code != 0:
        return [*found, f"the tune after the fault ended with {ended.code}: {ended.err[-800:]}"]
    run = ended.summary.get("run")
    rows = {route: row for (of, route), row in rows_of(site).items() if run is None or of == run}
    for route, outcome in verdicts.items():
        seen = rows[route]["outcome"] if route in rows else "never recorded"
        if seen != outcome:
            found.append(f"route {route!r} is {seen}, without a fault it is {outcome}")
    return found


def wrongly_published(site: Site, target: str = "faulty") -> list[str]:
    """What is wrong with the engine that a service would load now; nothing where nothing is published."""
    if not site.store.exists():
        return []
    try:
        published = load_current(site.store, target)
    except RoutetuneError as error:
        # A service is told; what it must not get is another engine. That it heals is seen by the rerun.
        return [] if "nothing" in str(error) or "not published" in str(error) else [f"not loadable: {error}"]
    manifest, digest = published.manifest, hashlib.sha256(published.path.read_bytes()).hexdigest()
    found = []
    if digest != manifest["engine"]["digest"]:
        found.append(f"published {digest}, the manifest says {manifest['engine']['digest']}")
    for stage in ("accuracy", "timing"):
        if not _measured(site, stage, digest):
            found.append(f"the published engine {digest[:12]} has no {stage} of its own in the store")
    row = rows_of(site).get((manifest["run"], manifest["route"]))
    if row is None or row["engine"] != digest or row["outcome"] != "eligible":
        found.append(
            f"the record of the published route does not tell of this engine: {row and row['outcome']}"
        )
    return found + _inaccurate(site, published)


def _measured(site: Site, stage: str, digest: str) -> bool:
    """Whether an entry of the stage is of the engine; the default route is timed as the control of others."""
    for entry in open_store(site.store, write=False).entries:
        if entry.key["stage"] == stage and digest in json.dumps(entry.key):
            return True
    return False


def _inaccurate(site: Site, published: Any) -> list[str]:
    """Compare the published engine with the model as it is on the disk, run without any optimisation."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    plain = onnxruntime.InferenceSession(site.model, options, providers=["CPUExecutionProvider"])
    inputs = {"x": np.load(site.folder / "inputs.npz")["x"]}
    engine = published.manifest["engine"] | {
        "identity": published.manifest["identity"],
        "options": published.options,
    }
    with loaded("onnxruntime", engine_from(str(published.path), engine), "cpu", {}) as runner:
        outputs = runner.infer(inputs)
    loss = 0.0
    for output, reference in zip(plain.get_outputs(), plain.run(None, inputs), strict=True):
        loss = max(loss, float(np.abs(outputs[output.name] - reference).max()))
    if not loss <= site.tolerance:
        return [f"the published engine is off by {loss:g} from the model, ε is {site.tolerance:g}"]
    return []
