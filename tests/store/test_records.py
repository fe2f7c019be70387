from __future__ import annotations

import io
import math
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from routetune.tasks.errors import BadInput
from routetune.tasks.routes.route import Route
from routetune.tasks.store.files import StoreWarning
from routetune.tasks.store.records import COLUMNS, record_schema, row
from routetune.tasks.trial import Failure, Outcome, Trial

RUN, OTHER = "20261130T024500Z-1a2b3c4d", "20261130T024501Z-00000000"
ENVIRONMENT = "0123456789abcdef"


def trial(number, **changes):
    engine = {"digest": f"{number:064x}", "size": 1000 + number, "identity": f"id{number}", "options": {}}
    settings = {"engine": engine, "accepted": True, "speed": 1.0 + number, "low": 0.9, "high": math.inf}
    return Trial(Route((("-a", str(number)),)), **(settings | changes))


def rows(run, *numbers, **changes):
    return [row(run, "digits", ENVIRONMENT, trial(number, **changes)) for number in numbers]


def routes(table):
    return table["route"].to_pylist()


def test_every_column_of_every_kind_of_trial_comes_back(store):
    full = trial(
        1,
        loss=0.25,
        losses=[{"y": {"l0": 0.25, "lInf": "inf"}}],
        verdict="output y is fine",
        timing={"rounds": [[1, 2]]},
        cached=("build", "accuracy"),
        seconds={"build": 1.5},
        device="GPU-1",
    )
    failed = Trial(
        Route(), failure=Failure(Outcome.CRASHED, "crashed (SIGSEGV) while building", "build", log="a" * 64)
    )
    before = datetime.now(UTC)
    store.records.append([row(RUN, "digits", ENVIRONMENT, each) for each in (full, failed)])
    table = store.records.read()
    assert table.schema.equals(record_schema(), check_metadata=True)
    assert table.column_names == list(COLUMNS)
    first, second = table.to_pylist()
    assert before <= first.pop("finished_at") <= datetime.now(UTC) + timedelta(seconds=1)
    assert first == {
        "schema_version": 2,
        "run": RUN,
        "target": "digits",
        "environment": ENVIRONMENT,
        "route": "-a=1",
        "route_id": Route((("-a", "1"),)).id,
        "outcome": "eligible",
        "reason": "output y is fine",
        "step": None,
        "alias_of": None,
        "engine": f"{1:064x}",
        "engine_size": 1001,
        "identity": "id1",
        "accepted": True,
        "loss": 0.25,
        "losses": '[{"y":{"l0":0.25,"lInf":"inf"}}]',
        "verdict": "output y is fine",
        "speed": 2.0,
        "low": 0.9,
        "high": math.inf,
        "timing": '{"rounds":[[1,2]]}',
        "abandoned": False,
        "cached": ["build", "accuracy"],
        "seconds": '{"build":1.5}',
        "log": None,
        "device": "GPU-1",
    }
    assert (second["route"], second["outcome"], second["step"]) == ("", "crashed", "build")
    assert second["reason"] == "crashed (SIGSEGV) while building"
    assert second["log"] == "a" * 64
    assert second["engine"] is second["speed"] is second["losses"] is second["accepted"] is None


def test_runs_and_targets_are_told_apart_and_the_last_row_of_a_route_counts(store):
    store.records.append(rows(RUN, 1, 2))
    store.records.append(rows(OTHER, 1) + rows(RUN, 3))
    store.records.append([*rows(RUN, 2, speed=99.0), rows(RUN, 4)[0] | {"target": "encoder"}])
    assert routes(store.records.read()) == ["-a=1", "-a=3", "-a=2", "-a=4", "-a=1"]
    assert routes(store.records.read(OTHER)) == ["-a=1"]
    assert routes(store.records.read(target="encoder")) == ["-a=4"]
    assert store.records.read(RUN)["speed"].to_pylist() == [2.0, 4.0, 99.0, 5.0]
    assert store.records.finished_routes(OTHER) == {trial(1).route.id}
    assert store.records.finished_routes("20260101T000000Z-00000000") == set()
    with pytest.raises(BadInput, match="run id"):
        store.records.read("../x")


def test_any_reader_of_parquet_folders_reads_them(store):
    store.records.append(rows(RUN, 1, 2, cached=("build",)))
    store.records.append(rows(OTHER, 3))
    (store.records.folder / RUN / ".tmp-0123").write_bytes(b"unfinished")
    table = pyarrow.dataset.dataset(store.records.folder, format="parquet").to_table()
    assert sorted(routes(table)) == ["-a=1", "-a=2", "-a=3"]
    assert {str(field.type) for field in table.schema} <= {
        "int32",
        "int64",
        "string",
        "bool",
        "double",
        "list<element: string>",
        "timestamp[us, tz=UTC]",
    }


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped footer", "flipped data", "foreign", "renamed"])
def test_a_damaged_part_is_set_aside_and_the_others_are_read(store, damage):
    for number in (1, 2, 3):
        store.records.append(rows(RUN, number))
    path = sorted((store.records.folder / RUN).iterdir())[1]
    raw = path.read_bytes()
    bad = {
        "empty": b"",
        "cut": raw[: len(raw) // 2],
        "flipped footer": raw[:-100] + bytes([raw[-100] ^ 1]) + raw[-99:],
        "flipped data": raw[:50] + bytes([raw[50] ^ 1]) + raw[51:],
        "foreign": b"not parquet at all",
        "renamed": raw,
    }[damage]
    path.write_bytes(bad)
    if damage == "renamed":
        path.rename(path.with_name("part-9.parquet"))
    with pytest.warns(StoreWarning, match="damaged part of the records"):
        assert routes(store.records.read(RUN)) == ["-a=1", "-a=3"]
    assert routes(store.records.read(RUN)) == ["-a=1", "-a=3"]
    assert [kept.read_bytes() for kept in (store.root / "set-aside").iterdir()] == [bad]
    store.records.append(rows(RUN, 2))
    assert len(store.records.finished_routes(RUN)) == 3


def write_part(store, table):
    """A part as another version of routetune would write it."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    import hashlib

    digest = hashlib.sha256(buffer.getvalue()).hexdigest()[:16]
    path = store.records.folder / RUN / f"part-{5:020d}-{digest}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(buffer.getvalue())
    return path


def test_a_part_of_a_newer_schema_is_an_error_that_names_it(store):
    table = record_schema().empty_table().replace_schema_metadata({"routetune.schema_version": "3"})
    path = write_part(store, table.append_column("energy", pa.array([], pa.float64())))
    with pytest.raises(BadInput, match=rf"{path} have schema 3, this routetune reads up to 2"):
        store.records.read()
    assert path.exists()


def test_a_part_of_schema_1_is_read_and_merged_with_others(store):
    """It has no column for the device, which nobody had noted then."""
    store.records.append(rows(RUN, 1, device="cpu"))
    [part] = store.records.folder.glob("*/part-*")
    earlier = pq.read_table(part).drop_columns(["device"])
    part.unlink()
    write_part(store, earlier.replace_schema_metadata({"routetune.schema_version": "1"}))
    store.records.append(rows(RUN, 2, device="cpu"))
    assert store.records.read()["device"].to_pylist() == [None, "cpu"]
    assert store.records.read(columns=("device", "route")).column_names == ["device", "route"]
    store.records.compact(RUN)
    assert store.records.read().schema.equals(record_schema())
    assert routes(store.records.read()) == ["-a=1", "-a=2"]


@pytest.mark.parametrize(
    "metadata", [{"routetune.schema_version": "1"}, {"routetune.schema_version": "x"}, {}]
)
def test_a_table_of_something_else_is_damage(store, metadata):
    write_part(store, pa.table({"a": [1]}).replace_schema_metadata(metadata))
    with pytest.warns(StoreWarning, match="no table of records"):
        assert store.records.read().num_rows == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"energy": 1.0}, "unknown column energy"),
        ({"outcome": None}, "outcome must be given"),
        ({"run": "../../x"}, "run id"),
    ],
)
def test_wrong_rows_are_refused_and_nothing_is_written(store, change, message):
    with pytest.raises(BadInput, match=message):
        store.records.append([*rows(RUN, 1), rows(RUN, 2)[0] | change])
    assert not store.records.folder.exists()
    with pytest.raises((pa.ArrowInvalid, pa.ArrowTypeError)):
        store.records.append([rows(RUN, 2)[0] | {"engine_size": "big"}])


def test_a_kill_during_the_record_write_leaves_the_earlier_rows(store, killed_at_every_step):
    """H53."""
    store.records.append(rows(OTHER, 1, 2))
    store.records.append(rows(RUN, 1))
    code = f"""
import pyarrow.parquet
from routetune.tasks.store.records import Records, row
from routetune.tasks.routes.route import Route
from routetune.tasks.trial import Trial
def act(root):
    trials = [Trial(Route((("-a", n),))) for n in "23"]
    Records(root).append([row({RUN!r}, "digits", {ENVIRONMENT!r}, trial) for trial in trials])
"""
    for stop in killed_at_every_step(code, store.root):
        # Both rows of the batch or neither, and those of before always.
        assert routes(store.records.read(OTHER)) == ["-a=1", "-a=2"]
        assert routes(store.records.read(RUN)) in [["-a=1"], ["-a=1", "-a=2", "-a=3"]]
        assert stop.killed or len(routes(store.records.read(RUN))) == 3
    assert stop.step >= 3


def test_compact_leaves_one_part_with_the_same_rows(store):
    for number in range(5):
        store.records.append(rows(RUN, number, 0))
    store.records.append(rows(OTHER, 7))
    before = store.records.read()
    store.records.compact(RUN)
    assert len(list((store.records.folder / RUN).iterdir())) == 1
    assert store.records.read().equals(before)
    for _ in range(2):  # a single part is left as it is
        store.records.compact(RUN)
        assert store.records.read().equals(before)
    store.records.append(rows(RUN, 9))
    store.records.compact(RUN)
    assert routes(store.records.read(RUN)) == [*routes(before)[:5], "-a=9"]


def test_a_kill_while_compacting_loses_and_repeats_no_row(store, killed_at_every_step):
    code = f"""
import pyarrow.parquet
from routetune.tasks.store.records import Records
def act(root):
    Records(root).compact({RUN!r})
"""
    for number in range(3):
        store.records.append(rows(RUN, number))
    parts = {path: path.read_bytes() for path in (store.records.folder / RUN).iterdir()}
    before = store.records.read(RUN)
    for stop in killed_at_every_step(code, store.root):
        assert store.records.read(RUN).equals(before)
        if stop.killed and stop.step % 2:  # else the next try starts from what this one left
            for path, raw in parts.items():
                path.write_bytes(raw)
    assert len(list((store.records.folder / RUN).glob("part-*"))) == 1
    assert stop.step > 5


def test_a_killed_compaction_is_completed_by_the_next(store):
    for number in range(3):
        store.records.append(rows(RUN, number))
    before, folder = store.records.read(RUN), store.records.folder / RUN
    kept = {path: path.read_bytes() for path in folder.iterdir()}
    store.records.compact(RUN)
    for path, raw in kept.items():  # as a kill before the first deletion leaves it
        path.write_bytes(raw)
    assert len(list(folder.iterdir())) == 4
    assert store.records.read(RUN).equals(before)
    store.records.compact(RUN)
    assert len(list(folder.iterdir())) == 1
    assert store.records.read(RUN).equals(before)


MERGED_MEANWHILE = """
import sys
from pathlib import Path
from routetune.tasks.store.records import Records
records, run, number = Records(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
opened = 0
def hook(event, args):
    global opened
    if event == "open" and "part-" in str(args[0]):
        opened += 1
        if opened == number + 1:
            records.compact(run)
records.read("20200101T000000Z-00000000")  # imports what it needs
sys.addaudithook(hook)
print(records.read(run)["route"].to_pylist(), opened > number)
"""


@pytest.mark.parametrize("number", range(3))
def test_parts_that_are_merged_while_they_are_read_are_still_read(store, number):
    for each in range(3):
        store.records.append(rows(RUN, each))
    command = [sys.executable, "-W", "error", "-c", MERGED_MEANWHILE, str(store.root), RUN, str(number)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "['-a=0', '-a=1', '-a=2'] True\n", done.stderr
    assert len(list((store.records.folder / RUN).iterdir())) == 1


APPENDER = """
import sys
from pathlib import Path
from routetune.tasks.routes.route import Route
from routetune.tasks.store.records import Records, row
from routetune.tasks.trial import Trial
root, run, mine = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
records = Records(root)
print("ready", flush=True)
sys.stdin.readline()
for number in range(10):
    name = f"{mine}.{number}"
    pair = [Trial(Route((("-a", f"{name}.{half}"),)), verdict=name * 50) for half in "xy"]
    records.append([row(run, f"target{mine}", "0123456789abcdef", trial) for trial in pair])
    if number % 4 == 3:
        records.compact(run)
"""


def test_eight_processes_append_and_compact_at_once_without_lost_or_mixed_rows(store):
    """G51."""
    command = [sys.executable, "-W", "error::UserWarning", "-c", APPENDER, str(store.root)]
    runs = [RUN] * 4 + [f"20261130T02450{number}Z-0000000{number}" for number in range(4)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([*command, run, str(number)], env=environment, **pipes)
        for number, run in enumerate(runs)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    counts = [0]
    while any(process.poll() is None for process in processes):
        counts.append(store.records.read().num_rows)  # parts vanish under the reader, rows never do
    assert counts == sorted(counts)
    assert [process.communicate() and process.returncode for process in processes] == [0] * 8
    expected = {
        (run, f"target{mine}", f"-a={mine}.{number}.{half}", f"{mine}.{number}" * 50)
        for mine, run in enumerate(runs)
        for number in range(10)
        for half in "xy"
    }
    table = store.records.read()
    found = [table[name].to_pylist() for name in ("run", "target", "route", "verdict")]
    assert sorted(zip(*found, strict=True)) == sorted(expected)
