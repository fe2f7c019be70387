"""TensorRT-RTX's real builder, in processes of its own: which TensorRT is used is process-wide."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from routetune.tasks.engines.worker import Worker

from tests.engines.tensorrt.wheels import rtx_modules

ROOT = Path(__file__).parents[3]


@pytest.fixture
def rtx(tmp_path: Path) -> dict[str, str]:
    """The variables that make TensorRT-RTX the TensorRT of a process."""
    folder = tmp_path / "modules"
    folder.mkdir()
    return {"POLYGRAPHY_USE_TENSORRT_RTX": "1", "PYTHONPATH": str(rtx_modules(folder))}


@pytest.fixture
def worker(rtx: dict[str, str], tmp_path: Path) -> Iterator[Worker]:
    with Worker(tmp_path / "worker", rtx) as worker:
        yield worker


Build = Callable[..., dict[str, Any]]


@pytest.fixture
def build(worker: Worker, tmp_path: Path) -> Build:
    """Builds in the worker for a GPU that need not be there; returns what the worker's build step does."""

    def call(
        model: Path,
        profiles: Any = (),
        route: Any = None,
        seconds: float = 60.0,
        stop_after: float | None = None,
        **settings: Any,
    ) -> dict[str, Any]:
        order = {
            "model": str(model),
            "route": route or {},
            "output": str(tmp_path / "engine"),
            "profiles": list(profiles),
            "settings": {"compute_capabilities": ["8.9"], "seconds": stop_after, **settings},
            "device": "cuda:0",
        }
        arguments = {"backend": "tensorrt", "order": order}
        step = "routetune.tasks.engines.steps:build"
        answer: dict[str, Any] = worker.call(step, arguments, seconds, tmp_path / "step.log")
        return answer

    return call


@pytest.fixture
def in_rtx(rtx: dict[str, str], tmp_path: Path) -> Callable[[str], Any]:
    """Runs a script beside the real library; the JSON on its last line of stdout is the answer."""

    def run(script: str) -> Any:
        variables = os.environ | rtx
        variables["PYTHONPATH"] = f"{rtx['PYTHONPATH']}{os.pathsep}{ROOT}"
        command = [sys.executable, "-c", textwrap.dedent(script)]
        process = subprocess.run(
            command, env=variables, cwd=tmp_path, text=True, capture_output=True, timeout=120
        )
        assert process.returncode == 0, process.stderr
        return json.loads(process.stdout.splitlines()[-1])

    return run
