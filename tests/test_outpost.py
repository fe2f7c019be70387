"""What a process of a cluster does for a run elsewhere, called as it is, without a cluster."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from routetune.tasks import outpost as module
from routetune.tasks.outpost import Outpost, code
from routetune.tasks.store.locks import device_lock
from routetune.tasks.subject import today

from tests.machine import small_model

CORE = min(os.sched_getaffinity(0))
DEVICE = f"cpu:{CORE}"


@pytest.fixture
def outpost() -> Iterator[Outpost]:
    before = dict(os.environ)
    outpost = Outpost()
    yield outpost
    outpost.close()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def order() -> dict[str, Any]:
    return {
        "backend": "onnxruntime",
        "devices": [DEVICE],
        "environment": today("onnxruntime", DEVICE).fields,
        "variables": {},
        "fusions": "",
        "code": code("onnxruntime"),
        "files": {},
        "slots": 2,
        "what": "tuning t",
    }


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_files_go_there_once_and_what_a_step_wrote_comes_back(
    outpost: Outpost, order: dict[str, Any], tmp_path: Path
) -> None:
    told = outpost.open(order)
    assert told["device"].endswith(f": {DEVICE}") and "refused" not in told
    there = told["folder"]
    onnx.save(small_model(), tmp_path / "m.onnx")
    model = (tmp_path / "m.onnx").read_bytes()
    assert outpost.missing({"b": ["m.onnx"]}) == ["b"]
    outpost.put("files/b/m.onnx", sha(model), model)
    assert outpost.missing({"b": ["m.onnx"]}) == [] and outpost.missing({"b": ["m.onnx", "w"]}) == ["b"]

    build = {"model": f"{there}/files/b/m.onnx", "route": {}, "output": f"{there}/run/e.onnx"}
    arguments = {"backend": "onnxruntime", "order": build}
    answer = outpost.call("routetune.tasks.engines.steps:build", arguments, 30, {"e.onnx": None})
    engine = answer["files"]["e.onnx"]
    assert sha(engine) == answer["result"]["digest"]
    assert outpost.missing({sha(engine): [sha(engine)]}) == [], "it need not travel back for its check"

    again = outpost.call("routetune.tasks.engines.steps:nothing", {}, 30, {"e.onnx": sha(engine)})
    assert again["failed"]["outcome"] == "failed" and again["failed"]["error"] == "AttributeError"
    assert b"has no attribute 'nothing'" in again["log"] and again["files"] == {}


@pytest.mark.parametrize("place", ["../x", "run/../../x", "/etc/x", "files/../x", "worker/x", "run", ""])
def test_only_places_for_files_are_written_to(outpost: Outpost, place: str) -> None:
    with pytest.raises(ValueError, match="no place for a file"):
        outpost.put(place, sha(b"x"), b"x")


def test_other_bytes_than_the_digest_says_are_not_kept(outpost: Outpost) -> None:
    with pytest.raises(ValueError, match="do not have SHA-256"):
        outpost.put("run/x", sha(b"x"), b"y")
    assert not [path for path in outpost._folder.rglob("*") if path.is_file()]


def test_a_cluster_s_own_variables_do_not_count(
    outpost: Outpost, order: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert "refused" not in outpost.open(order)
    assert "OMP_NUM_THREADS" not in os.environ


def test_who_may_not_time_for_a_run_says_why(outpost: Outpost, order: dict[str, Any], tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.so"
    plugin.write_bytes(b"theirs")
    other = dict.fromkeys(order["code"], "0")
    absent = {str(tmp_path / "none.so"): sha(b"")}
    for change, told in (
        ({"environment": order["environment"] | {"cpu.cores": 64}}, "(cpu.cores: 64 -> 1)"),
        ({"code": other}, "the code of routetune.tasks.engines.steps is another there"),
        ({"files": {str(plugin): sha(b"ours")}}, "plugin.so has SHA-256"),
        ({"files": absent}, "must be at the same place on each node"),
        ({"fusions": "onnxscript 0"}, "and onnxscript 0 where the run is"),
        ({"devices": ["cpu:9999"]}, "names core 9999"),
    ):
        one = Outpost()
        assert told in one.open(order | change)["refused"]
        one.close()
    with device_lock(DEVICE, what="tuning another"):
        assert "tuning another" in outpost.open(order)["refused"]


def test_files_that_were_not_used_for_longest_make_room(
    outpost: Outpost, order: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    outpost.open(order)
    monkeypatch.setattr(module, "ROOM", 25)
    for number, bundle in enumerate(("a", "b", "c")):
        outpost.put(f"files/{bundle}/x", sha(b"0123456789"), b"0123456789")
        os.utime(outpost._folder / "files" / bundle, (number, number))
    outpost.missing({"a": ["x"]})
    outpost.call("routetune.tasks.engines.steps:versions", {"backend": "onnxruntime"}, 30, {})
    assert outpost.missing({name: ["x"] for name in "abc"}) == ["b"]
