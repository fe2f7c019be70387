"""Rewritten models on the vendor's real parser and builder: explicit Q/DQ, and 16-bit floats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from routetune.data import folder
from routetune.tasks.engines.worker import Worker
from routetune.tasks.targets.quantization import Quantization

from tests.engines.rewriting import calibrated, rewritten
from tests.engines.tensorrt.conftest import Build

pytestmark = pytest.mark.tensorrt_rtx

DIGITS = folder() / "models" / "digits_cnn.onnx"
PROFILE: Any = {"x": {"min": [1, 1, 8, 8], "opt": [32, 1, 8, 8], "max": [64, 1, 8, 8]}}


@pytest.mark.parametrize(
    ("nodes", "half"),
    [(["conv1", "conv2", "conv3", "classifier"], False), (["conv2"], True)],
    ids=["all", "half"],
)
def test_a_rewritten_model_becomes_an_engine(
    nodes: list[str], half: bool, build: Build, worker: Worker, tmp_path: Path
) -> None:
    settings = Quantization().settings("tensorrt")
    assert (settings["activations"], settings["symmetric"], settings["per_channel"]) == ("int8", True, True)
    files = calibrated(DIGITS, tmp_path, per_channel=True)
    path = rewritten(files, tmp_path / "rewritten.onnx", nodes, settings, half=half)
    zeros = [t for t in onnx.load(path).graph.initializer if t.name.endswith("zero_point")]
    assert zeros and not any(any(onnx.numpy_helper.to_array(zero).ravel()) for zero in zeros)
    assert build(path, [PROFILE])["size"] > 10_000
