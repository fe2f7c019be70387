from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading

import pytest
from routetune.tasks.errors import BadInput
from routetune.tasks.store.files import StoreWarning
from routetune.tasks.store.runs import RunInProgress
from routetune.tasks.store.sealed import seal, unseal

BOUND = {"target": {"tolerance": 0.01}, "environment": {"cpu": "x"}}

TUNER = """
import json, sys
from routetune.tasks.store import open_store
run = open_store(sys.argv[1]).runs.open("digits", json.loads(sys.argv[2]))
print(run.id, run.is_continued, flush=True)
sys.stdin.read()
run.finish("finished")
"""


@pytest.fixture
def tuner(store):
    """Start a process that works on a run until its input ends."""
    started = []

    def start(bound_to=BOUND):
        command = [sys.executable, "-c", TUNER, str(store.root), json.dumps(bound_to)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process, *process.stdout.readline().split()

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_run_from_start_to_end(store):
    run = store.runs.open("digits", BOUND)
    assert re.fullmatch(r"\d{8}T\d{6}Z-[0-9a-f]{8}", run.id)
    assert not run.is_continued
    assert store.runs.get(run.id).status == "running"
    run.finish("finished", {"winner": "-a=on", "trials": 5})
    found = store.runs.get(run.id)
    assert found == run.record
    assert (found.status, found.target, found.bound_to) == ("finished", "digits", BOUND)
    assert found.summary == {"winner": "-a=on", "trials": 5}
    assert found.starts[0]["at"] < found.ended_at
    with pytest.raises(ValueError, match="already ended as 'finished'"):
        run.finish("failed")
    again = store.runs.open("digits", BOUND)
    assert again.id != run.id
    assert [record.id for record in store.runs.list()] == [run.id, again.id]
    with pytest.raises(ValueError, match="not as 'great'"):
        again.finish("great")
    assert list((store.root / "locks").iterdir()) != []
    again.finish("finished")
    assert list((store.root / "locks").iterdir()) == []


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (None, "finished", ""),
        (RuntimeError("the environment is broken"), "failed", "the environment is broken"),
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt"),
    ],
)
def test_how_a_run_ended_is_recorded(store, error, status, reason):
    def work():
        with store.runs.open("digits", BOUND) as run:
            names.append(run.id)
            if error is not None:
                raise error

    names = []
    if error is None:
        work()
    else:
        with pytest.raises(type(error)):
            work()
    record = store.runs.get(names[0])
    assert (record.status, record.reason) == (status, reason)
    # Ctrl-C is gone on with; a failure is tried afresh, since its time-outs were the neighbours'.
    with store.runs.open("digits", BOUND) as run:
        assert (run.id == names[0]) is (status == "interrupted") is run.is_continued
        assert run.record.status == "running"
        assert run.record.reason == ""


def test_a_killed_run_is_gone_on_with(store, tuner):
    process, name, continued = tuner()
    assert continued == "False"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert store.runs.get(name).status == "running"
    run = store.runs.open("digits", BOUND, timeout=5)
    assert run.id == name
    assert run.is_continued
    assert [start["pid"] == process.pid for start in run.record.starts] == [True, False]


def test_two_processes_do_not_tune_the_same_at_once(store, tuner):
    process, name, _ = tuner()
    with pytest.raises(RunInProgress, match=rf"'digits' is being tuned right now: process {process.pid}"):
        store.runs.open("digits", BOUND)
    with pytest.raises(RunInProgress):
        store.runs.open("digits", BOUND, timeout=0.1)
    # Another target, another tolerance or another environment is another thing to tune.
    store.runs.open("encoder", BOUND).finish("finished")
    store.runs.open("digits", BOUND | {"environment": {"cpu": "y"}}).finish("finished")
    assert store.runs.get(name).status == "running"
    threading.Timer(0.2, process.stdin.close).start()
    run = store.runs.open("digits", BOUND, timeout=30)
    assert store.runs.get(name).status == "finished"
    assert run.id != name


def test_a_killed_run_of_another_state_is_marked_interrupted(store, tuner):
    killed, name, _ = tuner(BOUND | {"target": {"tolerance": 0.5}})
    alive, other, _ = tuner(BOUND | {"target": {"tolerance": 0.7}})
    killed.kill()
    killed.wait()
    with store.runs.open("digits", BOUND):
        pass
    record = store.runs.get(name)
    assert (record.status, record.reason) == ("interrupted", "its process was killed")
    assert store.runs.get(other).status == "running"
    alive.stdin.close()
    assert alive.wait(20) == 0


def test_many_processes_that_start_at_once_make_one_run_at_a_time(store):
    code = TUNER.replace("BOUND)", "BOUND, timeout=None)").replace(
        "json.loads(sys.argv[2]))", "json.loads(sys.argv[2]), timeout=None)"
    )
    command = [sys.executable, "-c", code, str(store.root), json.dumps(BOUND)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    printed = [process.communicate(timeout=60)[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0] * 6
    assert len({name for name, _ in printed}) == 6
    assert {continued for _, continued in printed} == {"False"}
    assert [record.status for record in store.runs.list("digits")] == ["finished"] * 6


OTHER_KINDS = [
    {"bound_to": []},
    {"bound_to": BOUND | {"target": []}},
    {"bound_to": BOUND | {"environment": None}},
    {"status": {}},
    {"reason": None},
    {"target": 7},
]


@pytest.mark.parametrize(
    "damage", [b"", b'{"id": "x"}', seal({"schema": 1, "id": "x"}), None, *OTHER_KINDS], ids=str
)
def test_a_damaged_run_is_set_aside_and_a_new_one_starts(store, damage):
    run = store.runs.open("digits", BOUND)
    run.finish("interrupted")
    path = store.runs.folder / f"{run.id}.json"
    if isinstance(damage, dict):
        damage = seal(unseal(path.read_bytes()) | damage)
    if damage is None:
        path.rename(store.runs.folder / "20990101T000000Z-00000000.json")
    else:
        path.write_bytes(damage)
    with pytest.warns(StoreWarning, match="damaged run"):
        again = store.runs.open("digits", BOUND)
    assert not again.is_continued
    assert [record.id for record in store.runs.list()] == [again.id]
    with pytest.raises(BadInput, match="no run"):
        store.runs.get(run.id)


def test_a_run_of_a_newer_routetune_is_refused_by_name(store):
    path = store.runs.folder / "20990101T000000Z-00000000.json"
    path.parent.mkdir()
    path.write_bytes(seal({"schema": 2}))
    with pytest.raises(BadInput, match=rf"run {path} has schema 2"):
        store.runs.open("digits", BOUND)
    path.unlink()
    store.runs.open("digits", BOUND)  # the lock was given back


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "x" * 201, "é"])
def test_target_names_cannot_leave_their_place(store, name):
    with pytest.raises(BadInput, match="target name"):
        store.runs.open(name, BOUND)
    with pytest.raises(BadInput, match="run id"):
        store.runs.get(name)


def test_a_kill_at_any_step_of_opening_and_finishing_leaves_a_readable_run(store, killed_at_every_step):
    code = f"""
from routetune.tasks.store import open_store
def act(root):
    run = open_store(root).runs.open("digits", {BOUND!r})
    run.finish("finished", {{"trials": 1}})
"""
    for stop in killed_at_every_step(code, store.root):
        records = store.runs.list()
        # Each try goes on with the run of the one before, until that one came past its end.
        assert len(records) <= 1
        assert {record.status for record in records} <= {"running", "finished"}
        if stop.killed and records and not records[0].unfinished:
            (store.runs.folder / f"{records[0].id}.json").unlink()
    assert records[0].summary == {"trials": 1}
    assert stop.step > 8
