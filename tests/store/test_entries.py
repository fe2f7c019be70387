from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from routetune.tasks.store.blobs import Missing
from routetune.tasks.store.files import StoreWarning
from routetune.tasks.store.keys import stage_key
from routetune.tasks.store.sealed import seal

KEY = stage_key("build", code="0" * 64, route="-a=on", shapes={"x": [3, 3]})
VALUE = {"engine": "e" * 64, "losses": [0.25, "inf"], "note": "é\n"}


def test_an_entry_comes_back_as_it_was_put(store):
    blobs = [store.blobs.put_bytes(b"engine"), store.blobs.put_bytes(b"log")]
    put = store.entries.put(KEY, VALUE, blobs)
    assert store.entries.get(KEY) == put
    assert put.value == VALUE
    assert put.key == KEY
    assert list(put.blobs) == blobs
    assert put.path == store.entries.path(KEY)
    assert list(store.entries) == [put]
    # Another key order is the same key; a tuple is what JSON makes of it.
    assert store.entries.get(dict(reversed(KEY.items()))) == put
    assert store.entries.put(KEY, {"a": (1, 2)}).value == {"a": [1, 2]} == store.entries.get(KEY).value


@pytest.mark.parametrize(
    "other",
    [
        {"shapes": {"x": [4, 4]}},  # G43: same names, other shapes
        {"route": "-a=off"},
        {"code": "1" * 64},
        {"shapes": {"x": [3, 3.0]}},
        {"shapes": {"x": [3, True]}},
        {"shapes": {"x": "3x3"}},
        {"more": None},
    ],
)
def test_other_keys_are_other_entries(store, other):
    store.entries.put(KEY, 1)
    assert store.entries.get(KEY | other) is None
    store.entries.put(KEY | other, 2)
    assert store.entries.get(KEY).value == 1
    assert store.entries.get(KEY | other).value == 2


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(st.data())
def test_any_damage_is_a_warned_miss_that_heals(store, data):
    blob = store.blobs.put_bytes(b"engine")
    path = store.entries.put(KEY, VALUE, [blob]).path
    raw = path.read_bytes()
    place = data.draw(st.integers(0, len(raw) - 1))
    bad = data.draw(
        st.sampled_from(
            [
                raw[:place],
                raw[:place] + bytes([raw[place] ^ 4]) + raw[place + 1 :],
                raw[:place] + b"\0" + raw[place:],
            ]
        )
    )
    path.write_bytes(bad)
    with pytest.warns(StoreWarning, match="damaged entry"):
        assert store.entries.get(KEY) is None
    assert store.entries.get(KEY) is None  # silently: it was moved
    store.entries.put(KEY, VALUE, [blob])
    assert store.entries.get(KEY).value == VALUE


@pytest.mark.parametrize("damage", ["truncated", "deleted", "longer"])
def test_an_entry_without_its_blobs_is_a_miss(store, damage):
    blob = store.blobs.put_bytes(b"engine")
    store.entries.put(KEY, VALUE, [blob])
    path = store.blobs.path(blob)
    path.unlink()
    if damage != "deleted":
        path.write_bytes(b"" if damage == "truncated" else b"engine!")
    with pytest.warns(StoreWarning, match=rf"blob {blob} is gone or does not have 6 bytes"):
        assert store.entries.get(KEY) is None
    with pytest.warns(StoreWarning) if damage != "deleted" else _nothing():
        store.blobs.put_bytes(b"engine")
    store.entries.put(KEY, VALUE, [blob])
    assert store.entries.get(KEY).blobs == (blob,)


def _nothing():
    import contextlib

    return contextlib.nullcontext()


def test_an_entry_must_hold_the_key_it_is_filed_under(store):
    planted = store.entries.put(KEY | {"route": "-a=off"}, "other").path
    path = store.entries.path(KEY)
    path.parent.mkdir(parents=True)
    planted.rename(path)
    with pytest.warns(StoreWarning, match="not the one it is filed under"):
        assert list(store.entries) == []
    path.write_bytes(seal({"schema": 1, "key": KEY | {"route": "-a=off"}, "value": 1, "blobs": []}))
    with pytest.warns(StoreWarning, match="not the one asked for"):
        assert store.entries.get(KEY) is None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"schema": 2, "key": KEY, "value": 1, "blobs": []}, "schema is 2"),
        ({"schema": 1, "key": KEY, "blobs": []}, "lacks"),
        ({"schema": 1, "key": KEY, "value": 1, "blobs": {}}, "lacks"),
    ],
)
def test_sealed_but_not_an_entry(store, content, why):
    path = store.entries.path(KEY)
    path.parent.mkdir(parents=True)
    path.write_bytes(seal(content))
    with pytest.warns(StoreWarning, match=why):
        assert store.entries.get(KEY) is None


def test_something_else_in_the_place_of_an_entry(store):
    store.entries.path(KEY).mkdir(parents=True)
    with pytest.warns(StoreWarning, match="cannot be read"):
        assert store.entries.get(KEY) is None
    assert store.entries.put(KEY, 1) == store.entries.get(KEY)


def test_values_that_are_not_plain_json_are_refused_and_write_nothing(store):
    for value in (float("nan"), {1: 2}, object(), b"x", {"a": {1, 2}}):
        with pytest.raises(TypeError):
            store.entries.put(KEY, value)
    with pytest.raises(Missing):
        store.entries.put(KEY, 1, ["0" * 64])
    assert store.entries.get(KEY) is None
    assert not (store.root / "entries").exists()


def test_a_kill_while_putting_leaves_the_earlier_entry_or_the_new_one(store, killed_at_every_step):
    store.entries.put(KEY, 0)
    code = f"""
from routetune.tasks.store import open_store
def act(root):
    store = open_store(root)
    blob = store.blobs.put_bytes(os.urandom(10))
    store.entries.put({KEY!r}, 1, [blob])
"""
    values = []
    for _ in killed_at_every_step(code, store.root):
        values.append(store.entries.get(KEY).value)
        assert values == sorted(values)
    assert values[0] == 0
    assert values[-1] == 1
    assert len(values) > 8


def test_many_writers_and_readers_of_one_key_see_whole_entries_only(store):
    code = (
        "import sys, json; from routetune.tasks.store import open_store\n"
        "store = open_store(sys.argv[1]); key = json.loads(sys.argv[2])\n"
        "for number in range(60):\n"
        "    store.entries.put(key, [int(sys.argv[3])] * 2000)\n"
        "    value = store.entries.get(key).value\n"
        "    assert len(value) == 2000 and len(set(value)) == 1, value\n"
    )
    command = [sys.executable, "-W", "error", "-c", code, str(store.root), json.dumps(KEY)]
    processes = [subprocess.Popen([*command, str(number)]) for number in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
