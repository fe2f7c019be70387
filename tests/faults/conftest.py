"""Targets over small models, tuned by the command line in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

TARGET = """
schema = 1
name = "faulty"
model = "model.onnx"
backend = "{backend}"
[accuracy]
metric = "lInf"
tolerance = 1e-3
[search]
routes = {routes}
algorithm = "{algorithm}"
[budget]
trial_seconds = {trial_seconds}
[timing]
seconds = 0.1
loads = 1
finalists = 1
confidence = 0.5
"""


@pytest.fixture
def write_target(tmp_path: Path) -> Callable[..., Path]:
    def write(
        model: onnx.ModelProto,
        routes: list[str],
        backend: str = "onnxruntime",
        algorithm: str = "fast",
        trial_seconds: float = 30,
    ) -> Path:
        onnx.save(model, tmp_path / "model.onnx")
        path = tmp_path / "faulty.toml"
        fields: dict[str, Any] = {"backend": backend, "algorithm": algorithm, "trial_seconds": trial_seconds}
        path.write_text(TARGET.format(routes=routes, **fields))
        return path

    return write
