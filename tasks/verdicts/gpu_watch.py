"""What NVML tells of a GPU while something is timed on it: clocks, heat, throttling, other processes.

NVML comes from nvidia-ml-py and is only loaded for a GPU. Whatever it cannot tell is left out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from routetune.tasks.targets.gpu import NOT_APPLICABLE, UNKNOWN, Provider, load_nvml, open_device

#: Clock event reasons (nvml.h, nvmlClocksEventReasons) by bit. The power cap is the card's own way of working
#: under load; the ones in _SLOWED mean that something is wrong with the place it works in.
REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}
_SLOWED = 0x8 | 0x20 | 0x40 | 0x80


class GpuWatch:
    """Asks NVML about one GPU, with one session for the life of the process.

    Args:
        index: the GPU's number as CUDA counts.
        provider: gives the NVML module, or raises where there is none.
    """

    def __init__(self, index: int, provider: Provider = load_nvml) -> None:
        self._nvml, self._device = open_device(index, os.environ, provider)
        self._handle = None if self._device is None else self._device.handle
        self._seen = int(time.time() * 1e6)

    def state(self) -> dict[str, Any] | None:
        """What the GPU is like now, as plain JSON, or None where NVML tells nothing at all.

        "graphics_mhz", "memory_mhz", "celsius", "watts"; "reasons": why the clocks are not higher, of which
        "slowed_by" should not be; "others": processes on it besides this one; "others_percent": its time that
        those used since the last call.
        """
        if self._nvml is None or self._device is None:
            return None
        told = {name: self._ask(question) for name, question in self._questions().items()}
        known = {name: value for name, value in told.items() if value is not None}
        bits = known.pop("bits", None)
        if bits is not None:
            known["reasons"] = _names(bits)
            known["slowed_by"] = _names(bits & _SLOWED)
        return known or None

    def _questions(self) -> dict[str, Callable[[], Any]]:
        nvml, board = self._nvml, None if self._device is None else self._device.board
        return {
            "graphics_mhz": lambda: int(nvml.nvmlDeviceGetClockInfo(board, nvml.NVML_CLOCK_GRAPHICS)),
            "memory_mhz": lambda: int(nvml.nvmlDeviceGetClockInfo(board, nvml.NVML_CLOCK_MEM)),
            "celsius": lambda: int(nvml.nvmlDeviceGetTemperature(board, nvml.NVML_TEMPERATURE_GPU)),
            "watts": lambda: round(nvml.nvmlDeviceGetPowerUsage(board) / 1000),
            "bits": lambda: int(nvml.nvmlDeviceGetCurrentClocksEventReasons(board)),
            "others": lambda: len(self._strangers()),
            "others_percent": self._others_percent,
        }

    def _strangers(self) -> set[int]:
        """Processes on the device that are not this one.

        In a container NVML may count processes in the host's name space, where ours has a number that we do
        not know; then one of them is taken for us.
        """
        found = {int(one.pid) for one in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)}
        own = {os.getpid()} if os.getpid() in found else set(sorted(found)[:1])
        return found - own

    def _others_percent(self) -> int:
        strangers = self._strangers()
        if not strangers:
            return 0
        now = int(time.time() * 1e6)
        try:
            used = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, self._seen)
        except Exception as error:
            if type(error).__name__ == "NVMLError_NotFound":  # nobody used it since
                return 0
            raise
        finally:
            self._seen = now
        # A process may have several samples since the last call.
        most = {pid: max([u.smUtil for u in used if u.pid == pid], default=0) for pid in strangers}
        return min(sum(most.values()), 100)

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            answer = question()
        except Exception:  # of whatever class: what NVML cannot tell is no error of the measurement's
            return None
        return None if answer in (UNKNOWN, NOT_APPLICABLE) else answer


def _names(bits: int) -> list[str]:
    return [name for bit, name in REASONS.items() if bits & bit]
