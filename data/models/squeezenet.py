"""squeezenet: SqueezeNet 1.1's topology out of the installed `onnx` package, with seeded random weights.

The package ships the topology for its backend tests, with every weight a constant made in the graph, so that
all outputs are alike. Here each weight becomes an initializer with random values, scaled to keep the signal's
variance (He et al.), and the final softmax is cut off, so that logits are compared: a softmax over a thousand
classes hides errors below any tolerance.

The batch, fixed at one in the package, becomes dynamic; nothing in this topology depends on it.

    data_0: float32 [batch, 3, 224, 224]      logits: float32 [batch, 1000, 1, 1]

The file is 5 MB, too large to lie in the package, so it is made at first use:

    python -m routetune.data.make squeezenet
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from routetune.data.models.files import he_uniform, uniform, write_model

if TYPE_CHECKING:
    import onnx

    Array = np.ndarray[Any, Any]

SEED = 0
SOURCE = "backend/test/data/light/light_squeezenet.onnx"  # inside the onnx package
INPUT = "data_0"
IR_VERSION = 4  # the first in which an initializer need not be an input of the graph as well


def topology() -> onnx.ModelProto:
    """Read the topology that the installed onnx package ships.

    Raises:
        FileNotFoundError: this onnx package comes without its backend test data.
    """
    import onnx

    path = Path(onnx.__file__).parent / SOURCE
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing: this build of onnx {onnx.__version__} comes without its backend test data; "
            "install the wheel from PyPI (pip install --force-reinstall onnx)"
        )
    return onnx.load(path)


def randomise(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give every convolution of `model` random weights, cut the final softmax off, free the batch.

    Raises:
        ValueError: a node other than a convolution has weights, so this is not the topology it was.
    """
    from onnx import TensorProto, helper, numpy_helper, shape_inference

    inferred = shape_inference.infer_shapes(model).graph
    dims = {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in (*inferred.value_info, *inferred.input, *inferred.output)
    }
    filled = [node.output[0] for node in model.graph.node if node.op_type == "ConstantOfShape"]
    constant = {*filled, *(tensor.name for tensor in model.graph.initializer)}
    nodes = [node for node in model.graph.node if node.op_type not in ("ConstantOfShape", "Softmax")]
    random = np.random.RandomState(SEED)
    weights: dict[str, Array] = {}
    for node in nodes:
        held = [name for name in node.input if name in constant]
        if not held:
            continue
        if node.op_type != "Conv":
            raise ValueError(f"node {list(node.output)} of type {node.op_type} has weights {held}")
        kernel, bias = held
        weights[kernel] = he_uniform(random, dims[kernel], fan_in=int(np.prod(dims[kernel][1:])))
        weights[bias] = uniform(random, dims[bias], -0.1, 0.1)
    output = nodes[-1].output[0]
    graph = helper.make_graph(
        nodes,
        "squeezenet",
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["batch", *dims[INPUT][1:]])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", *dims[output][1:]])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    graph.node[-1].output[0] = "logits"
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=IR_VERSION)


def make(home: Path) -> list[Path]:
    """Write `models/squeezenet.onnx` under `home`; its inputs are seeded, see the target file."""
    return [write_model(randomise(topology()), home / "models" / "squeezenet.onnx")]


if __name__ == "__main__":
    for written in make(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]):
        print(written)
