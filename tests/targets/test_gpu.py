from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from routetune.tasks.targets.gpu import FIELDS, NOT_APPLICABLE, UNKNOWN, describe, momentary, uuid


class FakeNvml:
    """A fake of pynvml for fault injection: no machine has all of these boards and failures at hand.

    `boards` are dicts of answers; an answer that is an exception is raised. Handles are (board, instance).
    """

    NVML_CLOCK_GRAPHICS, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 0, 2, 0

    class NVMLError_NotSupported(Exception): ...

    class NVMLError_FunctionNotFound(Exception): ...

    class NVMLError_GpuIsLost(Exception): ...

    def __init__(self, *boards: dict[str, Any], driver: Any = "580.159.04") -> None:
        self.boards = boards
        self.driver = driver
        self.sessions = 0

    def __call__(self) -> FakeNvml:
        return self

    def nvmlInit(self) -> None:
        self.sessions += 1

    def nvmlShutdown(self) -> None:
        self.sessions -= 1

    def nvmlSystemGetDriverVersion(self) -> Any:
        return self.answer(self.driver)

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 13000

    def nvmlDeviceGetCount(self) -> int:
        return len(self.boards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return (index, None)

    def nvmlDeviceGetMigMode(self, board: Any) -> list[int]:
        return [1, 1] if "instances" in self.boards[board[0]] else [0, 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, board: Any) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, board: Any, index: int) -> Any:
        instances = self.boards[board[0]]["instances"]
        if index not in instances:
            raise self.NVMLError_NotSupported
        return (board[0], index)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: Any) -> Any:
        return (handle[0], None)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:
        return next(
            (b, i) for b, board in enumerate(self.boards) for i in board["instances"] if uuid == f"MIG-{b}{i}"
        )

    def nvmlDeviceGetAttributes(self, handle: Any) -> Any:
        return type("Attributes", (), {"multiprocessorCount": 16})

    def nvmlDeviceGetName(self, handle: Any) -> Any:
        name = self.get(handle, "name", "NVIDIA H200")
        return name if handle[1] is None else f"{name} MIG 1g.18gb"

    def nvmlDeviceGetUUID(self, handle: Any) -> Any:
        return self.get(handle, "uuid", f"GPU-{handle[0]}")

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> Any:
        return self.get(handle, "capability", (9, 0))

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        total = self.get(handle, "memory", 141 << 30) // (1 if handle[1] is None else 8)
        return type("Memory", (), {"total": total})

    def nvmlDeviceGetNumGpuCores(self, handle: Any) -> Any:
        return self.get(handle, "cores", 132 * 128)

    def nvmlDeviceGetEccMode(self, handle: Any) -> Any:
        return self.get(handle, "ecc", [1, 1])

    def nvmlDeviceGetPowerManagementLimit(self, handle: Any) -> Any:
        return self.get(handle, "power", 700_000)

    def nvmlDeviceGetApplicationsClock(self, handle: Any, kind: int) -> Any:
        return self.get(handle, "clocks", {0: 1980, 2: 3201})[kind]

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> Any:
        return self.get(handle, "temperature", 31)

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: int) -> Any:
        return 1980

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any) -> Any:
        return 0

    def get(self, handle: Any, field: str, default: Any) -> Any:
        return self.answer(self.boards[handle[0]].get(field, default))

    def answer(self, value: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value


def missing() -> Any:
    raise ImportError("No module named 'pynvml'")


class Mismatched(FakeNvml):
    """After an upgrade, before the reboot: the library does not fit the loaded driver."""

    def nvmlInit(self) -> None:
        raise RuntimeError("Driver/library version mismatch")


H200 = {
    "driver": "580.159.04",
    "cuda": "13.0",
    "gpu.name": "NVIDIA H200",
    "gpu.capability": "9.0",
    "gpu.memory": 141 * 1024,
    "gpu.multiprocessors": 132,
    "gpu.mig": NOT_APPLICABLE,
    "gpu.ecc": "on",
    "gpu.power_limit": 700,
    "gpu.clocks": "1980/3201",
}


def test_a_whole_board() -> None:
    nvml = FakeNvml({})
    assert describe(0, {}, nvml) == H200
    assert tuple(describe(0, {}, nvml)) == FIELDS
    assert nvml.sessions == 0


def test_bytes_and_text_are_one_name() -> None:
    """G49."""
    found = [
        describe(0, {}, FakeNvml({"name": name}, driver=driver))
        for name, driver in [(b"L4", b"5"), ("L4", "5")]
    ]
    assert found[0] == found[1]
    assert found[0]["gpu.name"] == "L4"


@pytest.mark.parametrize("provider", [missing, Mismatched({})], ids=["no NVML", "mismatch after an upgrade"])
def test_without_nvml_everything_is_unknown_and_nothing_raised(provider: Callable[[], Any]) -> None:
    assert describe(0, {}, provider) == dict.fromkeys(FIELDS, UNKNOWN)
    assert momentary(0, {}, provider) == {}


def test_unsupported_is_not_unknown() -> None:
    boards = FakeNvml(
        {
            "ecc": FakeNvml.NVMLError_NotSupported(),
            "clocks": FakeNvml.NVMLError_FunctionNotFound(),
            "power": FakeNvml.NVMLError_GpuIsLost(),
            "cores": FakeNvml.NVMLError_FunctionNotFound(),
        }
    )
    changed = {
        "gpu.ecc": NOT_APPLICABLE,
        "gpu.clocks": NOT_APPLICABLE,
        "gpu.power_limit": UNKNOWN,
        "gpu.multiprocessors": UNKNOWN,
    }
    assert describe(0, {}, boards) == {**H200, **changed}


def test_a_lost_device_leaves_the_driver_known() -> None:
    found = describe(0, {}, FakeNvml({"name": FakeNvml.NVMLError_GpuIsLost()}))
    assert (found["driver"], found["gpu.name"], found["gpu.memory"]) == ("580.159.04", UNKNOWN, UNKNOWN)


def test_an_architecture_newer_than_the_table_still_has_a_size() -> None:
    assert describe(0, {}, FakeNvml({"capability": (99, 0)}))["gpu.multiprocessors"] == "16896 cores"


def test_a_mig_instance() -> None:
    nvml = FakeNvml({"instances": [2, 5]})
    expected = {
        **H200,
        "gpu.name": "NVIDIA H200 MIG 1g.18gb",
        "gpu.mig": "1g.18gb",
        "gpu.multiprocessors": 16,
    }
    expected["gpu.memory"] = 141 * 128
    assert describe(0, {}, nvml) == expected
    assert describe(0, {"CUDA_VISIBLE_DEVICES": "MIG-05"}, nvml) == expected
    assert describe(0, {"CUDA_VISIBLE_DEVICES": "MIG-06"}, nvml)["gpu.name"] == UNKNOWN


@pytest.mark.parametrize(
    ("index", "variables", "expected"),
    [
        (0, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "L4"),
        (1, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "H200"),
        (2, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, UNKNOWN),
        # CUDA counts the fastest first, NVML by bus: a bare number may mean either.
        (0, {}, UNKNOWN),
        (0, {"CUDA_VISIBLE_DEVICES": "1"}, UNKNOWN),
        (0, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1,0"}, "H200"),
        (1, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1,7,0"}, UNKNOWN),
        (0, {"CUDA_VISIBLE_DEVICES": "GPU-1"}, "H200"),
        (0, {"CUDA_VISIBLE_DEVICES": ""}, UNKNOWN),
    ],
)
def test_the_device_is_the_one_that_cuda_means(index: int, variables: dict[str, str], expected: str) -> None:
    assert describe(index, variables, FakeNvml({"name": "L4"}, {"name": "H200"}))["gpu.name"] == expected


def test_boards_of_one_kind_need_no_order() -> None:
    assert describe(1, {}, FakeNvml({}, {})) == H200
    assert momentary(1, {}, FakeNvml({}, {}))["uuid"] == "GPU-1"


@pytest.mark.gpu
def test_a_real_gpu_has_no_unknown_field() -> None:
    import os

    found = describe(0, os.environ)
    assert UNKNOWN not in found.values(), found
    assert momentary(0, os.environ)["uuid"].startswith(("GPU-", "MIG-"))


def test_the_uuid_is_the_same_however_cuda_counts() -> None:
    nvml = FakeNvml({}, {}, {"instances": (3,)})
    ordered = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert uuid(1, ordered, nvml) == "GPU-1"
    assert uuid(0, ordered | {"CUDA_VISIBLE_DEVICES": "1,0"}, nvml) == "GPU-1"
    assert uuid(1, ordered | {"CUDA_VISIBLE_DEVICES": "1,0"}, nvml) == "GPU-0"
    assert uuid(7, ordered, nvml) is None
    lost = FakeNvml({"uuid": FakeNvml.NVMLError_GpuIsLost()})
    assert uuid(0, {}, lost) is None
    assert nvml.sessions == lost.sessions == 0
