"""For each rewrite rule of ONNX Runtime, the smallest model on which it acts.

Rules leave no trace in the log by name. Whether the installed library has one is seen by building such a
model with the rule and without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

_MODELS: dict[str, Callable[[], ModelProto]] = {}
_CONV: dict[str, Any] = {"x": (1, 2, 4, 4), "y": (1, 4, 4, 4)}


def models() -> dict[str, ModelProto]:
    """Rule name -> model."""
    return {name: make() for name, make in _MODELS.items()}


def graph(
    nodes: list[NodeProto],
    constants: Mapping[str, Any] | None = None,
    *,
    x: tuple[int | str, ...] = (4,),
    y: tuple[int | str, ...] = (4,),
    x_type: str = "FLOAT",
    y_type: str = "FLOAT",
    others: Mapping[str, tuple[str, tuple[int | str, ...]]] | None = None,
    opsets: Mapping[str, int] | None = None,
) -> ModelProto:
    """A model from "x" to "y"; `others` are more inputs as name -> (type, shape).

    The IR version is one that every library we support reads.
    """
    from onnx import TensorProto, helper, numpy_helper

    def value(name: str, kind: str, shape: tuple[int | str, ...]) -> Any:
        return helper.make_tensor_value_info(name, getattr(TensorProto, kind), shape)

    inputs = [value("x", x_type, x), *(value(name, *rest) for name, rest in (others or {}).items())]
    weights = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    return helper.make_model(
        helper.make_graph(nodes, "g", inputs, [value("y", y_type, y)], weights),
        opset_imports=[helper.make_opsetid(*pair) for pair in {"": 17, **(opsets or {})}.items()],
        ir_version=8,
    )


def node(text: str, **attributes: Any) -> NodeProto:
    """A node from a line such as "Conv x w -> y"; "com.microsoft:Gelu" names a domain."""
    from onnx import helper

    left, _, right = text.partition("->")
    kind, *inputs = left.split()
    domain, _, op = kind.rpartition(":")
    return helper.make_node(
        op, ["" if name == "_" else name for name in inputs], right.split(), domain=domain, **attributes
    )


def ramp(*shape: int) -> np.ndarray[Any, Any]:
    """Float values from -1 to 1."""
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def scalar(value: float, dtype: str = "float32") -> np.ndarray[Any, Any]:
    return np.array(value, dtype)


def _rule(name: str) -> Callable[[Callable[[], ModelProto]], Callable[[], ModelProto]]:
    def register(make: Callable[[], ModelProto]) -> Callable[[], ModelProto]:
        _MODELS[name] = make
        return make

    return register


def _between(*middle: NodeProto, **rest: Any) -> ModelProto:
    """Nodes from "a" to "b" between two others: next to an input or output many rules hold back."""
    return graph([node("Sigmoid x -> a"), *middle, node("Relu b -> y")], **rest)


def _norm() -> dict[str, Any]:
    return {"scale": ramp(4), "bias": ramp(4), "mean": ramp(4), "var": np.ones(4, np.float32)}


def _gemm(*nodes: NodeProto, **rest: Any) -> ModelProto:
    return graph(
        list(nodes), {"w": ramp(4, 4), **rest.pop("constants", {})}, **{"x": (2, 4), "y": (2, 4), **rest}
    )


def _conv(*nodes: NodeProto, kernel: int = 1, **constants: Any) -> ModelProto:
    return graph(list(nodes), {"w": ramp(4, 2, kernel, kernel), **constants}, **_CONV)


@_rule("EliminateIdentity")
def _identity() -> ModelProto:
    return _between(node("Identity a -> b"))


@_rule("EliminateSlice")
def _slice() -> ModelProto:
    bounds = {"from": np.array([0]), "to": np.array([2**63 - 1]), "axes": np.array([0])}
    return _between(node("Slice a from to axes -> b"), constants=bounds)


@_rule("UnsqueezeElimination")
def _unsqueeze() -> ModelProto:
    # From opset 13 on the axes are an input, and the rule holds back.
    nodes = [node("Unsqueeze w -> u", axes=[0]), node("Add u x -> y")]
    return graph(nodes, {"w": ramp(4)}, x=(1, 4), y=(1, 4), opsets={"": 11})


@_rule("EliminateDropout")
def _dropout() -> ModelProto:
    return _between(node("Dropout a -> b"))


@_rule("ExpandElimination")
def _expand() -> ModelProto:
    return _between(node("Expand a to -> b"), constants={"to": np.array([1])})


@_rule("CastElimination")
def _cast() -> ModelProto:
    return _between(node("Cast a -> b", to=1))


@_rule("PreShapeNodeElimination")
def _preshape() -> ModelProto:
    return graph([node("Cast x -> i", to=6), node("Shape i -> y")], x=("n",), y=(1,), y_type="INT64")


@_rule("NoopElimination")
def _noop() -> ModelProto:
    return _between(node("Add a zero -> b"), constants={"zero": scalar(0)})


@_rule("DivMulFusion")
def _divmul() -> ModelProto:
    nodes = [node("Div one x -> r"), node("Mul r z -> y")]
    return graph(nodes, {"one": scalar(1)}, others={"z": ("FLOAT", (4,))})


@_rule("FuseReluClip")
def _reluclip() -> ModelProto:
    return graph([node("Relu x -> r"), node("Clip r low high -> y")], {"low": scalar(0), "high": scalar(6)})


@_rule("GemmSumFusion")
def _gemmsum() -> ModelProto:
    return _gemm(node("Gemm x w -> g"), node("Sum g z -> y"), others={"z": ("FLOAT", (2, 4))})


@_rule("GemmTransposeFusion")
def _gemmtranspose() -> ModelProto:
    return _gemm(node("Transpose x -> t", perm=[1, 0]), node("Gemm t w -> y"), x=(4, 2))


@_rule("NotWhereFusion")
def _notwhere() -> ModelProto:
    nodes = [node("Not c -> n"), node("Where n x w -> y")]
    return graph(nodes, {"w": ramp(4)}, others={"c": ("BOOL", (4,))})


@_rule("ConvAddFusion")
def _convadd() -> ModelProto:
    return _conv(node("Conv x w -> c"), node("Add c k -> y"), k=ramp(4, 1, 1))


@_rule("ConvMulFusion")
def _convmul() -> ModelProto:
    return _conv(node("Conv x w -> c"), node("Mul c k -> y"), k=ramp(4, 1, 1))


@_rule("ConvBNFusion")
def _convnorm() -> ModelProto:
    return _conv(node("Conv x w -> c"), node("BatchNormalization c scale bias mean var -> y"), **_norm())


@_rule("Pad_Fusion")
def _pad() -> ModelProto:
    pads = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    return _conv(node("Pad x pads -> p"), node("Conv p w -> y"), kernel=3, pads=pads)


@_rule("MatMul_BatchNormalization_Fusion")
def _matmulnorm() -> ModelProto:
    return _gemm(
        node("MatMul x w -> m"), node("BatchNormalization m scale bias mean var -> y"), constants=_norm()
    )


@_rule("LabelEncoderFusion")
def _labels() -> ModelProto:
    first = {"keys_int64s": [1, 2], "values_strings": ["a", "b"], "default_string": "c"}
    second = {"keys_strings": ["a", "b"], "values_int64s": [7, 8], "default_int64": 9}
    nodes = [
        node("ai.onnx.ml:LabelEncoder x -> s", **first),
        node("ai.onnx.ml:LabelEncoder s -> y", **second),
    ]
    return graph(nodes, x_type="INT64", y_type="INT64", opsets={"ai.onnx.ml": 4})


def _quantised(*nodes: NodeProto, **constants: Any) -> ModelProto:
    steps = {"step": scalar(0.5), "zero": scalar(0, "uint8"), **constants}
    tail = [node("QuantizeLinear c step zero -> q"), node("DequantizeLinear q step zero -> y")]
    return graph([node("Sigmoid x -> a"), *nodes, *tail], steps)


@_rule("ClipQuantRewrite")
def _clipquant() -> ModelProto:
    return _quantised(node("Clip a low high -> c"), low=scalar(0), high=scalar(127.5))


@_rule("ReluQuantRewrite")
def _reluquant() -> ModelProto:
    return _quantised(node("Relu a -> c"))
