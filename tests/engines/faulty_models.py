"""Models on which ONNX Runtime really crashes, hangs or computes NaN, for one knob value and no other.

Each was tried with version 1.32 on x86-64. None may be built or run in the process of a test: the faults are
real. `FAULTS` says which route brings out which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from routetune.tasks.engines.onnxruntime.rules import graph, node, ramp, scalar

Make = Callable[[], ModelProto]

#: Average pooling of LENGTH more values than WINDOW takes seven hours, in 130 MB; of WINDOW values, 2 ms.
WINDOW = 1 << 20
LENGTH = 1 << 24
LOWEST = np.iinfo(np.int64).min


def crashes_when_folded() -> ModelProto:
    """The least int64 divided by -1, both constant: SIGFPE while building.

    With `-ConstantFolding=off` it builds, and there is a SIGFPE while running.
    """
    nodes = [node("Div a b -> q"), node("Add q x -> y")]
    constants = {"a": np.array([LOWEST]), "b": np.array([-1])}
    return graph(nodes, constants, x=(1,), y=(1,), x_type="INT64", y_type="INT64")


def crashes_at_run() -> ModelProto:
    """x / -1: builds with every route; SIGFPE while running on the least int64."""
    return graph(
        [node("Div x b -> y")], {"b": np.array([-1])}, x=(1,), y=(1,), x_type="INT64", y_type="INT64"
    )


def aborts_on_bad_entry() -> ModelProto:
    """A blocked convolution: SIGABRT when the library is handed a bad value of one entry.

    It is `mlas.nchwc_pointwise_conv_max_input_channel_batch=x`, which the knob database refuses.
    """
    return graph(
        [node("Conv x w -> y")], {"w": np.ones((32, 32, 1, 1), np.float32)}, x=(1, 32, 4, 4), y=(1, 32, 4, 4)
    )


def never_ends() -> ModelProto:
    """2^62 rounds of a loop: builds with every route, and never returns from a run."""
    body = [node("Identity go -> on"), node("Add v one -> w")]
    loop = node("Loop rounds _ x -> y", body=_loop_body(body, {"one": np.array(1)}))
    return graph([loop], {"rounds": np.array(1 << 62)}, x=(), y=(), x_type="INT64", y_type="INT64")


def hangs_when_folded() -> ModelProto:
    """A constant expression that takes hours, in a branch that is never taken: the build hangs.

    With `-ConstantFolding=off` it builds and runs at once.
    """
    heavy = [*_pooling("length"), node("Add x pooled -> o")]
    constants = {"length": np.array([WINDOW + LENGTH]), **_POOLING}
    nodes = [node("ReduceMax x -> top", keepdims=0), node("Greater top huge -> never")]
    branches = {
        "then_branch": _branch(heavy, "o", constants),
        "else_branch": _branch([node("Identity x -> e")], "e", {}),
    }
    return graph([*nodes, node("If never -> y", **branches)], {"huge": scalar(3e38)})


def three_faults() -> ModelProto:
    """Healthy by default and as written; three knobs bring out one fault each, see `FAULTS`."""
    parts = [_abort(), _hang(), _nan()]
    nodes = [node for part, _ in parts for node in part]
    constants: dict[str, Any] = {"w": ramp(8, 4), "b": ramp(4)}
    for _, more in parts:
        constants |= more
    nodes += [node("MatMul x w -> h0"), node("Add h0 b -> h1"), node("Relu h1 -> h2")]
    nodes += [node("Add h2 abort -> h3"), node("Add h3 hang -> h4"), node("Add h4 nan -> y")]
    return graph(nodes, constants, x=(4, 8), y=(4, 4))


#: For `three_faults`: what the route does, and in which step.
FAULTS = {
    "-session.disable_quant_qdq=1": ("SIGFPE", "build"),
    "-optimization.enable_cast_chain_elimination=1": ("hang", "build"),
    "-optimization.enable_gelu_approximation=1": ("NaN", "run"),
}
#: Knobs that leave `three_faults` healthy, some of which change its graph.
HARMLESS = (
    "-graph_optimization_level=basic",
    "-MatMulAddFusion=off",
    "-intra_op_num_threads=1",
    "-enable_mem_pattern=off",
)


def _abort() -> tuple[list[NodeProto], dict[str, Any]]:
    """A division that traps, behind a dequantisation and in a branch never taken.

    Dequantised constants are not folded unless Q/DQ handling is disabled: then the branch is, and traps.
    """
    divide = [
        node("DequantizeLinear ones step -> d1"),
        node("Cast d1 -> minus", to=7),
        node("Div lowest minus -> q"),
        node("Cast q -> f", to=1),
        node("ReduceSum f -> traps", keepdims=0),
    ]
    constants = {"ones": np.array([-1], np.int8), "step": scalar(1), "lowest": np.array([LOWEST])}
    nodes = [node("ReduceMax x -> top", keepdims=0), node("Greater top huge -> never")]
    branches = {
        "then_branch": _branch(divide, "traps", constants, shape=()),
        "else_branch": _branch([node("Identity nothing -> zero")], "zero", {"nothing": scalar(0)}, shape=()),
    }
    return [*nodes, node("If never -> abort", **branches)], {"huge": scalar(3e38)}


def _hang() -> tuple[list[NodeProto], dict[str, Any]]:
    """Average pooling, longer by LENGTH times what 2049, rounded to half precision, exceeds 2048: nothing.

    Without the rounding it is LENGTH.
    """
    lines = (
        "Sub back even -> excess",
        "Cast excess -> times",
        "Mul times more -> extra",
        "Add extra window -> length",
    )
    nodes = [node("Cast exact -> rounded", to=10), node("Cast rounded -> back", to=1)]
    nodes += [node(line, **({"to": 7} if line.startswith("Cast") else {})) for line in lines]
    nodes += [*_pooling("length"), node("Mul pooled null -> hang")]
    constants = {"exact": np.array([2049], np.float32), "even": np.array([2048], np.float32)}
    return nodes, {**constants, "more": np.array([LENGTH]), "window": np.array([WINDOW]), **_POOLING}


def _nan() -> tuple[list[NodeProto], dict[str, Any]]:
    """The root of Gelu(1) - 0.84127: of 7.5e-5, or of -7.8e-5 when Gelu is approximated; times zero."""
    lines = (
        "Mul x null -> n1",
        "Add n1 whole -> n2",
        "Div n2 root2 -> n3",
        "Erf n3 -> n4",
        "Add n4 whole -> n5",
        "Mul n2 n5 -> n6",
        "Mul n6 half -> gelu",
        "Sub gelu bound -> n7",
        "Sqrt n7 -> n8",
        "Mul n8 null -> n9",
    )
    nodes = [*(node(line) for line in lines), node("ReduceMax n9 -> nan", keepdims=0)]
    constants = {"null": scalar(0), "whole": scalar(1), "root2": scalar(2**0.5), "half": scalar(0.5)}
    return nodes, {**constants, "bound": scalar(0.84127)}


_POOLING = {"unit": np.array([1]), "seed": np.ones((1, 1, 1), np.float32)}


def _pooling(length: str) -> list[NodeProto]:
    """`pooled`, the largest mean over a window of `length` ones: 1."""
    return [
        node(f"Concat unit unit {length} -> shape", axis=0),
        node("Expand seed shape -> ones1"),
        node("AveragePool ones1 -> means", kernel_shape=[WINDOW]),
        node("ReduceMax means -> pooled", keepdims=0),
    ]


def _branch(
    nodes: list[NodeProto], output: str, constants: dict[str, Any], shape: tuple[int, ...] = (4,)
) -> Any:
    weights = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    result = helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)
    return helper.make_graph(nodes, output, [], [result], weights)


def _loop_body(nodes: list[NodeProto], constants: dict[str, Any]) -> Any:
    def value(name: str, kind: int) -> Any:
        return helper.make_tensor_value_info(name, kind, ())

    inputs = [value("i", TensorProto.INT64), value("go", TensorProto.BOOL), value("v", TensorProto.INT64)]
    outputs = [value("on", TensorProto.BOOL), value("w", TensorProto.INT64)]
    weights = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    return helper.make_graph(nodes, "body", inputs, outputs, weights)
