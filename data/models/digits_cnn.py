"""digits_cnn: a convolutional network trained on scikit-learn's digits (8x8 pixels, ten classes).

Four layers can be quantised: conv1, conv2, conv3 and the classifier. Batch normalisation stays in the graph
as nodes of its own, and the classifier is a MatMul and an Add, so that a compiler has something left to fuse.

    x -> conv1 -> bn1 -> relu -+-> conv2 -> bn2 -> relu -> conv3 -> bn3 -> + -> relu -> pool -> classifier
                               +-------------------------------------------+

Run it to train again: it needs torch and scikit-learn (the extra `samples`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from routetune.data.models.files import write_arrays, write_model

if TYPE_CHECKING:
    import onnx
    import torch

    Array = np.ndarray[Any, Any]

SEED = 0
CHANNELS = 64
HELD_OUT = 597  # of 1797 images, a third
EPOCHS = 40
BATCH = 64
EPSILON = 1e-5  # of batch normalisation, in training and in the graph


def split() -> tuple[Array, Array, Array, Array]:
    """Read the digits and split them, always the same way.

    Returns:
        Training images float32 [1200, 1, 8, 8] in [0, 1], their labels int64 [1200], held-out images
        [597, 1, 8, 8] and labels [597].
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.data.reshape(-1, 1, 8, 8) / 16.0).astype(np.float32)
    labels = digits.target.astype(np.int64)
    order = np.random.RandomState(SEED).permutation(len(images))
    held, trained = order[:HELD_OUT], order[HELD_OUT:]
    return images[trained], labels[trained], images[held], labels[held]


def network() -> torch.nn.ModuleDict:
    """Make the untrained layers; the names of their parameters are those `build` takes."""
    from torch import nn

    layers: dict[str, nn.Module] = {"classifier": nn.Linear(CHANNELS * 16, 10)}
    for index, width in ((1, 1), (2, CHANNELS), (3, CHANNELS)):
        layers[f"conv{index}"] = nn.Conv2d(width, CHANNELS, 3, padding=1, bias=False)
        layers[f"bn{index}"] = nn.BatchNorm2d(CHANNELS, eps=EPSILON)
    return nn.ModuleDict(layers)


def logits(layers: torch.nn.ModuleDict, images: torch.Tensor) -> torch.Tensor:
    """Run the network for training: as the graph of `build`, but with drop-out before the classifier."""
    import torch

    def normalised(index: int, source: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = layers[f"bn{index}"](layers[f"conv{index}"](source))
        return output

    first = torch.relu(normalised(1, images))
    third = torch.relu(normalised(3, torch.relu(normalised(2, first))) + first)
    pooled = torch.max_pool2d(third, 2).flatten(1)
    output: torch.Tensor = layers["classifier"](torch.dropout(pooled, 0.3, layers.training))
    return output


def shifted(images: torch.Tensor) -> torch.Tensor:
    """Move each image by up to one pixel in both directions; what enters is background (0)."""
    import torch

    rows, columns = torch.randint(-1, 2, (2, len(images))).tolist()
    padded = torch.nn.functional.pad(images, (1, 1, 1, 1))
    moved = [
        image[:, 1 + row : 9 + row, 1 + column : 9 + column]
        for image, row, column in zip(padded, rows, columns, strict=True)
    ]
    return torch.stack(moved)


def train() -> dict[str, Array]:
    """Train on the training images with Adam, a cosine schedule and one-pixel shifts.

    Returns:
        Parameter name -> float32 array, in torch's layouts.
    """
    import torch

    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # sums are added up in another order with more
    trained_images, trained_labels, _, _ = split()
    images, labels = torch.from_numpy(trained_images), torch.from_numpy(trained_labels)
    layers = network()
    optimiser = torch.optim.AdamW(layers.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, EPOCHS)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images)).split(BATCH):
            loss = torch.nn.functional.cross_entropy(logits(layers, shifted(images[batch])), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        schedule.step()
    return {name: value.numpy() for name, value in layers.state_dict().items()}


def build(weights: Mapping[str, Array]) -> onnx.ModelProto:
    """Lay the trained weights out as a graph: x float32 [batch, 1, 8, 8] -> logits float32 [batch, 10]."""
    from onnx import TensorProto, helper, numpy_helper

    def convolution(index: int, source: str) -> list[onnx.NodeProto]:
        conv, norm = f"conv{index}", f"bn{index}"
        inputs = [f"{norm}.{part}" for part in ("weight", "bias", "running_mean", "running_var")]
        window: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
        return [
            helper.make_node("Conv", [source, f"{conv}.weight"], [f"{conv}.out"], conv, **window),
            helper.make_node(
                "BatchNormalization", [f"{conv}.out", *inputs], [f"{norm}.out"], norm, epsilon=EPSILON
            ),
        ]

    nodes = [
        *convolution(1, "x"),
        helper.make_node("Relu", ["bn1.out"], ["relu1.out"], "relu1"),
        *convolution(2, "relu1.out"),
        helper.make_node("Relu", ["bn2.out"], ["relu2.out"], "relu2"),
        *convolution(3, "relu2.out"),
        helper.make_node("Add", ["bn3.out", "relu1.out"], ["residual.out"], "residual"),
        helper.make_node("Relu", ["residual.out"], ["relu3.out"], "relu3"),
        helper.make_node("MaxPool", ["relu3.out"], ["pool.out"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["pool.out"], ["flatten.out"], "flatten", axis=1),
        helper.make_node("MatMul", ["flatten.out", "classifier.weight"], ["classifier.out"], "classifier"),
        helper.make_node("Add", ["classifier.out", "classifier.bias"], ["logits"], "classifier_bias"),
    ]
    used = {name for node in nodes for name in node.input}
    stored = {**weights, "classifier.weight": np.ascontiguousarray(weights["classifier.weight"].T)}
    graph = helper.make_graph(
        nodes,
        "digits_cnn",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(value, name) for name, value in stored.items() if name in used],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def make_inputs(path: Path) -> Path:
    """Write the first 32 held-out images as `x` and their labels as `y`."""
    _, _, images, labels = split()
    return write_arrays({"x": images[:32], "y": labels[:32]}, path)


def make_held_out(path: Path) -> Path:
    """Write the other held-out images and their labels: enough to see what a loss costs in accuracy."""
    _, _, images, labels = split()
    return write_arrays({"x": images[32:], "y": labels[32:]}, path)


def make(home: Path) -> list[Path]:
    """Train, and write `models/digits_cnn.onnx` and two files of `inputs` under `home`."""
    return [
        write_model(build(train()), home / "models" / "digits_cnn.onnx"),
        make_inputs(home / "inputs" / "digits.npz"),
        make_held_out(home / "inputs" / "digits_held_out.npz"),
    ]


if __name__ == "__main__":
    for written in make(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]):
        print(written)
