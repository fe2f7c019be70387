"""Targets over small models, tuned by the command line in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from tests.quick import quick


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
        text = quick(
            "faulty",
            "model.onnx",
            routes,
            backend,
            search={"algorithm": algorithm},
            budget={"trial_seconds": trial_seconds},
            timing={"seconds": 0.1},
        )
        path.write_text(text)
        return path

    return write
