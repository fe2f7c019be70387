"""Models to record landscapes on: the shapes of well-known networks with seeded random weights.

    python -m tests.benchmarks.search.models FOLDER NAME...

Random weights do for this: what a compiler does depends on shapes and operators. Weights keep the variance of
the signal, so that tolerances mean what they mean for trained networks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from routetune.data.models.files import he_uniform, write_model

OPSET, IR = 17, 9


class Net:
    """A graph in the making; every method adds a layer and gives the name of its output."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.RandomState(seed)
        self._nodes: list[Any] = []
        self._weights: list[Any] = []

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind.lower()}{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [name], name=f"n_{name}", **attributes))
        return name

    def constant(self, array: Any) -> str:
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, *shape: int, fan_in: int, gain: float = 1.0) -> str:
        return self.constant(he_uniform(self._random, shape, fan_in) * np.float32(gain))

    def conv(
        self, x: str, a: int, b: int, kernel: int, stride: int = 1, groups: int = 1, norm: bool = True
    ) -> str:
        """A convolution of `a` to `b` channels, with a bias or a batch normalisation after it."""
        fan_in = a // groups * kernel * kernel
        inputs = [x, self.weight(b, a // groups, kernel, kernel, fan_in=fan_in)]
        inputs += [] if norm else [self.weight(b, fan_in=400)]
        pads = [kernel // 2] * 4
        y = self.node(
            "Conv", *inputs, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads, group=groups
        )
        if not norm:
            return y
        ones, spread = np.ones(b, np.float32), self._random.uniform(0.8, 1.2, b).astype(np.float32)
        small = self._random.uniform(-0.1, 0.1, b).astype(np.float32)
        return self.node("BatchNormalization", y, *map(self.constant, (spread, small, small, ones)))

    def dense(self, x: str, a: int, b: int, gain: float = 1.0) -> str:
        product = self.node("MatMul", x, self.weight(a, b, fan_in=a, gain=gain))
        return self.node("Add", product, self.weight(b, fan_in=400))

    def model(self, inputs: dict[str, tuple[int, list[Any]]], output: str) -> onnx.ModelProto:
        """The model; inputs as name -> (element type, shape)."""
        told = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
        y = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        graph = helper.make_graph(self._nodes, "landscape", told, [y], self._weights)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)
        return onnx.shape_inference.infer_shapes(made)


def images(channels: int = 3) -> dict[str, tuple[int, list[Any]]]:
    return {"x": (TensorProto.FLOAT, ["batch", channels, "height", "width"])}


def resnet(widths: Sequence[int], blocks: Sequence[int]) -> onnx.ModelProto:
    """Bottleneck blocks with shortcuts (He et al. 2015, arXiv:1512.03385); [64, 128, 256, 512] and
    [3, 4, 6, 3] is ResNet-50."""
    net = Net()
    x = net.node("Relu", net.conv("x", 3, 64, 7, 2))
    x = net.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    wide = 64
    for stage, (width, count) in enumerate(zip(widths, blocks, strict=True)):
        for block in range(count):
            stride = 2 if stage and not block else 1
            y = net.node("Relu", net.conv(x, wide, width, 1))
            y = net.node("Relu", net.conv(y, width, width, 3, stride))
            y = net.conv(y, width, 4 * width, 1)
            x = x if block else net.conv(x, wide, 4 * width, 1, stride)
            x, wide = net.node("Relu", net.node("Add", y, x)), 4 * width
    x = net.node("Flatten", net.node("GlobalAveragePool", x))
    return net.model(images(), net.dense(x, wide, 1000, 0.5))


def mobilenet(width: int, blocks: int) -> onnx.ModelProto:
    """Inverted residual blocks of depthwise convolutions (Sandler et al. 2018, arXiv:1801.04381)."""
    net = Net()
    low, high = net.constant(np.float32(0)), net.constant(np.float32(6))
    x = net.node("Clip", net.conv("x", 3, width, 3, 2), low, high)
    for block in range(blocks):
        stride, out = (2, width * 3 // 2 // 8 * 8) if block % 3 == 0 else (1, width)
        y = net.node("Clip", net.conv(x, width, 6 * width, 1), low, high)
        y = net.node("Clip", net.conv(y, 6 * width, 6 * width, 3, stride, 6 * width), low, high)
        y = net.conv(y, 6 * width, out, 1)
        x, width = (net.node("Add", x, y) if stride == 1 else y), out
    x = net.node("Flatten", net.node("GlobalAveragePool", x))
    return net.model(images(), net.dense(x, width, 100, 0.5))


def unet(width: int, depth: int) -> onnx.ModelProto:
    """Convolutions down and up again with skips between (Ronneberger et al. 2015, arXiv:1505.04597)."""
    net = Net()
    x, wide, skips = "x", 3, []
    for level in range(depth):
        for _ in range(2):
            x, wide = net.node("Relu", net.conv(x, wide, width << level, 3, norm=False)), width << level
        skips.append((x, wide))
        x = net.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    for skip, channels in reversed(skips):
        x = net.node("Resize", x, "", net.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest")
        x = net.node("Concat", x, skip, axis=1)
        x = net.node("Relu", net.conv(x, wide + channels, channels, 3, norm=False))
        wide = channels
    return net.model(images(), net.conv(x, wide, 2, 1, norm=False))


def transformer(layers: int, hidden: int, heads: int, causal: bool = False) -> onnx.ModelProto:
    """Pre-norm blocks of attention and a gated or GELU feed-forward part, on float32 [batch, length, hidden].

    `causal` makes it a decoder: a mask, root-mean-square normalisation and SiLU, as LLaMA has.
    """
    net = Net()
    norm = _rms_norm if causal else _layer_norm
    x = "x"
    for _ in range(layers):
        x = net.node("Add", x, _attention(net, norm(net, x, hidden), hidden, heads, causal))
        y = norm(net, x, hidden)
        inner = net.dense(y, hidden, 4 * hidden)
        inner = net.node("Mul", inner, net.node("Sigmoid", inner)) if causal else _gelu(net, inner)
        x = net.node("Add", x, net.dense(inner, 4 * hidden, hidden, 0.5))
    inputs: dict[str, tuple[int, list[Any]]] = {"x": (TensorProto.FLOAT, ["batch", "length", hidden])}
    if causal:
        inputs["mask"] = (TensorProto.FLOAT, ["length", "length"])
    return net.model(inputs, norm(net, x, hidden))


def _attention(net: Net, x: str, hidden: int, heads: int, causal: bool) -> str:
    size = hidden // heads
    split, joined = net.constant(np.array([0, 0, heads, size])), net.constant(np.array([0, 0, hidden]))
    q, k, v = (net.node("Reshape", net.dense(x, hidden, hidden, 0.7), split) for _ in range(3))
    q, v = (net.node("Transpose", part, perm=[0, 2, 1, 3]) for part in (q, v))
    score = net.node("MatMul", q, net.node("Transpose", k, perm=[0, 2, 3, 1]))
    score = net.node("Div", score, net.constant(np.float32(size**0.5)))
    score = net.node("Add", score, "mask") if causal else score
    mixed = net.node("MatMul", net.node("Softmax", score, axis=-1), v)
    merged = net.node("Reshape", net.node("Transpose", mixed, perm=[0, 2, 1, 3]), joined)
    return net.dense(merged, hidden, hidden, 0.7)


def _layer_norm(net: Net, x: str, hidden: int) -> str:
    centred = net.node("Sub", x, net.node("ReduceMean", x, axes=[-1]))
    return _normalised(net, centred, hidden, bias=True)


def _rms_norm(net: Net, x: str, hidden: int) -> str:
    return _normalised(net, x, hidden, bias=False)


def _normalised(net: Net, x: str, hidden: int, bias: bool) -> str:
    """x / sqrt(mean(x^2) + epsilon) * scale, spelt out as exporters do."""
    square = net.node("ReduceMean", net.node("Pow", x, net.constant(np.float32(2))), axes=[-1])
    root = net.node("Sqrt", net.node("Add", square, net.constant(np.float32(1e-5))))
    y = net.node("Mul", net.node("Div", x, root), net.constant(np.ones(hidden, np.float32)))
    return net.node("Add", y, net.constant(np.zeros(hidden, np.float32))) if bias else y


def _gelu(net: Net, x: str) -> str:
    one, half, root = (net.constant(np.float32(value)) for value in (1, 0.5, 2**0.5))
    error = net.node("Erf", net.node("Div", x, root))
    return net.node("Mul", net.node("Mul", x, net.node("Add", error, one)), half)


def mlp(sizes: Sequence[int]) -> onnx.ModelProto:
    """Dense layers with ReLU between them."""
    net, x = Net(), "x"
    for a, b in pairwise(sizes):
        x = net.dense(x, a, b)
        x = net.node("Relu", x) if b != sizes[-1] else x
    return net.model({"x": (TensorProto.FLOAT, ["batch", sizes[0]])}, x)


def dlrm(tables: int, rows: int, size: int) -> onnx.ModelProto:
    """Embeddings and dense features, multiplied in pairs (Naumov et al. 2019, arXiv:1906.00091)."""
    net = Net()
    x = net.node("Relu", net.dense(net.node("Relu", net.dense("x", 13, 512)), 512, size))
    parts = [net.node("Unsqueeze", x, net.constant(np.array([1])))]
    for table in range(tables):
        at = net.node("Gather", "ids", net.constant(np.array([table])), axis=1)
        parts.append(net.node("Gather", net.weight(rows, size, fan_in=size), at))
    every = net.node(
        "Concat", *[net.node("Reshape", p, net.constant(np.array([0, 1, size]))) for p in parts], axis=1
    )
    pairs = net.node("MatMul", every, net.node("Transpose", every, perm=[0, 2, 1]))
    flat = net.node("Concat", x, net.node("Flatten", pairs), axis=1)
    y = net.node("Relu", net.dense(flat, size + (tables + 1) ** 2, 512, 0.3))
    inputs = {"x": (TensorProto.FLOAT, ["batch", 13]), "ids": (TensorProto.INT64, ["batch", tables])}
    return net.model(inputs, net.dense(y, 512, 1))


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "mlp": lambda: mlp([256, 512, 512, 256, 10]),
    "separable": lambda: mobilenet(16, 6),
    "unet": lambda: unet(12, 3),
    "decoder": lambda: transformer(2, 128, 4, causal=True),
    "gpu_resnet": lambda: resnet([64, 128, 256, 512], [3, 4, 6, 3]),
    "gpu_mobilenet": lambda: mobilenet(24, 12),
    "gpu_unet": lambda: unet(32, 4),
    "gpu_encoder": lambda: transformer(6, 512, 8),
    "gpu_dlrm": lambda: dlrm(26, 10_000, 64),
    "gpu_mlp": lambda: mlp([1024, 4096, 4096, 4096, 1024]),
}


def ensure(name: str, folder: Path) -> Path:
    """The file of a model, made where it is missing."""
    path = folder / f"{name}.onnx"
    return path if path.exists() else write_model(MODELS[name](), path)


if __name__ == "__main__":
    for chosen in sys.argv[2:] or MODELS:
        print(ensure(chosen, Path(sys.argv[1])))
