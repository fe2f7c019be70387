"""A block of self-attention as today's exporters write it: named layers, scaled scores, normalisations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Arrays = dict[str, np.ndarray[Any, Any]]
BATCH, LENGTH, HEADS, SIZE = 2, 8, 4, 8
HIDDEN = HEADS * SIZE
LAYERS = ("query", "key", "value", "merge")


def attention() -> onnx.ModelProto:
    rng = np.random.default_rng(3)

    def drawn(*shape: int) -> np.ndarray[Any, Any]:
        return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    weights: Arrays = {f"w_{name}": drawn(HIDDEN, HIDDEN) for name in LAYERS}
    weights |= {f"b_{name}": drawn(HIDDEN) for name in (*LAYERS, "norm")}
    weights |= {
        "scale": np.float32(SIZE**-0.5),
        "split": np.array([BATCH, LENGTH, -1, SIZE]),
        "join": np.array([BATCH, LENGTH, HIDDEN]),
        "w_norm": np.ones(HIDDEN, np.float32),
    }
    nodes = []
    for name in LAYERS[:3]:
        turned = [0, 2, 3, 1] if name == "key" else [0, 2, 1, 3]
        nodes += [
            helper.make_node("MatMul", ["x", f"w_{name}"], [f"{name}_m"], name),
            helper.make_node("Add", [f"{name}_m", f"b_{name}"], [f"{name}_a"], f"{name}_add"),
            helper.make_node("Reshape", [f"{name}_a", "split"], [f"{name}_r"], f"{name}_reshape"),
            helper.make_node("Transpose", [f"{name}_r"], [f"{name}_t"], f"{name}_turn", perm=turned),
        ]
    nodes += [
        helper.make_node("MatMul", ["query_t", "key_t"], ["scores"], "scores"),
        helper.make_node("Mul", ["scores", "scale"], ["scaled"], "scaled"),
        helper.make_node("Softmax", ["scaled"], ["shares"], "shares", axis=-1),
        helper.make_node("MatMul", ["shares", "value_t"], ["mixed"], "mixed"),
        helper.make_node("Transpose", ["mixed"], ["back"], "back", perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["back", "join"], ["joined"], "joined"),
        helper.make_node("MatMul", ["joined", "w_merge"], ["merge_m"], "merge"),
        helper.make_node("Add", ["merge_m", "b_merge"], ["merged"], "merge_add"),
        helper.make_node("Add", ["merged", "x"], ["sum"], "sum"),
        helper.make_node("LayerNormalization", ["sum", "w_norm", "b_norm"], ["y"], "norm", axis=-1),
    ]
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [BATCH, LENGTH, HIDDEN])] for name in "xy"
    ]
    kept = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    made = helper.make_graph(nodes, "attention", *ends, kept)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def saved(folder: Path) -> Path:
    path = folder / "attention.onnx"
    onnx.save(attention(), path)
    return path


def inputs() -> Arrays:
    return {"x": np.random.default_rng(4).standard_normal((BATCH, LENGTH, HIDDEN)).astype(np.float32)}
