"""Backends that are ONNX Runtime's but for one knob, which injects faults that cannot be had otherwise.

The faults themselves are real: real signals, real exits, real processes. The worker finds this module
through PYTHONPATH, as it would find a user's own backend.
"""

from __future__ import annotations

import ctypes
import os
import signal
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

FAULTS = ("none", "segfault", "exit", "empty", "sigkill", "memory", "stubborn", "hang", "once", "always")


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
    elif fault == "memory":
        hog = [bytearray(os.urandom(1 << 20)) * 64 for _ in range(64)]
        raise AssertionError(f"4 GiB were to be had: {len(hog)}")
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
