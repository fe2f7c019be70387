"""Faults of the surroundings: files that change under a run, a clock that jumps, neighbours, a long past."""

from __future__ import annotations

import json
import mmap
import shutil
import struct
import subprocess
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from routetune.tasks.store import open_store

from tests.faults.fault import Case, Fault
from tests.faults.questions import rows_of, snapshot, wrong
from tests.faults.site import Site

HERE = Path(__file__).parent
DAY = 86_400


def replaced_model(case: Case) -> None:
    """By one with other weights, at two moments; the first one comes back in the end."""
    for at in (0.3, 0.8):
        site = case.site()
        with case.stopped(site, at=at):
            before = snapshot(site)
            first = site.model.read_bytes()
            other_weights(site)
        with site.running() as tune:
            second = case.findings.ended(tune.wait())
        # Whatever its verdicts are, the engine is of the model that is there now.
        case.findings.wrong += wrong(site, {}, second)
        site.model.write_bytes(first)
        case.conclude(site, before)


def other_weights(site: Site) -> None:
    """The same graph with its last bias moved, put in place as an editor does."""
    model = onnx.load(site.model)
    bias = [one for one in model.graph.initializer if numpy_helper.to_array(one).shape == (10,)][-1]
    bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) + np.float32(1), bias.name))
    onnx.save(model, site.folder / "other.onnx")
    (site.folder / "other.onnx").replace(site.model)


def changed_sidecar(case: Case) -> None:
    """Its weights are written over in place, and are back in the end."""
    site = case.site()
    weights = site.with_sidecar()
    with case.stopped(site, at=0.5):
        before = snapshot(site)
        first = weights.read_bytes()
        weights.write_bytes((np.frombuffer(first, np.float32) * np.float32(1.5)).tobytes())
    with site.running() as tune:
        second = case.findings.ended(tune.wait())
    case.findings.wrong += wrong(site, {}, second)
    weights.write_bytes(first)
    case.conclude(site, before)


def clock_set_back(case: Case) -> None:
    """By a day under a run, by another before the next, and forward again for the last."""
    site = case.site()
    library, offset = clock(case.place)
    site.variables["LD_PRELOAD"] = str(library)
    site.variables["ROUTETUNE_TEST_CLOCK"] = str(offset)
    set_clock(offset, 0)
    with case.stopped(site, at=0.5) as tune:
        set_clock(offset, -DAY)
        tune.go_on()
        case.findings.ended(tune.wait())
    before = snapshot(site)
    for days in (-2, 1):
        set_clock(offset, days * DAY)
        case.conclude(site, before, "--force")
        case.findings.times += 1


def clock(place: Path) -> tuple[Path, Path]:
    """A library that shifts the wall clock of its process, and the file with the seconds."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = place / "clock.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", library, HERE / "clock.c", "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    offset = place / "offset"
    offset.write_bytes(bytes(8))
    return library, offset


def set_clock(offset: Path, seconds: int) -> None:
    """Move the clock of every process that has the file mapped."""
    with offset.open("r+b") as file, mmap.mmap(file.fileno(), 8) as shared:
        shared[:8] = struct.pack("q", seconds)


def two_of_one_target(case: Case) -> None:
    site = case.site()
    with case.stopped(site, at=0.3) as first:
        before = snapshot(site)
        with site.running() as second:
            first.go_on()
            ended = case.findings.ended(second.wait())
        case.findings.wrong += wrong(site, case.verdicts, ended if ended.code == 0 else None)
    case.conclude(site, before)


def of_eight_targets(case: Case) -> None:
    _eight(case, [f"faulty{number}" for number in range(8)])


def of_one_target(case: Case) -> None:
    _eight(case, ["faulty"] * 8)


def _eight(case: Case, names: list[str]) -> None:
    """Eight tunes at once, over one model and so with the same steps, of which each may be made only once."""
    site = case.site()
    targets = {name: site.write(name) for name in names}
    with ExitStack() as stack:
        tunes = [stack.enter_context(site.running(target=targets[name])) for name in names]
        case.findings.times = len(tunes)
        for tune in tunes:
            tune.limit *= len(tunes)
            if (ended := case.findings.ended(tune.wait())).code != 0:
                case.findings.wrong.append(f"one of eight ended with {ended.code}: {ended.err[-300:]}")
    made = Counter(
        (row["route"], step)
        for row in rows_of(site).values()
        for step in set(json.loads(row["seconds"])) - set(row["cached"])
    )
    case.findings.lost += [
        f"{step} of route {route!r} was made {n} times" for (route, step), n in made.items() if n > 1
    ]
    for name in targets:
        case.findings.wrong += wrong(site, {}, None, name)
        case.conclude(site, snapshot(site), target=name)


def long_past(case: Case) -> None:
    """10,000 rows of this target, of an earlier year, appended under a run; they stay readable."""
    site = case.tuned()
    with case.stopped(site, "--force", at=0.1):
        records = open_store(site.store).records
        [pattern] = records.read().slice(0, 1).to_pylist()
        past = pattern | {"run": "20200101T000000Z-00000000", "finished_at": datetime(2020, 1, 1, tzinfo=UTC)}
        rows = [
            past
            | {
                "route_id": f"{number:064x}",
                "route": f"-session.old={number}",
                "finished_at": past["finished_at"] + timedelta(seconds=number),
            }
            for number in range(10_000)
        ]
        records.append(rows)
        before = snapshot(site)
        assert len(before.rows) > 10_000
    case.conclude(site, before, "--force")


FAULTS = [
    Fault(
        "model replaced during a run",
        "by other weights at 30 and 80 % of the steps, and back",
        replaced_model,
    ),
    Fault("sidecar changed during a run", "written over in place halfway, and back", changed_sidecar),
    Fault(
        "clock set back",
        "a day under a run, another before the next, then forward: a library that shifts the clock's calls",
        clock_set_back,
    ),
    Fault(
        "two runs of one target",
        "the second started while the first is at 30 %",
        two_of_one_target,
        usual=True,
    ),
    Fault("eight runs on one store", "eight targets over one model, at once", of_eight_targets),
    Fault("eight runs of one target", "at once", of_one_target),
    Fault("10,000-trial record", "appended under a run", long_past),
]
