"""The devices that a target file names: a run has one worker for each of them, and all must be alike."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from routetune.tasks.errors import BadInput
from routetune.tasks.targets import gpu, processor
from routetune.tasks.targets.changes import unlike

#: Every GPU that this process sees.
ALL_GPUS = "cuda:all"
RULE = (
    '"auto", "cpu", sets of cores such as "cpu:0-3" or "cpu:0-3,4-7", "cuda:N" such as "cuda:0", several '
    'GPUs such as "cuda:0,1", or "cuda:all"'
)

_NUMBER = r"(?:0|[1-9]\d{0,3})"
_CORES = rf"{_NUMBER}(?:-{_NUMBER})?(?:\+{_NUMBER}(?:-{_NUMBER})?)*"
_FORM = re.compile(rf"auto|cpu|{ALL_GPUS}|cuda:{_NUMBER}(?:,{_NUMBER})*|cpu:{_CORES}(?:,{_CORES})*", re.ASCII)


def check_devices(text: str) -> None:
    """Refuse what names no devices, and what names one twice.

    Raises:
        ValueError: with the rule that is broken.
    """
    if not _FORM.fullmatch(text):
        raise ValueError(f"must be {RULE}")
    parts = _parts(text)
    if text.startswith("cuda:") and len(set(parts)) < len(parts):
        raise ValueError("must name each GPU once")
    sets = [cores for part in parts if (cores := cores_of(part)) is not None]
    if any(not cores for cores in sets):
        raise ValueError('must have the smaller core first in a range, such as "cpu:0-3"')
    if len(frozenset().union(*sets)) < sum(map(len, sets)):
        raise ValueError("must name each core once: workers that share one disturb each other")


def devices_of(text: str, nvml: gpu.Provider = gpu.load_nvml) -> tuple[str, ...]:
    """The devices, each as "cpu", "cpu:0-3" or "cuda:N": "cuda:0,1" is ("cuda:0", "cuda:1").

    Where NVML cannot tell how many GPUs there are, "cuda:all" is the first: its environment then says that
    nothing is known.
    """
    if text == ALL_GPUS:
        return tuple(f"cuda:{number}" for number in range(max(1, gpu.count(os.environ, nvml))))
    return tuple(_parts(text))


def plain(device: str) -> str:
    """What a backend calls a device: "cpu" whatever the cores, or "cuda:N"."""
    return "cpu" if device.startswith("cpu:") else device


def in_worker(devices: tuple[str, ...]) -> str:
    """What every worker calls its device: of several GPUs each sees its own alone, as "cuda:0"."""
    device = plain(devices[0])
    return device if device == "cpu" or len(devices) == 1 else "cuda:0"


def cores_of(device: str) -> frozenset[int] | None:
    """The cores of "cpu:0-3+8", empty where a range runs backwards; None of a device without such a list."""
    kind, _, listed = device.partition(":")
    if kind != "cpu" or not listed:
        return None
    found: set[int] = set()
    for part in listed.split("+"):
        first, _, last = part.partition("-")
        span = range(int(first), int(last or first) + 1)
        if not span:
            return frozenset()
        found.update(span)
    return frozenset(found)


def usable_cores(device: str) -> int | None:
    """How many cores a worker of this device may run on; None where the system does not tell.

    Raises:
        BadInput: it names cores that this process may not use.
    """
    cores = cores_of(device)
    if cores is None:
        return processor.cores()
    mine = os.sched_getaffinity(0)
    if not cores <= mine:
        beyond = ", ".join(map(str, sorted(cores - mine)))
        raise BadInput(
            f"device {device!r} names core {beyond}, and this process may use {ranges(mine)}: name such cores"
        )
    return len(cores)


def refuse_unlike(what: str, environments: Mapping[str, Mapping[str, str | int]]) -> None:
    """Refuse devices whose environments differ: their times say nothing of each other.

    Args:
        what: what names the devices, to begin the message with.
        environments: the fields of each device's, by its name; the others are compared with the first.

    Raises:
        BadInput: it names the devices that differ, and the fields.
    """
    first, *others = environments
    told = {other: unlike(environments[first], environments[other]) for other in others}
    differing = [f"{other} is not like {first} ({how})" for other, how in told.items() if how]
    if differing:
        raise BadInput(
            f"{what}: {'; '.join(differing)}. Only devices of the same environment may time for one run: "
            "name those that are alike"
        )


def ranges(cores: set[int]) -> str:
    """ "0-3, 8" for {0, 1, 2, 3, 8}."""
    found: list[list[int]] = []
    for core in sorted(cores):
        if found and core == found[-1][1] + 1:
            found[-1][1] = core
        else:
            found.append([core, core])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


def _parts(text: str) -> list[str]:
    kind, _, listed = text.partition(":")
    return [f"{kind}:{part}" for part in listed.split(",")] if listed else [kind]
