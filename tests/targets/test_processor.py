from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest
from routetune.tasks.targets import processor

X86 = """processor\t: 0
model name\t: Intel(R) Xeon(R)   CPU
flags\t\t: fpu sse sse2 sse4_1 avx2 avx512_vnni sme smep hypervisor md_clear fma amx_int8

processor\t: 1
model name\t: other
"""
ARM = """processor\t: 0
Features\t: fp asimd sve i8mm
CPU implementer\t: 0x41
CPU part\t: 0xd40
"""


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_x86_and_arm(tmp_path: Path) -> None:
    x86 = write(tmp_path / "x86", {"proc/cpuinfo": X86})
    assert processor.model(x86) == "Intel(R) Xeon(R) CPU"
    assert processor.flags(x86) == "amx_int8 avx2 avx512_vnni fma sse sse2 sse4_1"
    arm = write(tmp_path / "arm", {"proc/cpuinfo": ARM})
    assert processor.model(arm) == "implementer 0x41 part 0xd40"
    assert processor.flags(arm) == "asimd fp i8mm sve"
    assert processor.flags(tmp_path) is None


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "150000 100000\n"}, 1.5),
        # The parent is the tighter one.
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "100000 100000\n",
                "sys/fs/cgroup/a/cpu.max": "50000 100000\n",
            },
            0.5,
        ),
        # In a container: the path is the host's, the mount shows the own group at its top.
        ({"proc/self/cgroup": "0::/docker/77\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2.0),
        # Version 1.
        (
            {
                "proc/self/cgroup": "4:memory:/m\n3:cpu,cpuacct:/a\n",
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "250000\n",
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
            },
            2.5,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "nonsense"}, None),
    ],
)
def test_quota_of_control_groups(tmp_path: Path, files: dict[str, str], expected: float | None) -> None:
    assert processor.quota(write(tmp_path, files)) == expected


def test_cores_follow_affinity() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert processor.cores() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert processor.cores() == len(before)


def test_this_machine() -> None:
    assert processor.architecture() == platform.machine()
    assert processor.model()
    assert processor.flags()
