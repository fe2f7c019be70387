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


def attention(joined: bool = False) -> onnx.ModelProto:
    """The block; `joined`: batch and heads are one axis for a while, as in `torch.nn.MultiheadAttention`."""
    weights = _weights(joined)
    nodes = []
    for name in LAYERS[:3]:
        nodes += [
            helper.make_node("MatMul", ["x", f"w_{name}"], [f"{name}_m"], name),
            helper.make_node("Add", [f"{name}_m", f"b_{name}"], [f"{name}_a"], f"{name}_add"),
            *(_joined(name) if joined else _split(name)),
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


def _weights(joined: bool) -> Arrays:
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
    if joined:
        weights |= {
            "split": np.array([LENGTH, BATCH * HEADS, SIZE]),
            "part": np.array([BATCH, HEADS, LENGTH, SIZE]),
            "part_keys": np.array([BATCH, HEADS, SIZE, LENGTH]),
        }
    return weights


def _split(name: str) -> list[onnx.NodeProto]:
    turned = [0, 2, 3, 1] if name == "key" else [0, 2, 1, 3]
    return [
        helper.make_node("Reshape", [f"{name}_a", "split"], [f"{name}_r"], f"{name}_reshape"),
        helper.make_node("Transpose", [f"{name}_r"], [f"{name}_t"], f"{name}_turn", perm=turned),
    ]


def _joined(name: str) -> list[onnx.NodeProto]:
    """Time comes first, then one axis of batch and heads; the keys are turned before they are parted."""
    key = name == "key"
    turn = helper.make_node("Transpose", [f"{name}_j"], [f"{name}_k"], f"{name}_turned", perm=[0, 2, 1])
    part = [f"{name}_k", "part_keys"] if key else [f"{name}_j", "part"]
    return [
        helper.make_node("Transpose", [f"{name}_a"], [f"{name}_f"], f"{name}_first", perm=[1, 0, 2]),
        helper.make_node("Reshape", [f"{name}_f", "split"], [f"{name}_r"], f"{name}_reshape"),
        helper.make_node("Transpose", [f"{name}_r"], [f"{name}_j"], f"{name}_join", perm=[1, 0, 2]),
        *([turn] if key else []),
        helper.make_node("Reshape", part, [f"{name}_t"], f"{name}_part"),
    ]


def saved(folder: Path, joined: bool = False) -> Path:
    path = folder / "attention.onnx"
    onnx.save(attention(joined), path)
    return path


def inputs() -> Arrays:
    return {"x": np.random.default_rng(4).standard_normal((BATCH, LENGTH, HIDDEN)).astype(np.float32)}
