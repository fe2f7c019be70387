"""Backends that are ONNX Runtime's but for one knob, which injects faults that cannot be had otherwise.

The faults themselves are real: real signals, real exits, real processes. The worker finds this module
through PYTHONPATH, as it would find a user's own backend.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from routetune.tasks.engines.base import BuildOrder, Engine
from routetune.tasks.engines.onnxruntime.backend import OnnxRuntime
from routetune.tasks.routes.knob import Knob, KnobDatabase

FAULTS = (
    *("none", "segfault", "abort", "division", "exit", "empty", "sigkill", "memory", "exhaust"),
    *("stubborn", "hang", "half", "flood", "once", "always"),
)
#: What a flood prints, in MiB.
FLOOD = 64


class FaultyBackend(OnnxRuntime):
    def knobs(self, device: str) -> KnobDatabase:
        database = super().knobs(device)
        return database.merged(KnobDatabase(database.version, [Knob("+fault", FAULTS, "none", "injected")]))

    def build(self, order: BuildOrder) -> Engine:
        route: Mapping[str, str] = dict(order.route)
        fault = route.pop("+fault", "none")  # type: ignore[attr-defined]
        inject(fault, order.output)
        engine = super().build(replace(order, route=route))
        if fault == "empty":
            engine.path.write_bytes(b"")
        return engine


def inject(fault: str, output: Path) -> None:
    if fault == "segfault":
        ctypes.string_at(0)
    elif fault == "exit":
        output.write_bytes(b"")
        os._exit(0)
    elif fault == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault in ("abort", "division"):
        os.kill(os.getpid(), signal.SIGABRT if fault == "abort" else signal.SIGFPE)
    elif fault == "memory":
        hog = [bytearray(os.urandom(1 << 20)) * 64 for _ in range(64)]
        raise AssertionError(f"4 GiB were to be had: {len(hog)}")
    elif fault == "exhaust":
        exhaust_memory()
    elif fault == "half":
        os.write(int(sys.argv[2]), struct.pack(">I", 100) + b"{")  # an answer that breaks off
        time.sleep(600)
    elif fault == "flood":
        for _ in range(FLOOD):
            os.write(1, b"nothing to see here\n" * ((1 << 20) // 20))
    elif fault == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        grandchild = subprocess.Popen([sys.executable, "-c", child])
        output.with_suffix(".pid").write_text(f"{os.getpid()} {grandchild.pid}")
        time.sleep(600)
    elif fault == "hang":
        time.sleep(600)
    elif fault == "once":
        marker = output.parent / "once"
        if not marker.exists():
            marker.touch()
            os.abort()
    elif fault == "always":
        os.abort()


def exhaust_memory() -> None:
    """Take all there is, where that is 128 MiB more than the process has: others need memory here, too."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    room = pages * resource.getpagesize() + 128 * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (room, before[1]))
    try:
        hog = [bytearray(os.urandom(1 << 20)) * 64 for _ in range(64)]
        raise AssertionError(f"4 GiB were to be had: {len(hog)}")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


class BreakingBackend(OnnxRuntime):
    """From the first build with `+breaks=yes` on, nothing builds or loads any more, as with a lost device.

    ORT_TEST_BROKEN names the file that stands for the broken state, since it must outlive the worker.
    """

    def knobs(self, device: str) -> KnobDatabase:
        database = super().knobs(device)
        return database.merged(
            KnobDatabase(database.version, [Knob("+breaks", ("no", "yes"), "no", "injected")])
        )

    def build(self, order: BuildOrder) -> Engine:
        route = dict(order.route)
        if route.pop("+breaks", "no") == "yes" and "ORT_TEST_MENDED" not in os.environ:
            Path(os.environ["ORT_TEST_BROKEN"]).touch()
        self._abort_if_broken()
        return super().build(replace(order, route=route))

    def load(self, engine: Engine, device: str, settings: Mapping[str, Any]) -> Any:
        self._abort_if_broken()
        return super().load(engine, device, settings)

    @staticmethod
    def _abort_if_broken() -> None:
        if Path(os.environ["ORT_TEST_BROKEN"]).exists():
            os.abort()
