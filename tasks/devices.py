"""The devices of one run: locked for it alone, each with a worker that sees no other."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
from routetune.tasks.engines.attempts import Attempts
from routetune.tasks.engines.cuda import number_of
from routetune.tasks.engines.fleet import Fleet, Member
from routetune.tasks.engines.worker import Worker
from routetune.tasks.store.locks import BusyDevice, device_lock
from routetune.tasks.targets import gpu
from routetune.tasks.targets.devices import cores_of, plain
from routetune.tasks.targets.schema import Target

#: Share of the free memory that all workers of a run may take together.
MEMORY_SHARE = 0.9


def device_name(device: str, nvml: gpu.Provider = gpu.load_nvml) -> str:
    """What records call a device: a GPU by its UUID, by its number only where NVML does not tell."""
    if plain(device) == "cpu":
        return device
    return gpu.uuid(number_of(device), os.environ, nvml) or device


def lock_name(device: str, nvml: gpu.Provider = gpu.load_nvml) -> str:
    """What every process calls a device: under another CUDA_VISIBLE_DEVICES "cuda:0" is another GPU.

    All cores have one lock: runs on some of them disturb each other through memory and clocks.
    """
    return "cpu" if plain(device) == "cpu" else device_name(device, nvml)


@contextmanager
def locked(target: Target, devices: Sequence[str], patience: float | None = None) -> Iterator[None]:
    """The devices, alone where the target asks for that: "wait" for it, "require" it, or "warn" and go on.

    In the same order for all processes, so that two runs that share some cannot wait for each other.
    """
    rule, what = target.timing.exclusive, f"tuning {target.name}"
    with ExitStack() as stack:
        for device in sorted(set(map(lock_name, devices))):
            try:
                stack.enter_context(device_lock(device, wait=False, what=what))
            except BusyDevice as busy:
                if rule == "require":
                    raise
                if rule == "wait":
                    warnings.warn(f"{busy}; waiting for it, as the target says", stacklevel=2)
                    stack.enter_context(device_lock(device, timeout=patience, what=what))
                else:
                    warnings.warn(f"{busy}; measuring beside it, as the target says", stacklevel=2)
        yield


@contextmanager
def fleet_of(devices: Sequence[str], folder: Path) -> Iterator[Fleet]:
    """A worker for each device, ended at the end.

    Args:
        folder: where they work.
    """
    limit = int(psutil.virtual_memory().available * MEMORY_SHARE / len(devices))
    with ExitStack() as stack:
        members = []
        for number, device in enumerate(devices):
            alone = {} if len(devices) == 1 else only(device)
            worker = Worker(folder / f"worker-{number}", alone, limit, cores_of(device))
            stack.enter_context(worker)
            members.append(Member(device_name(device), number, Attempts(worker)))
        yield Fleet(members)


def only(device: str, nvml: gpu.Provider = gpu.load_nvml) -> dict[str, str]:
    """The variables under which CUDA sees one GPU of this process's alone, as "cuda:0"; none for cores."""
    if plain(device) == "cpu":
        return {}
    number = number_of(device)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    token = visible[number].strip() if number < len(visible) and visible != [""] else str(number)
    return {"CUDA_VISIBLE_DEVICES": gpu.uuid(number, os.environ, nvml) or token}
