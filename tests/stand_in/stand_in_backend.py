"""A backend for the device that the stand-in of NVML describes: its engines are ONNX Runtime's on the CPU.

They are built, loaded, checked and timed for real; only the device's name is another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from routetune.tasks.engines.base import BuildOrder, Engine, Runner
from routetune.tasks.engines.onnxruntime.backend import OnnxRuntime
from routetune.tasks.routes.knob import KnobDatabase


class CpuAsGpu(OnnxRuntime):
    def knobs(self, device: str) -> KnobDatabase:
        return super().knobs("cpu")

    def versions(self, device: str) -> dict[str, str]:
        return super().versions("cpu")

    def build(self, order: BuildOrder) -> Engine:
        # A line for each build, so that a test can count those of all processes.
        with Path(__file__).with_name("builds").open("a") as builds:
            builds.write(f"{order.model} {dict(order.route)}\n")
        return super().build(replace(order, device="cpu"))

    def load(self, engine: Engine, device: str, settings: Mapping[str, Any]) -> Runner:
        return super().load(engine, "cpu", settings)
