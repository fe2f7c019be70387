"""Two tunes on one device: one waits for the other, is refused, or goes on beside it, as the target says."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from routetune.tasks.devices import lock_name, locked
from routetune.tasks.store.locks import BusyDevice
from routetune.tasks.targets.schema import load_target

from tests.flows.test_stages import adding
from tests.quick import quick
from tests.targets.test_gpu import FakeNvml

HOLD = """
import sys, time
from routetune.tasks.store.locks import device_lock
with device_lock("cpu", what="tuning another"):
    print("held", flush=True)
    time.sleep(float(sys.argv[1]))
"""


@pytest.fixture
def neighbour() -> Iterator[None]:
    """Another process that has the device for two seconds."""
    command = [sys.executable, "-c", HOLD, "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield


def device(folder: Path, rule: str) -> AbstractContextManager[None]:
    import onnx

    onnx.save(adding(), folder / "m.onnx")
    path = folder / "t.toml"
    told = {"budget": {"trial_seconds": 5}, "timing": {"exclusive": rule}}
    path.write_text(quick("plain", "m.onnx", "-enable_mem_pattern=[on|off]", **told))
    return locked(load_target(path), ["cpu"])


def test_require_refuses_and_names_the_holder(neighbour: None, tmp_path: Path) -> None:
    with pytest.raises(BusyDevice, match="tuning another"), device(tmp_path, "require"):
        pass


def test_warn_goes_on_beside_it(neighbour: None, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="measuring beside it"), device(tmp_path, "warn"):
        pass


def test_wait_says_so_and_waits(neighbour: None, tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.warns(UserWarning, match="waiting for it"), device(tmp_path, "wait"):
        assert time.monotonic() - started > 0.5


def test_a_gpu_is_locked_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a fake of NVML, as there is no GPU here; tests/gpu asks a real one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    nvml = FakeNvml({}, {})
    assert lock_name("cuda:0", nvml) == "GPU-1"
    assert lock_name("cuda:1", nvml) == "cuda:1"  # CUDA would see none: the backend refuses it later
    assert lock_name("cpu", nvml) == "cpu"
