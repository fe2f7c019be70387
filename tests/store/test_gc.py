from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
import warnings

import pytest
from routetune.tasks import collect
from routetune.tasks.errors import BadInput
from routetune.tasks.store.blobs import Missing
from routetune.tasks.store.files import hash_file, unfinished
from routetune.tasks.store.gc import Collector
from routetune.tasks.store.inventory import take_inventory
from routetune.tasks.store.keys import stage_key
from routetune.tasks.store.locks import Busy, making, using
from routetune.tasks.store.sealed import seal

LONG_AGO = 40 * 86_400.0
SIZE = 10_000


def build(store, name, data=None):
    """A build's entry, as the stage makes it; returns the digest of its engine."""
    engine = store.blobs.put_bytes(data or name.encode() * (SIZE // len(name)))
    key = stage_key("build", code="0" * 64, route=name)
    store.entries.put(key, {"engine": {"digest": engine}}, [engine])
    return engine


def timing(store, name):
    return store.entries.put(stage_key("timing", code="0" * 64, route=name), {"rounds": [1, 2, 3]}).path


def age(root, seconds=LONG_AGO):
    """Every file was last used a while ago, those made first longest ago."""
    files = sorted((path for path in root.rglob("*") if path.is_file()), key=lambda p: p.stat().st_mtime_ns)
    for at, path in enumerate(files):
        then = time.time() - seconds + at
        os.utime(path, (then, then))


def state(root):
    return {path: path.lstat().st_mtime_ns for path in root.rglob("*")}


def whole(store):
    """The routes of the builds that the store still answers; nothing in it may be damaged."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        entries = list(store.entries)
    for entry in entries:
        for blob in entry.blobs:
            assert hash_file(store.blobs.path(blob)) == blob  # verifying it would count as use
    return {entry.key["route"] for entry in entries if entry.key["stage"] == "build"}


def test_losers_go_first_and_the_longest_unused_before_the_others(store):
    engines = {name: build(store, name) for name in "abcd"}
    kept = timing(store, "a")
    age(store.root)
    store.blobs.use(engines["a"])
    os.utime(store.blobs.path(engines["a"]), (time.time() - 9_000,) * 2)  # used after the others
    before = collect.collect(store.root, dry_run=True)["before"]
    found = collect.collect(store.root, max_size=before - 2 * SIZE)
    assert whole(store) == {"a", "d"} and kept.exists()
    assert found["collected"]["engines"] == {"files": 2, "bytes": 2 * SIZE}
    assert found["after"] == collect.collect(store.root, dry_run=True)["before"] <= before - 2 * SIZE
    found = collect.collect(store.root, max_size=0)
    assert whole(store) == set() and not kept.exists()
    assert found["over"] == found["after"] > 0, "what is no entry and no blob stays"


def test_age_is_told_by_use(store):
    engines = {name: build(store, name) for name in "ab"}
    age(store.root)
    store.blobs.verified(engines["b"])
    found = collect.collect(store.root, max_age=30)
    assert whole(store) == {"b"} and found["in_use"]["files"] == 1
    with pytest.raises(Missing):
        store.blobs.verified(engines["a"])


def test_a_blob_stays_while_an_entry_names_it(store):
    shared = build(store, "a", b"same" * 1000)
    key = stage_key("accuracy", code="0" * 64, route="x")
    store.entries.put(key, {}, [shared])
    age(store.root)
    store.entries.use(store.entries.get(key))
    collect.collect(store.root, max_age=30)
    assert store.entries.get(key).blobs == (shared,)
    assert whole(store) == set(), "the other entry was not used"


def test_leftovers_and_what_nobody_can_use(store):
    build(store, "a")
    unnamed, broken = store.blobs.put_bytes(b"unnamed"), build(store, "b")
    store.blobs.path(broken).unlink()
    left = [unfinished(store.root / folder) for folder in ("blobs", "records", ".")]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.mkdir() if path.parent.name == "records" else path.write_bytes(b"half")
    (left[1] / "engine").write_bytes(b"half")
    run = store.runs.open("digits", {"target": {}})
    live, dead, damaged = (store.root / name for name in (f"scratch/{run.id}", "scratch/dead", "set-aside/x"))
    for path in (live, dead, damaged.parent):
        path.mkdir(parents=True)
    damaged.write_bytes(b"?")
    collect.collect(store.root)
    assert store.blobs.has(unnamed) and all(path.exists() for path in [*left, damaged, dead]), "all young"
    age(store.root)
    for path in (left[1], dead, live):
        os.utime(path, (1, 1))
    before = state(store.root)
    found = collect.collect(store.root, dry_run=True)
    assert state(store.root) == before, "a dry run changes nothing"
    assert found["collected"] == collect.collect(store.root)["collected"]
    files = {kind: tally["files"] for kind, tally in found["collected"].items()}
    assert files == {"engines": 0, "blobs": 1, "entries": 1, "unfinished": 3, "set_aside": 1, "scratch": 1}
    assert whole(store) == {"a"} and live.exists() and not any(p.exists() for p in [*left, damaged, dead])
    run.finish("interrupted")
    assert collect.collect(store.root)["collected"]["scratch"]["files"] == 1 and not live.exists()


@pytest.mark.parametrize("use", ["verified", "put again", "named by a new entry", "entry used"])
def test_what_is_used_after_the_look_stays(store, use):
    engine = build(store, "a", b"engine")
    build(store, "b")
    age(store.root)
    found = take_inventory(store.root)
    if use == "verified":
        store.blobs.verified(engine)
    elif use == "put again":
        store.blobs.put_bytes(b"engine")
    elif use == "named by a new entry":
        store.entries.put(stage_key("build", code="0" * 64, route="c"), {"engine": None}, [engine])
    else:
        store.entries.use(store.entries.get(stage_key("build", code="0" * 64, route="a")))
    Collector(store.root, found, set(), since=time.time() - 60).shrink(0)
    assert whole(store) - {"c"} == {"a"}
    assert store.blobs.has(engine)


def test_a_collector_waits_for_who_is_about_to_mark_a_file(store):
    engine = build(store, "a")
    age(store.root)
    collector = Collector(store.root, take_inventory(store.root), set(), since=time.time() - 60)
    thread = threading.Thread(target=collector.shrink, args=(0,))
    with using(store.root):
        thread.start()
        time.sleep(0.1)
        store.blobs.mark(engine)
    thread.join(30)
    assert whole(store) == {"a"}


def test_pins_of_the_user(store):
    engines = {name: build(store, name) for name in "abc"}
    age(store.root)
    (store.root / "pins").write_text(f"# for the audit\n{engines['b']}  # b\n\n")
    found = collect.collect(store.root, max_size=0)
    assert whole(store) == {"b"} and found["pinned"] == {"files": 1, "bytes": SIZE, "by": {"own": 1}}
    (store.root / "pins").write_text("digits\n")
    with pytest.raises(BadInput, match=r"pins, line 1: 'digits' is neither a digest .* nor a target"):
        collect.collect(store.root, max_size=0)
    assert whole(store) == {"b"}


def test_a_newer_routetunes_entries_are_not_touched(store):
    engine = build(store, "a")
    (entry,) = store.entries
    raw = {"schema": 2, "key": entry.key, "value": {}, "blobs": [{"digest": engine}]}
    entry.path.write_bytes(seal(raw))
    age(store.root)
    with pytest.raises(BadInput, match="schema 2, this routetune knows 1: nothing was deleted"):
        collect.collect(store.root, max_size=0)
    assert entry.path.exists() and store.blobs.has(engine)


def test_links_are_not_followed(store, tmp_path):
    engine = build(store, "a")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / engine).write_bytes(b"mine")
    (store.root / "blobs" / "zz").symlink_to(outside)
    age(store.root)
    collect.collect(store.root, max_size=0)
    assert (outside / engine).read_bytes() == b"mine"


def test_one_collection_at_a_time_and_only_of_a_store(store, tmp_path):
    with (
        making(store.root, collect.digest({"collecting": "garbage"})),
        pytest.raises(Busy, match="wait for it to end"),
    ):
        collect.collect(store.root)
    with pytest.raises(BadInput, match="there is no store at"):
        collect.collect(tmp_path / "nowhere")


KILLED = """
from routetune.tasks.collect import collect
def act(root):
    collect(root, max_size=0)
"""


def test_a_kill_at_any_file_operation_leaves_a_whole_store(store, killed_at_every_step, tmp_path):
    pinned = [build(store, name) for name in "abcd"][1]
    (store.root / "pins").write_text(pinned)
    store.blobs.put_bytes(b"unnamed")
    age(store.root)
    shutil.copytree(store.root, tmp_path / "before")
    left = set()
    for stop in killed_at_every_step(KILLED, store.root):
        routes = whole(store)
        assert "b" in routes
        left.add(len(routes))
        if stop.killed:
            shutil.rmtree(store.root)
            shutil.copytree(tmp_path / "before", store.root)  # with the times
    assert routes == {"b"} and left == {1, 2, 3, 4}
    assert [path.name for path in store.root.glob("blobs/??/??/*")] == [pinned]


#: Uses what is there and makes what is not, as a run does, and in the end needs all of it.
USER = """
import random, sys, time, warnings
from routetune.tasks.store import open_store
from routetune.tasks.store.blobs import Missing
from routetune.tasks.store.keys import stage_key
warnings.simplefilter("error")
store, name = open_store(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
with store.runs.open(name, {"seed": name}):
    used, names = [], random.Random(name).sample(range(45), 30)
    for number in names:
        key = stage_key("build", code="0" * 64, route=str(number))
        try:
            entry = store.entries.get(key)
            blobs = [store.blobs.verified(blob) for blob in entry.blobs]
            store.entries.use(entry)
        except (AttributeError, Missing):
            blob = store.blobs.put_bytes(str(number % 15).encode() * 1000)
            entry = store.entries.put(key, {"engine": {"digest": blob}}, [blob])
        used.append(entry.blobs[0])
    time.sleep(0.1)
    for blob in used:
        store.blobs.verified(blob)
    print(len(used))
"""
COLLECTOR = """
import sys
from routetune.tasks import collect
collect.GRACE = 0.05  # of a clock whose ticks are some milliseconds; what protects is the runs' start
print("ready", flush=True)
sys.stdin.readline()
gone = 0
for _ in range(12):
    found = collect.collect(sys.argv[1], max_size=0)
    gone += found["collected"]["engines"]["files"]
print(gone)
"""


def test_processes_lose_nothing_that_they_use_while_others_are_collected(store):
    gone = 0
    for turn in range(2):
        for number in range(45):
            build(store, str(number), str(number % 15).encode() * 1000)  # three names for each engine
        build(store, f"of nobody {turn}", f"of nobody {turn}".encode() * 1000)  # goes, whoever is first
        age(store.root)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        users = [
            subprocess.Popen([sys.executable, "-c", USER, str(store.root), f"user{turn}{n}"], **pipes)
            for n in range(2)
        ]
        collector = subprocess.Popen([sys.executable, "-c", COLLECTOR, str(store.root)], **pipes)
        assert [process.stdout.readline() for process in (*users, collector)] == ["ready\n"] * 3
        for process in (collector, *users):
            process.stdin.write("go\n")
            process.stdin.flush()
        assert [process.communicate(timeout=60)[0] for process in users] == ["30\n", "30\n"]
        gone += int(collector.communicate(timeout=60)[0])
        assert collector.returncode == 0
        whole(store)
    assert gone >= 2
