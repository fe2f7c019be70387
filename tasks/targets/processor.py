"""The host's processor, as far as it shapes an engine or its times."""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

#: Flags of an x86 processor that name instruction sets. The others come and go with kernels and microcode
#: (mitigations, virtualisation, power), and say nothing about which kernels a backend picks.
_X86_INSTRUCTIONS = re.compile(
    r"(s?sse|avx|amx|fma|f16c|bmi|popcnt|aes|vaes|sha|gfni|p?clmul|vp?clmul|movbe|adx|abm|lzcnt|xop|cx16|3dnow).*"
)


def architecture() -> str | None:
    """Such as "x86_64"."""
    return platform.machine() or None


def model(root: Path = Path("/")) -> str | None:
    """The processor's name; on Arm, which gives none, its implementer and part number."""
    fields = _cpuinfo(root)
    if fields.get("model name"):
        return fields["model name"]
    if fields.get("CPU part"):
        return f"implementer {fields.get('CPU implementer', '?')} part {fields['CPU part']}"
    return fields.get("cpu") or platform.processor() or None


def flags(root: Path = Path("/")) -> str | None:
    """The instruction sets, sorted, separated by spaces; None where the kernel does not tell."""
    fields = _cpuinfo(root)
    if "flags" in fields:
        found = {flag for flag in fields["flags"].split() if _X86_INSTRUCTIONS.fullmatch(flag)}
    elif "Features" in fields or "isa" in fields:  # Arm, RISC-V: nothing but instruction sets
        found = set((fields.get("Features") or fields["isa"]).split())
    else:
        return None
    return " ".join(sorted(found))


def cores() -> int | None:
    """How many cores this process may run on, by affinity."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def quota(root: Path = Path("/")) -> float | None:
    """Cores' worth of time that the control groups of this process grant it; None where there is no limit.

    Version 2 keeps "max 100000" or "150000 100000" in cpu.max, version 1 the same two numbers in two files,
    with -1 for no limit. A group is bound by its parents as well, so the smallest counts.
    """
    limits = [limit for folder in _groups(root) if (limit := _limit(folder)) is not None]
    return min(limits) if limits else None


def _cpuinfo(root: Path) -> dict[str, str]:
    """The fields of the first processor."""
    try:
        text = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): " ".join(value.split()) for key, _, value in lines}


def _groups(root: Path) -> Iterator[Path]:
    """The folders of this process's control groups that can limit its processor time, parents included."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number != "0" and "cpu" not in controllers.split(","):
            continue
        mounts = ("",) if number == "0" else ("cpu", "cpu,cpuacct")
        for base in (root / "sys/fs/cgroup" / mount for mount in mounts):
            # Inside a container the path is often the host's, while the mount shows the own group at its top.
            inner = Path(group.lstrip("/"))
            yield from (base / part for part in (inner, *inner.parents))


def _limit(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").exists():
            granted, period = (folder / "cpu.max").read_text().split()
        else:
            granted = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        limit = math.inf if granted == "max" else float(granted) / float(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
    return limit if 0 < limit < math.inf else None
