"""An NVIDIA GPU as NVML describes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

#: What a field holds when the library could not tell. It never equals a real value.
UNKNOWN = "(unknown)"
#: What a field holds when the device has no such thing.
NOT_APPLICABLE = "(not applicable)"

#: What stands for a field of another machine's GPU where this one has none.
ABSENT = "(none here)"

FIELDS = (
    "driver",
    "cuda",
    "gpu.name",
    "gpu.capability",
    "gpu.memory",
    "gpu.multiprocessors",
    "gpu.mig",
    "gpu.ecc",
    "gpu.power_limit",
    "gpu.clocks",
)
#: CUDA cores per multiprocessor by compute capability (CUDA C++ Programming Guide, "Compute Capabilities");
#: NVML counts cores, not multiprocessors.
_CORES = {"7.0": 64, "7.2": 64, "7.5": 64, "8.0": 64, "10.0": 128, "10.3": 128, "11.0": 128, "12.0": 128}
_CORES |= {"8.6": 128, "8.7": 128, "8.9": 128, "9.0": 128, "12.1": 128}

#: Returns the NVML module (nvidia-ml-py's `pynvml`), or raises ImportError.
Provider = Callable[[], Any]


def load_nvml() -> Any:
    """The module `pynvml` of nvidia-ml-py.

    Raises:
        ImportError: it is not installed.
    """
    import pynvml

    return pynvml


def describe(
    index: int, variables: Mapping[str, str], provider: Provider = load_nvml
) -> dict[str, str | int]:
    """What is bound into an environment of the GPU that CUDA calls `index`, every field of FIELDS.

    gpu.memory is in MiB, gpu.power_limit in W (the limit set, not the one momentarily enforced), gpu.clocks
    the application clocks "graphics/memory" in MHz; NVML cannot read clocks locked by nvidia-smi -lgc.
    Whatever NVML cannot tell (not installed, no driver, driver and library of different versions after an
    upgrade, a lost GPU) is UNKNOWN; nothing is raised.
    """
    fields: dict[str, str | int] = dict.fromkeys(FIELDS, UNKNOWN)
    with _session(provider) as nvml:
        if nvml is None:
            return fields
        fields["driver"] = _ask(nvml, lambda: _text(nvml.nvmlSystemGetDriverVersion()))
        fields["cuda"] = _ask(nvml, lambda: _cuda(nvml.nvmlSystemGetCudaDriverVersion_v2()))
        device = _device(nvml, index, variables)
        if device is not None:
            fields |= _device_fields(nvml, device)
    return fields


def momentary(index: int, variables: Mapping[str, str], provider: Provider = load_nvml) -> dict[str, Any]:
    """What is worth recording beside a measurement but binds nothing: UUID, temperature, clocks, throttle."""
    with _session(provider) as nvml:
        device = None if nvml is None else _device(nvml, index, variables)
        if nvml is None or device is None:
            return {}
        board = device.board
        asked = {
            "uuid": lambda: _text(nvml.nvmlDeviceGetUUID(device.handle)),
            "temperature": lambda: int(nvml.nvmlDeviceGetTemperature(board, nvml.NVML_TEMPERATURE_GPU)),
            "graphics_clock": lambda: int(nvml.nvmlDeviceGetClockInfo(board, nvml.NVML_CLOCK_GRAPHICS)),
            "memory_clock": lambda: int(nvml.nvmlDeviceGetClockInfo(board, nvml.NVML_CLOCK_MEM)),
            "throttle_reasons": lambda: int(nvml.nvmlDeviceGetCurrentClocksEventReasons(board)),
        }
        return {name: _ask(nvml, question) for name, question in asked.items()}


def uuid(index: int, variables: Mapping[str, str], provider: Provider = load_nvml) -> str | None:
    """The UUID of the GPU, or MIG instance, that CUDA calls `index`; None where NVML does not tell."""
    found = momentary(index, variables, provider).get("uuid")
    return None if found in (None, UNKNOWN, NOT_APPLICABLE) else str(found)


def count(variables: Mapping[str, str], provider: Provider = load_nvml) -> int:
    """How many devices CUDA sees under these variables; 0 where NVML does not tell."""
    with _session(provider) as nvml:
        found = None if nvml is None else _ask(nvml, lambda: _visible(nvml, variables))
        return len(found) if isinstance(found, list) else 0


def open_device(
    index: int, variables: Mapping[str, str], provider: Provider = load_nvml
) -> tuple[Any, _Device | None]:
    """NVML, kept open, and the device that CUDA calls `index`; None for what cannot be had.

    For a process that asks often; the session ends with the process.
    """
    try:
        nvml = provider()
        nvml.nvmlInit()
    except Exception:  # as in `_session`
        return None, None
    return nvml, _device(nvml, index, variables)


@dataclass(frozen=True)
class _Device:
    """A device as CUDA sees it: a whole board, or one MIG instance on it."""

    handle: Any
    board: Any
    is_mig: bool


@contextmanager
def _session(provider: Provider) -> Iterator[Any]:
    """NVML, initialised, or None where it cannot be had."""
    try:
        nvml = provider()
        nvml.nvmlInit()
    except Exception:  # any failure to reach NVML, of whatever class, means the same: nothing is known
        yield None
        return
    try:
        yield nvml
    finally:
        _ask(nvml, nvml.nvmlShutdown)


def _ask(nvml: Any, question: Callable[[], Any], absent: Sequence[str] = ("NVMLError_NotSupported",)) -> Any:
    """The answer; NOT_APPLICABLE after an error of a class named in `absent`; UNKNOWN after any other."""
    try:
        return question()
    except Exception as error:  # what NVML cannot answer is unknown, and never an error of the user's
        classes = tuple(getattr(nvml, name) for name in absent if hasattr(nvml, name))
        return NOT_APPLICABLE if isinstance(error, classes) else UNKNOWN


def _device(nvml: Any, index: int, variables: Mapping[str, str]) -> _Device | None:
    """The device that CUDA calls `index` under these variables; None where that cannot be told.

    NVML counts boards in PCI order. CUDA counts the fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID: on a
    machine of several kinds of GPU a bare number is ambiguous.
    """
    found = _ask(nvml, lambda: _visible(nvml, variables))
    return found[index] if isinstance(found, list) and index < len(found) else None


def _visible(nvml: Any, variables: Mapping[str, str]) -> list[_Device | None]:
    boards = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    kinds = {_text(nvml.nvmlDeviceGetName(board)) for board in boards}
    ordered = len(kinds) == 1 or variables.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    counted = [_whole_or_first_instance(nvml, board) if ordered else None for board in boards]
    wanted = variables.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return counted
    found: list[_Device | None] = []
    for token in (part.strip() for part in wanted.split(",")):
        if token.isdigit() and int(token) < len(counted):
            found.append(counted[int(token)])
        elif token.startswith("MIG-"):
            handle = nvml.nvmlDeviceGetHandleByUUID(token)
            found.append(_Device(handle, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle), True))
        elif token.startswith("GPU-"):
            named = (board for board in boards if _text(nvml.nvmlDeviceGetUUID(board)).startswith(token))
            found.append(_whole_or_first_instance(nvml, next(named)))
        else:  # CUDA ignores everything from the first invalid entry on
            break
    return found


def _whole_or_first_instance(nvml: Any, board: Any) -> _Device:
    """The board, or, where it is partitioned, its first MIG instance, the one CUDA takes by itself."""
    mode = _ask(nvml, lambda: nvml.nvmlDeviceGetMigMode(board)[0])
    if mode != 1:
        return _Device(board, board, False)
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(board)):
        handle = _ask(nvml, partial(nvml.nvmlDeviceGetMigDeviceHandleByIndex, board, index))
        if handle not in (UNKNOWN, NOT_APPLICABLE):
            return _Device(handle, board, True)
    raise LookupError("partitioned, but without an instance")


def _device_fields(nvml: Any, device: _Device) -> dict[str, str | int]:
    board = device.board
    name = _ask(nvml, lambda: _text(nvml.nvmlDeviceGetName(device.handle)))
    capability = _ask(nvml, lambda: "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(board)))
    return {
        "gpu.name": name,
        "gpu.capability": capability,
        "gpu.memory": _ask(nvml, lambda: int(nvml.nvmlDeviceGetMemoryInfo(device.handle).total) >> 20),
        "gpu.multiprocessors": _ask(nvml, lambda: _multiprocessors(nvml, device, capability)),
        "gpu.mig": name.rpartition("MIG ")[2] if device.is_mig else NOT_APPLICABLE,
        "gpu.ecc": _ask(nvml, lambda: "on" if nvml.nvmlDeviceGetEccMode(board)[0] else "off"),
        "gpu.power_limit": _ask(nvml, lambda: int(nvml.nvmlDeviceGetPowerManagementLimit(board)) // 1000),
        # NVML announces that this function will go away; a library without it has no application clocks.
        "gpu.clocks": _ask(
            nvml,
            lambda: _clocks(nvml, board),
            absent=("NVMLError_NotSupported", "NVMLError_FunctionNotFound"),
        ),
    }


def _multiprocessors(nvml: Any, device: _Device, capability: str) -> str | int:
    if device.is_mig:
        return int(nvml.nvmlDeviceGetAttributes(device.handle).multiprocessorCount)
    cores = int(nvml.nvmlDeviceGetNumGpuCores(device.board))
    per = _CORES.get(capability)
    # On an architecture newer than the table the number of cores tells devices apart just as well.
    return f"{cores} cores" if per is None else cores // per


def _clocks(nvml: Any, board: Any) -> str:
    kinds = (nvml.NVML_CLOCK_GRAPHICS, nvml.NVML_CLOCK_MEM)
    return "/".join(str(int(nvml.nvmlDeviceGetApplicationsClock(board, kind))) for kind in kinds)


def _cuda(version: int) -> str:
    """12080 -> "12.8"."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _text(value: bytes | str) -> str:
    """Older versions of the library return bytes; the same name must give the same key."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
