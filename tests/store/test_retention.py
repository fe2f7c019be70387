from __future__ import annotations

import mmap
import os
import subprocess
import sys

import pytest
from routetune.tasks.errors import BadInput
from routetune.tasks.store import manifests
from routetune.tasks.store.files import StoreWarning
from routetune.tasks.store.loader import load_current

ENVIRONMENT = "0123456789abcdef"
MANIFEST = {"bound_to": {"target": {}, "environment": {}}, "route": "", "options": {}}


def publish(store, data, keep=None):
    engine = store.blobs.put_bytes(data)
    return store.publications.publish("digits", ENVIRONMENT, engine, MANIFEST, keep=keep)


def place(store):
    return manifests.home(store.root, "digits", ENVIRONMENT)


def rolled_back(store):
    return store.publications.rollback("digits", ENVIRONMENT).reference.generation


@pytest.mark.parametrize(
    ("keep", "left"), [(1, [6, 7]), (2, [6, 7]), (3, [5, 6, 7]), (99, [1, 2, 3, 4, 5, 6, 7])]
)
def test_the_newest_stay_and_always_a_step_to_go_back(store, keep, left):
    for number in range(6):
        publish(store, bytes([number]))
    last = publish(store, b"last", keep=keep)
    assert manifests.numbers(place(store)) == left
    assert store.publications.current("digits", ENVIRONMENT) == last
    assert store.publications.verify("digits", ENVIRONMENT) == [], "what is gone is not missed"
    for number in reversed(left[:-1]):
        assert rolled_back(store) == number
    with pytest.raises(BadInput, match="no earlier whole publication"):
        rolled_back(store)


def test_what_a_rollback_would_lead_to_stays_however_old_it_is(store):
    for number in range(5):
        publish(store, bytes([number]))
    assert [rolled_back(store), rolled_back(store)] == [4, 3]
    publish(store, b"sixth", keep=2)
    assert manifests.numbers(place(store)) == [3, 5, 6]
    assert rolled_back(store) == 3
    # One that was never current, its publisher having been killed, is no better than any other.
    manifests.folder_of(place(store), 7).mkdir()
    publish(store, b"eighth", keep=1)
    assert manifests.numbers(place(store)) == [3, 8]


def test_who_has_the_file_open_keeps_it(store):
    first = publish(store, b"first" * 1000)
    with first.engine.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        for number in range(3):
            publish(store, bytes([number]), keep=1)
        assert not first.engine.exists()
        assert view[:] == file.read() == b"first" * 1000


PUBLISHER = f"""
from routetune.tasks.store import open_store
def act(root):
    store = open_store(root)
    engine = store.blobs.put_bytes(b"new" * 999)
    store.publications.publish("digits", {ENVIRONMENT!r}, engine, {MANIFEST!r}, keep=1)
"""


def test_a_kill_at_any_file_operation_leaves_what_the_pointer_names_whole(store, killed_at_every_step):
    for number in range(4):
        publish(store, bytes([number]))
    for stop in killed_at_every_step(PUBLISHER, store.root):
        assert store.publications.verify("digits", ENVIRONMENT) == []
        found = load_current(store.root, "digits")
        is_new = found.path.read_bytes() == b"new" * 999
        assert is_new or (stop.killed and found.path.read_bytes() == b"\3")
        pointer = manifests.read_pointer(place(store))
        assert {past.generation for past in pointer.newest_first} <= set(manifests.numbers(place(store)))
        assert len(pointer.newest_first) >= 2, "there is always a step to go back"
    assert stop.step > 20
    publish(store, b"last", keep=1)
    assert len(manifests.numbers(place(store))) == 2
    assert not [path for path in place(store).glob("generations/*") if path.name.startswith(".")]


def test_links_and_things_of_others_among_the_generations(store, tmp_path):
    first, second = publish(store, b"1"), publish(store, b"2")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").write_text("mine")
    second.engine.parent.rename(tmp_path / "moved")
    second.engine.parent.symlink_to(tmp_path / "elsewhere")
    (first.engine.parent / "notes").mkdir()
    for number in range(3):
        publish(store, bytes([number]), keep=1)
    assert manifests.numbers(place(store)) == [4, 5]
    assert (tmp_path / "elsewhere" / "precious").read_text() == "mine"


def test_what_cannot_be_removed_is_told_and_does_not_undo_a_publication(store):
    first = publish(store, b"1")
    if subprocess.run(["chattr", "+i", first.engine], capture_output=True).returncode:
        pytest.skip("this file system knows no immutable files")
    try:
        publish(store, b"2", keep=1)
        with pytest.warns(StoreWarning, match="old generations of .* stay"):
            third = publish(store, b"3", keep=1)
        assert store.publications.current("digits", ENVIRONMENT) == third
        assert publish(store, b"4", keep=1).reference.generation == 4
    finally:
        subprocess.run(["find", str(store.root), "-name", "engine.onnx", "-exec", "chattr", "-i", "{}", "+"])


def test_readers_never_meet_a_gap_while_generations_come_and_go(store):
    publish(store, b"first")
    code = (
        "import os, sys; from routetune.tasks.store import open_store\n"
        "from routetune.tasks.store.loader import load_current\n"
        "store = open_store(sys.argv[1])\n"
        "for number in range(12):\n"
        "    engine = store.blobs.put_bytes(os.urandom(10_000))\n"
        f"    store.publications.publish('digits', {ENVIRONMENT!r}, engine, {MANIFEST!r}, keep=1)\n"
        "    for _ in range(10): load_current(store.root, 'digits')\n"
    )
    command = [sys.executable, "-W", "error", "-c", code, str(store.root)]
    processes = [subprocess.Popen(command, env=os.environ) for _ in range(3)]
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    assert manifests.numbers(place(store)) == [36, 37]
    assert store.publications.verify("digits", ENVIRONMENT) == []
