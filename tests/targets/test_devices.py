"""The devices that a target file names: how they are written, and that all must be alike."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from routetune.tasks.devices import only
from routetune.tasks.errors import BadInput
from routetune.tasks.subject import open_subject
from routetune.tasks.targets.devices import (
    check_devices,
    cores_of,
    devices_of,
    in_worker,
    ranges,
    refuse_unlike,
)
from routetune.tasks.targets.environment import observe

from tests.machine import Machine
from tests.targets.test_gpu import FakeNvml

MINE = sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("text", "devices", "worker"),
    [
        ("cpu", ("cpu",), "cpu"),
        ("cpu:0-3", ("cpu:0-3",), "cpu"),
        ("cpu:0-3+8,4", ("cpu:0-3+8", "cpu:4"), "cpu"),
        ("cuda:1", ("cuda:1",), "cuda:1"),
        ("cuda:3,1", ("cuda:3", "cuda:1"), "cuda:0"),
    ],
)
def test_one_worker_for_each_device(text: str, devices: tuple[str, ...], worker: str) -> None:
    check_devices(text)
    assert devices_of(text) == devices
    assert in_worker(devices) == worker


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("gpu", "cuda:all"),
        ("cuda:", "cuda:0,1"),
        ("cuda:01", "cuda:0,1"),
        ("cuda:0-3", "cuda:0,1"),
        ("cuda:0,,1", "cuda:0,1"),
        ("cuda:0,cpu", "cuda:0,1"),
        ("cpu:all", "cpu:0-3"),
        ("cuda:0,1,0", "each GPU once"),
        ("cpu:0,0", "each core once"),
        ("cpu:0-3,3", "each core once"),
        ("cpu:3-0", "smaller core first"),
    ],
)
def test_what_names_no_devices_is_refused_with_the_rule(text: str, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        check_devices(text)


def test_all_gpus_are_those_that_this_process_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a fake of NVML, as there is no machine with that many here."""
    nvml = FakeNvml({}, {}, {})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert devices_of("cuda:all", nvml) == ("cuda:0", "cuda:1", "cuda:2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    assert devices_of("cuda:all", nvml) == ("cuda:0", "cuda:1")
    assert devices_of("cuda:all", FakeNvml(driver=RuntimeError("mismatch"))) == ("cuda:0",)


def test_a_worker_sees_its_own_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    nvml = FakeNvml({}, {}, {})
    assert only("cuda:0", nvml) == {"CUDA_VISIBLE_DEVICES": "GPU-2"}
    assert only("cuda:1", nvml) == {"CUDA_VISIBLE_DEVICES": "GPU-0"}
    unreadable = FakeNvml({"uuid": RuntimeError("lost")})
    assert only("cuda:1", unreadable) == {"CUDA_VISIBLE_DEVICES": "0"}, "the second of those that we see"
    assert only("cpu:0-3") == {}


def test_an_environment_has_the_cores_of_its_device() -> None:
    versions = {"onnxruntime": "1"}
    whole = observe("onnxruntime", "cpu", versions).fields
    one = observe("onnxruntime", f"cpu:{MINE[0]}", versions).fields
    assert whole["cpu.cores"] == len(MINE) and one["cpu.cores"] == 1
    assert {name for name in whole if whole[name] != one[name]} <= {"cpu.cores"}
    assert one["device"] == "cpu"


def test_cores_that_this_process_may_not_use_are_refused() -> None:
    with pytest.raises(BadInput, match=r"names core 9999, and this process may use .*\d"):
        observe("onnxruntime", f"cpu:{MINE[0]}+9999", {})


def test_devices_that_differ_are_refused_by_name_with_the_fields() -> None:
    alike = {"device": "cuda", "gpu.name": "NVIDIA L4", "driver": "535"}
    refuse_unlike("t.toml", {"cuda:0": alike, "cuda:1": dict(alike)})
    other = alike | {"gpu.name": "NVIDIA L40S", "gpu.memory": 46068}
    with pytest.raises(BadInput) as refused:
        refuse_unlike("t.toml", {"cuda:0": alike, "cuda:1": dict(alike), "cuda:2": other})
    told = str(refused.value)
    assert told.startswith("t.toml: cuda:2 is not like cuda:0 (")
    assert "gpu.name: NVIDIA L4 -> NVIDIA L40S" in told and "gpu.memory: " in told and "cuda:1" not in told


@pytest.mark.skipif(len(MINE) < 3, reason="a set of one core and one of two need three")
def test_sets_of_unlike_size_are_refused_before_anything_is_built(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine")
    a, b, c = MINE[:3]
    target = machine.write_target(tmp_path / "t.toml", backend="onnxruntime", device=f"cpu:{a},{b}+{c}")
    with pytest.raises(BadInput, match=r"t\.toml: engine\.device = .* is not like .* \(cpu\.cores: 1 -> 2\)"):
        open_subject(target)


def test_ranges_of_cores() -> None:
    assert cores_of("cpu:0-2+8") == {0, 1, 2, 8}
    assert cores_of("cpu") is None and cores_of("cuda:0") is None
    assert ranges({0, 1, 2, 8}) == "0-2, 8"
