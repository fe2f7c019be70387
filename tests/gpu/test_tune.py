"""The whole flow on a real GPU, by the command line with its own Prefect server."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
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


SLOW = """
schema = 1
name = "depthwise"
model = "depthwise.onnx"
backend = "onnxruntime"
[accuracy]
tolerance = "inf"
[search]
routes = ["-cudnn_conv_algo_search=[EXHAUSTIVE|HEURISTIC|DEFAULT]"]
algorithm = "full"
[timing]
seconds = 2.0
width = 0.0001
loads = 6
finalists = 3
"""


def depthwise(channels: int = 384, layers: int = 6) -> onnx.ModelProto:
    """Convolutions channel by channel, eight images, as in EfficientNet."""
    weight = np.random.default_rng(0).standard_normal((channels, 1, 5, 5)).astype(np.float32) / 5
    names = ["x", *(f"h{at}" for at in range(1, layers)), "y"]
    nodes = [
        helper.make_node("Conv", [before, "w"], [after], group=channels, pads=[2, 2, 2, 2])
        for before, after in pairwise(names)
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, channels, 28, 28]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


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


def test_a_hopeless_route_is_abandoned_early(say: Say, tmp_path: Path) -> None:
    """cuDNN's DEFAULT search was seen to make EfficientNet 160 times slower."""
    onnx.save(depthwise(), tmp_path / "depthwise.onnx")
    (tmp_path / "slow.toml").write_text(SLOW)
    answer = say("tune", tmp_path / "slow.toml")
    trials = {trial["route"]: trial for trial in answer["trials"]}
    slow = trials["-cudnn_conv_algo_search=DEFAULT"]
    if slow["speed"] > 0.3:
        pytest.skip(f"DEFAULT has {slow['speed']:.2f}x the speed here: nothing is hopeless")
    assert slow["abandoned"] and answer["route"] != slow["route"]
    # The others are measured for all of their two seconds, since nothing is as narrow as they are told.
    heuristic = trials["-cudnn_conv_algo_search=HEURISTIC"]
    assert heuristic["abandoned"] or slow["seconds"]["timing"] < heuristic["seconds"]["timing"]
