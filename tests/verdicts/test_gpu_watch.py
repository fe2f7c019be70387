"""The watch of a GPU: a fake of NVML for what no machine at hand does, and a real GPU where there is one."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
from routetune.tasks.verdicts.conditions import CoreWatch, disturbance, watch_for
from routetune.tasks.verdicts.gpu_watch import GpuWatch

from tests.targets.test_gpu import FakeNvml

OWN = os.getpid()


class BusyNvml(FakeNvml):
    """As FakeNvml, with processes on the board: pid -> percent of its time, or an error to raise."""

    class NVMLError_NotFound(Exception): ...

    def __init__(self, processes: dict[int, int] | Exception, reasons: int = 0, **board: Any) -> None:
        super().__init__(board)
        self.processes, self.reasons = processes, reasons

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any) -> int:
        return self.reasons

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:
        return 412_300

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> Any:
        if isinstance(self.processes, Exception):
            raise self.processes
        return [SimpleNamespace(pid=pid) for pid in self.processes]

    def nvmlDeviceGetProcessUtilization(self, handle: Any, since: int) -> Any:
        assert isinstance(self.processes, dict)
        if not any(self.processes.values()):
            raise self.NVMLError_NotFound
        used = [SimpleNamespace(pid=pid, smUtil=percent) for pid, percent in self.processes.items()]
        return [*used, *used]


@pytest.fixture(autouse=True)
def every_gpu_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_without_nvml_there_is_nothing_to_tell() -> None:
    def absent() -> Any:
        raise ImportError("no pynvml")

    assert GpuWatch(0, absent).state() is None
    assert GpuWatch(3, BusyNvml({})).state() is None  # no such GPU
    assert "gpu" not in CoreWatch(gpu=GpuWatch(0, absent)).state()


def test_clocks_heat_and_why_the_clocks_are_not_higher() -> None:
    state = GpuWatch(0, BusyNvml({OWN: 90}, reasons=0x4 | 0x40)).state()
    assert state is not None
    assert (state["graphics_mhz"], state["celsius"], state["watts"]) == (1980, 31, 412)
    assert state["reasons"] == ["power cap", "hardware thermal slowdown"]
    assert state["slowed_by"] == ["hardware thermal slowdown"]
    assert (state["others"], state["others_percent"]) == (0, 0)


def test_other_processes_are_counted_and_disturb_by_what_they_use() -> None:
    watch = CoreWatch(gpu=GpuWatch(0, BusyNvml({OWN: 50, 7: 30, 8: 12})))
    state = watch.state()
    assert (state["gpu"]["others"], state["gpu"]["others_percent"]) == (2, 42)
    assert disturbance(watch, 0.0, state, 0.15) == "others used 42 % of the GPU"
    idle = CoreWatch(gpu=GpuWatch(0, BusyNvml({OWN: 0, 7: 0}))).state()
    assert idle["gpu"]["others"] == 1 and disturbance(watch, 0.0, idle, 0.15) == ""


def test_in_another_name_space_one_of_the_processes_is_ours() -> None:
    state = GpuWatch(0, BusyNvml({70_000_001: 40})).state()
    assert state is not None and state["others"] == 0


def test_a_gpu_that_slows_itself_down_disturbs() -> None:
    watch = CoreWatch(gpu=GpuWatch(0, BusyNvml({}, reasons=0x20)))
    assert "software thermal slowdown" in disturbance(watch, None, watch.state(), 0.15)


def test_what_one_question_cannot_tell_is_left_out_and_the_rest_is_told() -> None:
    lost, unsupported = FakeNvml.NVMLError_GpuIsLost(), FakeNvml.NVMLError_NotSupported()
    told = GpuWatch(0, BusyNvml(lost, temperature=unsupported)).state()
    assert told is not None and told["graphics_mhz"] == 1980
    assert not {"celsius", "others", "others_percent"} & told.keys()


@pytest.mark.gpu
def test_a_real_gpu_tells() -> None:
    state = watch_for("cuda:0").state()["gpu"]
    assert state["graphics_mhz"] > 0 and state["celsius"] > 0 and state["others"] >= 0
