"""The whole flow on a real GPU, by the command line with its own Prefect server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from routetune.data import folder

from conftest import Command
from tests.gpu.here import why_no_cuda

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(why_no_cuda()), reason=why_no_cuda() or "can be used")]

TARGET = """
schema = 1
name = "digits"
model = "digits_cnn.onnx"
backend = "onnxruntime"
[shapes]
x = {{ min = "1x1x8x8", opt = "32x1x8x8", max = "64x1x8x8" }}
[reference]
inputs = "digits.npz"
labels = "y"
ranges = {{ x = [0.0, 1.0] }}
[accuracy]
metric = "lInf"
tolerance = {tolerance}
[search]
routes = ["-use_tf32=[1|0]", "-prefer_nhwc=[0|1]", "-enable_cuda_graph=[0|1]", "-fuse_conv_bias=[0|1]"]
algorithm = "full"
[timing]
seconds = 0.4
finalists = 3
loads = 6
"""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    for name in ("models/digits_cnn.onnx", "inputs/digits.npz"):
        shutil.copy(folder() / name, tmp_path)
    return tmp_path / "digits.toml"


Say = Callable[..., dict[str, Any]]


@pytest.fixture
def say(routetune: Command) -> Say:
    """The answer of a command that ends well."""

    def call(*words: str | Path) -> dict[str, Any]:
        process = routetune(*words, "--json")
        assert process.returncode == 0, process.stderr
        found: dict[str, Any] = json.loads(process.stdout)
        return found

    return call


def within(answer: dict[str, Any], tolerance: float) -> set[str]:
    """The routes whose loss is at most this; a loss that is not finite is no number in JSON."""
    losses = {trial["route"]: trial["loss"] for trial in answer["trials"]}
    return {route for route, loss in losses.items() if isinstance(loss, float) and loss <= tolerance}


def test_from_target_to_publication_and_fresh(say: Say, target: Path) -> None:
    target.write_text(TARGET.format(tolerance=0.02))
    answer = say("tune", target)
    assert answer["state"] == "tuned" and answer["counts"]["trials"] == 16
    # Launching one graph instead of a dozen kernels is most of the time of so small a network.
    assert "-enable_cuda_graph=1" in answer["route"] and answer["speed"]["low"] > 1.3
    eligible = within(answer, 0.02)
    assert "-fuse_conv_bias=1" not in eligible  # wrong outputs: never published
    assert "-prefer_nhwc=1 -fuse_conv_bias=1" in eligible
    assert answer["times"]["winner"]["device_p50"] < answer["times"]["control"]["device_p50"]
    [state] = say("status", target)["targets"]
    assert state["state"] == "fresh"
    assert say("verify", target)["problems"] == []
    assert say("tune", target)["note"] == "fresh, nothing to do"


def test_a_tolerance_that_forbids_tf32_excludes_the_default(say: Say, target: Path) -> None:
    target.write_text(TARGET.format(tolerance=1e-4))
    answer = say("tune", target)
    eligible = within(answer, 1e-4)
    assert eligible and all("-use_tf32=0" in route for route in eligible)
    assert "-use_tf32=0" in answer["route"]
