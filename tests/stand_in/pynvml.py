"""A stand-in for NVML: no machine of the tests has a GPU whose driver could be moved under it.

It says what `machine.json` beside it says when it is asked: {"driver": "535.171.04"}, {"error": "..."} as
right after an upgrade, or {"missing": true} as where the library is not installed. "boards" is how many GPUs
there are, "watts" the power limit of each.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NVML_CLOCK_GRAPHICS, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 0, 2, 0


class NVMLError(Exception): ...


class NVMLError_NotSupported(NVMLError): ...


def _machine() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_name("machine.json").read_text())
    return found


if _machine().get("missing"):
    raise ImportError("No module named 'pynvml'")


def nvmlInit() -> None:
    if error := _machine().get("error"):
        raise NVMLError(error)


def nvmlShutdown() -> None: ...


def nvmlSystemGetDriverVersion() -> str:
    return str(_machine()["driver"])


def nvmlSystemGetCudaDriverVersion_v2() -> int:
    return 12020


def nvmlDeviceGetCount() -> int:
    return int(_machine().get("boards", 1))


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlDeviceGetName(board: int) -> str:
    return "NVIDIA L4"


def nvmlDeviceGetUUID(board: int) -> str:
    return f"GPU-{board}"


def nvmlDeviceGetMigMode(board: int) -> list[int]:
    raise NVMLError_NotSupported


def nvmlDeviceGetCudaComputeCapability(board: int) -> tuple[int, int]:
    return 8, 9


def nvmlDeviceGetMemoryInfo(board: int) -> Any:
    return SimpleNamespace(total=23_034 << 20)


def nvmlDeviceGetNumGpuCores(board: int) -> int:
    return 58 * 128


def nvmlDeviceGetEccMode(board: int) -> list[int]:
    return [1, 1]


def nvmlDeviceGetPowerManagementLimit(board: int) -> int:
    watts: list[int] = _machine().get("watts", [72] * nvmlDeviceGetCount())
    return 1000 * watts[board]


def nvmlDeviceGetApplicationsClock(board: int, kind: int) -> int:
    return {NVML_CLOCK_GRAPHICS: 2040, NVML_CLOCK_MEM: 6251}[kind]
