"""Patterns of integer arithmetic: see `patterns`, which has them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper
from routetune.tasks.engines.onnxruntime.rules import graph, node, ramp, scalar

Make = Callable[[], ModelProto]

#: Name of a transformer or setting -> a model on which it acts.
PATTERNS: dict[str, Make] = {}

FLOAT2x4: dict[str, Any] = {"x": (2, 4), "y": (2, 4)}
MICROSOFT = {"com.microsoft": 1}
STEPS = {"step": scalar(0.1), "zero": scalar(3, "uint8")}
QUANTISE, DEQUANTISE = node("QuantizeLinear x step zero -> q"), node("DequantizeLinear q step zero -> d")
OUT = [node("QuantizeLinear t step zero -> o"), node("DequantizeLinear o step zero -> y")]


def pattern(*names: str) -> Callable[[Make], Make]:
    def register(make: Make) -> Make:
        PATTERNS.update(dict.fromkeys(names, make))
        return make

    return register


@pattern("QDQPropagationTransformer")
def propagation() -> ModelProto:
    nodes = [QUANTISE, DEQUANTISE, node("Reshape d to -> r"), node("Sigmoid r -> y")]
    return graph(nodes, {**STEPS, "to": np.array([8])}, x=(2, 4), y=(8,))


@pattern("DoubleQDQPairsRemover", "session.disable_double_qdq_remover")
def double_pairs() -> ModelProto:
    second = [node("QuantizeLinear d step2 zero2 -> q2"), node("DequantizeLinear q2 step2 zero2 -> d2")]
    constants = {**STEPS, "step2": scalar(0.05), "zero2": scalar(9, "uint8")}
    return graph([QUANTISE, DEQUANTISE, *second, node("Sigmoid d2 -> y")], constants)


@pattern("WeightBiasQuantization")
def float_bias() -> ModelProto:
    weight = node("DequantizeLinear wq step zero -> w")
    constants = {**STEPS, "wq": np.ones((4, 2, 1, 1), np.uint8), "b": ramp(4)}
    nodes = [QUANTISE, DEQUANTISE, weight, node("Conv d w b -> t"), *OUT]
    return graph(nodes, constants, x=(1, 2, 4, 4), y=(1, 4, 4, 4))


@pattern("WhereDummyDq")
def half_quantised_where() -> ModelProto:
    nodes = [QUANTISE, DEQUANTISE, node("Where c d k -> t"), *OUT]
    return graph(nodes, {**STEPS, "k": scalar(0.5)}, others={"c": ("BOOL", (4,))})


@pattern("QDQS8ToU8Transformer", "session.qdqisint8allowed")
def signed_pair() -> ModelProto:
    return graph([QUANTISE, DEQUANTISE, node("Sigmoid d -> y")], {**STEPS, "zero": scalar(3, "int8")})


@pattern("session.enable_quant_qdq_cleanup")
def lone_pair() -> ModelProto:
    return graph([QUANTISE, DEQUANTISE, node("Sigmoid d -> y")], STEPS)


@pattern("QDQSelectorActionTransformer", "session.disable_quant_qdq")
def quantised_sigmoid() -> ModelProto:
    return graph([QUANTISE, DEQUANTISE, node("Sigmoid d -> t"), *OUT], STEPS)


@pattern("QDQFinalCleanupTransformer")
def requantised() -> ModelProto:
    nodes = [node("DequantizeLinear x step zero -> d"), node("QuantizeLinear d step zero -> y")]
    return graph(nodes, STEPS, x_type="UINT8", y_type="UINT8")


def integer_matmul(*head: NodeProto, **rest: Any) -> ModelProto:
    nodes = [
        *head,
        node("MatMulInteger q w qz wz -> m"),
        node("Cast m -> f", to=1),
        node("Mul qs ws -> s"),
        node("Mul f s -> y"),
    ]
    constants = {"w": np.ones((4, 4), np.int8), "wz": scalar(0, "int8"), "ws": scalar(0.1)}
    return graph(nodes, {**constants, **rest.pop("constants", {})}, **FLOAT2x4, **rest)


@pattern("MatMulIntegerToFloatFusion")
def integer_to_float() -> ModelProto:
    head = node("QuantizeLinear x step qz -> q")
    constants = {"step": scalar(0.1), "qz": scalar(3, "uint8")}
    return integer_matmul(head, constants=constants, others={"qs": ("FLOAT", ())})


@pattern("DynamicQuantizeMatMulFusion")
def dynamic_quantisation() -> ModelProto:
    return integer_matmul(node("DynamicQuantizeLinear x -> q qs qz"))


@pattern("NhwcTransformer")
def integer_conv() -> ModelProto:
    constants = {**STEPS, "w": np.ones((16, 4, 3, 3), np.int8), "wz": scalar(0, "int8")}
    nodes = [node("QLinearConv x step zero w step wz step zero -> y")]
    return graph(nodes, constants, x=(1, 4, 8, 8), y=(1, 16, 6, 6), x_type="UINT8", y_type="UINT8")


@pattern("MatMulNBitsFusion")
def nbits_bias() -> ModelProto:
    nodes = [nbits(4, k=32, n=4, level=0, target="m"), node("Add m b -> y")]
    constants = {"w": np.ones((4, 1, 16), np.uint8), "scales": ramp(4), "b": ramp(4)}
    return graph(nodes, constants, x=(2, 32), y=(2, 4), opsets=MICROSOFT)


def nbits(bits: int, k: int, n: int, level: int, target: str = "y") -> NodeProto:
    attributes = {"K": k, "N": n, "bits": bits, "block_size": 32, "accuracy_level": level}
    return node(f"com.microsoft:MatMulNBits x w scales -> {target}", **attributes)


@pattern("session.qdq_matmulnbits_accuracy_level", "session.qdq_matmulnbits_block_size")
def four_bit_matmul() -> ModelProto:
    """Weights of 4 bits with one scale for each channel."""
    model = graph(
        [node("DequantizeLinear w scales -> d", axis=1), node("MatMul x d -> y")],
        {"scales": ramp(32)},
        x=(2, 256),
        y=(2, 32),
        opsets={"": 21},
    )
    model.ir_version = 10
    values = np.random.default_rng(0).integers(-8, 8, 256 * 32).tolist()
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.INT4, [256, 32], values))
    return model


@pattern("session.enable_dq_matmulnbits_fusion")
def reshaped_four_bit_matmul() -> ModelProto:
    nodes = [
        node("DequantizeLinear w scales zeros -> d", axis=2, block_size=16),
        node("Reshape d to -> r"),
        node("Transpose r -> t", perm=[1, 0]),
        node("MatMul x t -> y"),
    ]
    constants = {"scales": ramp(32, 4, 1), "to": np.array([32, 64])}
    model = graph(nodes, constants, x=(2, 64), y=(2, 32), opsets={"": 21})
    model.ir_version = 10
    values = np.random.default_rng(0).integers(0, 16, 32 * 64).tolist()
    weight = helper.make_tensor("w", TensorProto.UINT4, [32, 4, 16], values)
    zeros = helper.make_tensor("zeros", TensorProto.UINT4, [32, 4, 1], [8] * 128)
    model.graph.initializer.extend([weight, zeros])
    return model


def low_bits(bits: int) -> ModelProto:
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.integers(0, 256, (128, 4, 4 * bits), dtype=np.uint8),
        "scales": rng.standard_normal(128 * 4).astype(np.float32),
    }
    return graph([nbits(bits, k=128, n=128, level=4)], constants, x=(2, 128), y=(2, 128), opsets=MICROSOFT)
