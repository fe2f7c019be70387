"""Small models of plain ONNX operators, with inputs for them: what every backend must build and run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, helper
from routetune.tasks.engines.onnxruntime.rules import graph, node

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Sample:
    """A model, the profile of its dynamic dimensions, and input sets within it, the first at opt."""

    name: str
    model: ModelProto
    profile: Mapping[str, Mapping[str, list[int]]]
    inputs: list[Arrays] = field(default_factory=list)

    def save(self, folder: Path) -> Path:
        path = folder / f"{self.name}.onnx"
        onnx.save(self.model, path)
        return path

    def expected(self, inputs: Arrays) -> list[np.ndarray[Any, Any]]:
        """The outputs as ONNX's own evaluator computes them."""
        from onnx.reference import ReferenceEvaluator

        results: list[np.ndarray[Any, Any]] = ReferenceEvaluator(self.model).run(None, inputs)
        return results


def cnn() -> Sample:
    """Convolutions with normalisation, activations, pooling and two outputs; fixed shape."""
    rng = np.random.default_rng(1)

    def weight(*shape: int) -> np.ndarray[Any, Any]:
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1)).astype(np.float32)

    constants = {
        "w1": weight(16, 1, 3, 3),
        "w2": weight(32, 16, 3, 3),
        "b2": weight(32),
        "w3": weight(512, 10),
    }
    constants |= {"scale": weight(16), "bias": weight(16), "mean": weight(16), "var": np.ones(16, np.float32)}
    nodes = [
        node("Conv x w1 -> c1", pads=[1, 1, 1, 1]),
        node("BatchNormalization c1 scale bias mean var -> n1"),
        node("Relu n1 -> r1"),
        node("Conv r1 w2 b2 -> c2", pads=[1, 1, 1, 1]),
        node("Relu c2 -> r2"),
        node("MaxPool r2 -> p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten p -> features"),
        node("MatMul features w3 -> y"),
    ]
    model = graph(nodes, constants, x=(2, 1, 8, 8), y=(2, 10))
    model.graph.output.append(helper.make_tensor_value_info("features", 1, (2, 512)))
    inputs = [{"x": rng.standard_normal((2, 1, 8, 8)).astype(np.float32)} for _ in range(2)]
    return Sample("cnn", model, {}, inputs)


def mlp() -> Sample:
    """Two layers and a softmax; dynamic batch."""
    rng = np.random.default_rng(2)
    constants = {
        "w1": rng.standard_normal((16, 64)).astype(np.float32) / 4,
        "b1": rng.standard_normal(64).astype(np.float32),
        "w2": rng.standard_normal((64, 8)).astype(np.float32) / 8,
        "half": np.array(0.5, np.float32),
    }
    nodes = [
        node("MatMul x w1 -> h"),
        node("Add h b1 -> a"),
        node("Relu a -> r"),
        node("MatMul r w2 -> m"),
        node("Mul m half -> s"),
        node("Softmax s -> y", axis=-1),
    ]
    model = graph(nodes, constants, x=("batch", 16), y=("batch", 8))
    inputs = [{"x": rng.standard_normal((n, 16)).astype(np.float32)} for n in (4, 1, 7)]
    return Sample("mlp", model, {"x": {"min": [1, 16], "opt": [4, 16], "max": [8, 16]}}, inputs)


def tokens() -> Sample:
    """Embeddings, their normalised mean under a mask, and a projection; dynamic batch and sequence."""
    rng = np.random.default_rng(3)
    constants = {
        "table": rng.standard_normal((50, 16)).astype(np.float32),
        "w": rng.standard_normal((16, 4)).astype(np.float32) / 4,
        "axes": np.array([2]),
        "sequence": np.array([1]),
        "gamma": np.ones(16, np.float32),
        "beta": np.zeros(16, np.float32),
    }
    nodes = [
        node("Gather table x -> e"),
        node("Cast mask -> f", to=1),
        node("Unsqueeze f axes -> g"),
        node("Mul e g -> m"),
        node("ReduceSum m sequence -> s", keepdims=0),
        node("ReduceSum g sequence -> c", keepdims=0),
        node("Div s c -> mean"),
        node("LayerNormalization mean gamma beta -> n"),
        node("MatMul n w -> y"),
    ]
    others = {"mask": ("INT64", ("b", "t"))}
    model = graph(nodes, constants, x=("b", "t"), y=("b", 4), x_type="INT64", others=others)
    inputs = []
    for shape in ((2, 8), (1, 3), (4, 16)):
        mask = np.ones(shape, np.int64)
        mask[:, shape[1] // 2 + 1 :] = 0
        inputs.append({"x": rng.integers(0, 50, shape), "mask": mask})
    ranges = {"min": [1, 1], "opt": [2, 8], "max": [4, 16]}
    return Sample("tokens", model, {"x": ranges, "mask": ranges}, inputs)


SAMPLES = (cnn, mlp, tokens)
