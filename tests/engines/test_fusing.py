"""Fusing attention: the same outputs by fewer operators, also beside Q/DQ and 16-bit floats."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from routetune.tasks.engines.base import BuildError
from routetune.tasks.targets import fusions

from tests.engines.attention import HEADS, LAYERS, inputs, saved
from tests.engines.rewriting import calibrated, rewritten
from tests.engines.test_qdq import quantised_nodes, run

FILES = dict[str, str]


@pytest.fixture
def files(tmp_path: Path) -> FILES:
    return calibrated(saved(tmp_path), tmp_path, [inputs()])


def operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def off(path: Path, tmp_path: Path) -> float:
    expected = run(saved(tmp_path), inputs())[0]
    return float(np.abs(run(path, inputs())[0] - expected).max() / np.abs(expected).max())


def test_attention_becomes_one_operator_and_computes_the_same(files: FILES, tmp_path: Path) -> None:
    path = rewritten(files, tmp_path / "out.onnx", fused=True)
    found = operators(path)
    assert found["Softmax"] == 0 and found["Attention"] + found["MultiHeadAttention"] == 1
    [node] = [n for n in onnx.load(path).graph.node if n.op_type in ("Attention", "MultiHeadAttention")]
    assert node.domain == "com.microsoft"
    assert [a.i for a in node.attribute if a.name == "num_heads"] == [HEADS]
    assert off(path, tmp_path) < 1e-6


def test_the_same_bytes_in_every_process(files: FILES, tmp_path: Path) -> None:
    """Its digest is kept, and the model written again when it is wanted."""
    told = f"from tests.engines.rewriting import rewritten; from pathlib import Path; rewritten({files!r}, "
    digests = set()
    for seed in ("1", "2", "3"):
        path = tmp_path / f"{seed}.onnx"
        code = f"{told}Path({str(path)!r}), fused=True, half=True)"
        subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONHASHSEED": seed})
        digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
    assert len(digests) == 1


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_that_is_quantised_stays_so(layer: str, files: FILES, tmp_path: Path) -> None:
    plain = rewritten(files, tmp_path / "plain.onnx", (layer,))
    both = rewritten(files, tmp_path / "both.onnx", (layer,), fused=True)
    assert quantised_nodes(both) == {layer}
    assert operators(both).total() < operators(plain).total()
    np.testing.assert_allclose(run(both, inputs())[0], run(plain, inputs())[0], rtol=0, atol=0.02)


def test_fused_operators_compute_in_16_bit_floats_too(files: FILES, tmp_path: Path) -> None:
    path = rewritten(files, tmp_path / "out.onnx", fused=True, half=True)
    found = operators(path)
    assert found["Softmax"] == 0 and found["Attention"] + found["MultiHeadAttention"] == 1
    assert found["Cast"] == 2  # of the input and the output of the model
    assert TensorProto.FLOAT not in {one.data_type for one in onnx.load(path).graph.initializer}
    assert 1e-6 < off(path, tmp_path) < 1e-2


def test_scales_found_while_running_stay_beside_it(files: FILES, tmp_path: Path) -> None:
    path = rewritten(files, tmp_path / "out.onnx", fused=True, dynamic=True)
    assert operators(path)["MatMulInteger"] == len(LAYERS)
    assert off(path, tmp_path) < 0.1


def test_without_the_library_it_is_refused_and_said_how_to_get_it(
    files: FILES, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fusions, "version", str)
    with pytest.raises(BuildError, match=r"pip install 'routetune\[fusions\]'"):
        rewritten(files, tmp_path / "out.onnx", fused=True)
