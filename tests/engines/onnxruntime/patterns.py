"""For each graph transformer of ONNX Runtime, and each setting that shapes graphs, a model it acts on."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, helper
from routetune.tasks.engines.onnxruntime.rules import graph, node, ramp, scalar

from tests.engines.onnxruntime.quantised import MICROSOFT, PATTERNS, FLOAT2x4, Make, low_bits, pattern

__all__ = ["PATTERNS", "Make", "low_bits"]

GELU = {"root2": scalar(2**0.5), "one": scalar(1), "half": scalar(0.5)}
NORM = {"two": scalar(2), "eps": scalar(1e-5), "gamma": ramp(4), "beta": ramp(4)}


def gelu(source: str = "x", target: str = "y") -> list[NodeProto]:
    lines = ("Div {x} root2 -> ge1", "Erf ge1 -> ge2", "Add ge2 one -> ge3", "Mul {x} ge3 -> ge4")
    return [node(line.format(x=source)) for line in (*lines, f"Mul ge4 half -> {target}")]


def layer_norm(source: str = "x", target: str = "y") -> list[NodeProto]:
    return [
        node(f"ReduceMean {source} -> ln1", axes=[-1]),
        node(f"Sub {source} ln1 -> ln2"),
        node("Pow ln2 two -> ln3"),
        node("ReduceMean ln3 -> ln4", axes=[-1]),
        node("Add ln4 eps -> ln5"),
        node("Sqrt ln5 -> ln6"),
        node("Div ln2 ln6 -> ln7"),
        node("Mul ln7 gamma -> ln8"),
        node(f"Add ln8 beta -> {target}"),
    ]


@pattern("ConstantSharing")
def sharing() -> ModelProto:
    nodes = [node("Add x a -> s"), node("Sigmoid s -> t"), node("Add t b -> y")]
    return graph(nodes, {"a": scalar(2), "b": scalar(2)})


@pattern("CommonSubexpressionElimination")
def common() -> ModelProto:
    return graph([node("Exp x -> a"), node("Exp x -> b"), node("Add a b -> y")])


@pattern("ConstantFolding")
def folding() -> ModelProto:
    return graph([node("Add a b -> t"), node("Add x t -> y")], {"a": ramp(4), "b": ramp(4)})


@pattern("optimization.constant_folding_max_output_size_in_bytes")
def folding_of_sizes() -> ModelProto:
    """Constant expressions whose results are just above each of the offered limits."""
    nodes, constants = [], {}
    sums = []
    for size in (4096, 65536, 1048576, 16777216):
        name = f"t{size}"
        constants[f"r{size}"] = np.array([size // 16 + 1])
        nodes += [node(f"Tile a r{size} -> {name}"), node(f"Gather {name} i -> g{size}")]
        sums.append(f"g{size}")
    # The index is an input, so that only the Tile is constant.
    nodes.append(node(f"Sum x {' '.join(sums)} -> y"))
    return graph(nodes, {"a": ramp(4), **constants}, others={"i": ("INT64", (4,))})


@pattern("MatMulAddFusion")
def matmul_add() -> ModelProto:
    return graph([node("MatMul x w -> m"), node("Add m b -> y")], {"w": ramp(4, 4), "b": ramp(4)}, **FLOAT2x4)


@pattern("ReshapeFusion")
def reshape() -> ModelProto:
    nodes = [
        node("Shape x -> s"),
        node("Gather s i -> d"),
        node("Unsqueeze d axes -> e"),
        node("Concat e rest -> to", axis=0),
        node("Reshape x to -> y"),
    ]
    constants = {"i": np.array(0), "axes": np.array([0]), "rest": np.array([12])}
    return graph(nodes, constants, x=("n", 3, 4), y=("n", 12))


@pattern("SliceConcatToSpaceToDepthFusion")
def space_to_depth() -> ModelProto:
    corners = [(a, b) for a in (0, 1) for b in (0, 1)]
    starts = {f"s{a}{b}": np.array([a, b]) for a, b in corners}
    nodes = [node(f"Slice x s{a}{b} ends axes two -> p{a}{b}") for a, b in corners]
    constants = {
        **starts,
        "ends": np.array([2**31 - 1] * 2),
        "axes": np.array([2, 3]),
        "two": np.array([2, 2]),
    }
    nodes.append(node("Concat p00 p01 p10 p11 -> y", axis=1))
    return graph(nodes, constants, x=(1, 3, 8, 8), y=(1, 12, 4, 4))


@pattern("GeluFusionL1")
def gelu_standard() -> ModelProto:
    return graph(gelu(), GELU, opsets={"": 20})


@pattern("GeluFusionL2", "optimization.enable_gelu_approximation")
def gelu_fused() -> ModelProto:
    return graph(gelu(), GELU)


@pattern("LayerNormFusionL1")
def norm_standard() -> ModelProto:
    return graph(layer_norm(), NORM, **FLOAT2x4)


@pattern("LayerNormFusionL2")
def norm_fused() -> ModelProto:
    return graph(layer_norm(), NORM, **FLOAT2x4, opsets={"": 16})


@pattern("SimplifiedLayerNormFusion")
def root_mean_square_norm() -> ModelProto:
    nodes = [
        node("Pow x two -> p"),
        node("ReduceMean p -> m", axes=[-1]),
        node("Add m eps -> e"),
        node("Sqrt e -> s"),
        node("Div x s -> n"),
        node("Mul n gamma -> y"),
    ]
    return graph(nodes, NORM, **FLOAT2x4)


@pattern("TransposeOptimizer")
def transposes() -> ModelProto:
    """Two transposes that cancel, between a convolution and a sum that fuse only at the first level."""
    nodes = [
        node("Conv x w -> c"),
        node("Transpose c -> t", perm=[0, 2, 3, 1]),
        node("Transpose t -> u", perm=[0, 3, 1, 2]),
        node("Add u k -> y"),
    ]
    return graph(nodes, {"w": ramp(4, 2, 1, 1), "k": ramp(4, 1, 1)}, x=(1, 2, 4, 4), y=(1, 4, 4, 4))


@pattern("TransposeOptimizer_CPUExecutionProvider")
def channels_last_pool() -> ModelProto:
    nodes = [
        node("Transpose x -> t", perm=[0, 3, 1, 2]),
        node("MaxPool t -> u", kernel_shape=[2, 2]),
        node("Transpose u -> y", perm=[0, 2, 3, 1]),
    ]
    return graph(nodes, x=(1, 4, 4, 2), y=(1, 3, 3, 2), x_type="UINT8", y_type="UINT8")


@pattern("GemmActivationFusion")
def gemm_relu() -> ModelProto:
    return graph([node("Gemm x w b -> g"), node("Relu g -> y")], {"w": ramp(4, 4), "b": ramp(4)}, **FLOAT2x4)


@pattern("ConvActivationFusion")
def conv_activation() -> ModelProto:
    # One-dimensional, so that the blocked layout, which would fuse it as well, does not apply.
    nodes = [node("Conv x w -> c"), node("LeakyRelu c -> y", alpha=0.1)]
    return graph(nodes, {"w": ramp(4, 3, 1)}, x=(1, 3, 4), y=(1, 4, 4))


@pattern("ConvAddActivationFusion")
def conv_add_activation() -> ModelProto:
    # Weights that are an input keep the blocked layout away.
    nodes = [node("Conv x w b -> c"), node("Add c z -> a"), node("Relu a -> y")]
    others = {"w": ("FLOAT", (6, 3, 3, 3)), "z": ("FLOAT", (1, 6, 6, 6))}
    return graph(nodes, {"b": ramp(6)}, x=(1, 3, 8, 8), y=(1, 6, 6, 6), others=others)


@pattern("NchwcTransformer")
def conv() -> ModelProto:
    return graph([node("Conv x w -> y")], {"w": ramp(16, 3, 3, 3)}, x=(1, 3, 8, 8), y=(1, 16, 6, 6))


@pattern("FuseFp16InitializerToFp32NodeTransformer")
def half_conv() -> ModelProto:
    weight = {"w": ramp(4, 3, 3, 3).astype(np.float16)}
    types = {"x_type": "FLOAT16", "y_type": "FLOAT16"}
    return graph([node("Conv x w -> y")], weight, x=(1, 3, 8, 8), y=(1, 4, 6, 6), **types)


@pattern("GatherSliceToSplitFusion")
def gathers() -> ModelProto:
    nodes = [node(f"Gather x i{i} -> g{i}", axis=1) for i in range(3)]
    nodes.append(node("Sum g0 g1 g2 -> y"))
    return graph(nodes, {f"i{i}": np.array(i) for i in range(3)}, x=(2, 3, 4), y=(2, 4))


@pattern("GatherToSliceFusion")
def gather_range() -> ModelProto:
    nodes = [node("Range from to by -> r"), node("Gather x r -> g", axis=0), node("Relu g -> y")]
    constants = {"from": np.array(0), "by": np.array(1)}
    return graph(nodes, constants, x=(8, 4), y=("k", 4), others={"to": ("INT64", ())})


@pattern("MatmulTransposeFusion")
def transposed_matmul() -> ModelProto:
    nodes = [node("Transpose x -> t", perm=[0, 2, 1]), node("MatMul t z -> y")]
    return graph(nodes, x=(2, 4, 3), y=(2, 3, 5), others={"z": ("FLOAT", (2, 4, 5))})


@pattern("MatMulScaleFusion")
def scaled_matmul() -> ModelProto:
    nodes = [node("MatMul x z -> m"), node("Mul m k -> y")]
    return graph(nodes, {"k": scalar(0.25)}, **FLOAT2x4, others={"z": ("FLOAT", (4, 4))})


@pattern("BiasGeluFusion")
def bias_gelu() -> ModelProto:
    return graph([node("Add x b -> g"), *gelu("g")], {**GELU, "b": ramp(4)}, **FLOAT2x4)


@pattern("FastGeluFusion")
def fast_gelu() -> ModelProto:
    lines = ("Mul x half -> h", "Pow x three -> p", "Mul p k -> q", "Add x q -> r", "Mul r root -> s")
    rest = ("Tanh s -> t", "Add t one -> u", "Mul h u -> f", "Sigmoid f -> y")
    constants = {"three": scalar(3), "k": scalar(0.044715), "root": scalar(0.7978845834732056)}
    return graph([node(line) for line in (*lines, *rest)], {**GELU, **constants})


@pattern("QuickGeluFusion")
def quick_gelu() -> ModelProto:
    nodes = [node("Mul x a -> m"), node("Sigmoid m -> s"), node("Mul x s -> y")]
    return graph(nodes, {"a": scalar(1.702)})


@pattern("SkipLayerNormFusion")
def skip_norm() -> ModelProto:
    shape = (1, 2, 4)
    nodes = [node("Add x z -> s"), *layer_norm("s")]
    return graph(nodes, NORM, x=shape, y=shape, others={"z": ("FLOAT", shape)})


@pattern("BiasSkipLayerNormFusion")
def bias_skip_norm() -> ModelProto:
    shape = ("b", "s", 4)
    nodes = [
        node("MatMul x w -> m"),
        node("Add m b -> a"),
        node("com.microsoft:SkipLayerNormalization a z gamma beta -> y"),
    ]
    constants = {"w": ramp(4, 4), "b": ramp(4), "gamma": ramp(4), "beta": ramp(4)}
    return graph(nodes, constants, x=shape, y=shape, others={"z": ("FLOAT", shape)}, opsets=MICROSOFT)


@pattern("EmbedLayerNormFusion")
def embeddings() -> ModelProto:
    lines = (
        "Gather word x -> a",
        "Gather position p -> b",
        "Gather segment z -> c",
        "Add a b -> d",
        "Add d c -> e",
    )
    nodes = [node(line) for line in lines]
    nodes.append(node("LayerNormalization e gamma beta -> n"))
    nodes.append(node("com.microsoft:Attention n aw ab -> y", num_heads=2))
    tables = {"word": ramp(16, 8), "position": ramp(4, 8), "segment": ramp(2, 8), "p": np.arange(4)[None]}
    weights = {"gamma": ramp(8), "beta": ramp(8), "aw": ramp(8, 24), "ab": ramp(24)}
    others = {"z": ("INT64", (1, 4))}
    constants = {**tables, **weights}
    return graph(nodes, constants, x=(1, 4), y=(1, 4, 8), x_type="INT64", others=others, opsets=MICROSOFT)


@pattern("AttentionFusion")
def attention() -> ModelProto:
    constants = {**NORM, "gamma": ramp(8), "beta": ramp(8), "heads": np.array([0, 0, 2, 4])}
    constants |= {"width": np.array([0, 0, 8]), "scale": scalar(2), "one": scalar(1), "low": scalar(-10000)}
    nodes = layer_norm("x", "L")
    for part, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            node(f"MatMul L {part}w -> {part}1"),
            node(f"Add {part}1 {part}b -> {part}2"),
            node(f"Reshape {part}2 heads -> {part}3"),
            node(f"Transpose {part}3 -> {part}4", perm=order),
        ]
    nodes += [node("Unsqueeze mask -> m1", axes=[1]), node("Unsqueeze m1 -> m2", axes=[2])]
    lines = (
        "Sub one m3 -> m4",
        "Mul m4 low -> m5",
        "MatMul q4 k4 -> a1",
        "Div a1 scale -> a2",
        "Add a2 m5 -> a3",
    )
    nodes += [node("Cast m2 -> m3", to=1), *(node(line) for line in lines)]
    nodes += [node("Softmax a3 -> a4", axis=3), node("MatMul a4 v4 -> a5")]
    nodes += [node("Transpose a5 -> a6", perm=[0, 2, 1, 3]), node("Reshape a6 width -> a7")]
    nodes += [node("MatMul a7 ow -> o1"), node("Add o1 ob -> o2"), node("Add o2 L -> y")]
    for part in "qkvo":
        constants |= {f"{part}w": ramp(8, 8) * 0.5, f"{part}b": ramp(8)}
    others = {"mask": ("INT64", ("b", "s"))}
    return graph(nodes, constants, x=("b", "s", 8), y=("b", "s", 8), others=others, opsets={"": 12})


@pattern("optimization.enable_cast_chain_elimination")
def cast_chain() -> ModelProto:
    return graph([node("Cast x -> h", to=10), node("Cast h -> f", to=1), node("Relu f -> y")])


@pattern("session.disable_aot_function_inlining")
def local_function() -> ModelProto:
    """A convolution inside a function and its normalisation outside: fused only if inlined early."""
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("local", "F", ["a", "w"], ["b"], [node("Conv a w -> b")], opsets)
    constants = {
        "w": ramp(4, 2, 1, 1),
        "scale": ramp(4),
        "bias": ramp(4),
        "mean": ramp(4),
        "var": np.ones(4, np.float32),
    }
    nodes = [node("local:F x w -> c"), node("BatchNormalization c scale bias mean var -> y")]
    model = graph(nodes, constants, x=(1, 2, 4, 4), y=(1, 4, 4, 4), opsets={"local": 1})
    model.functions.append(function)
    return model


@pattern("free_dimension_override")
def shape_arithmetic() -> ModelProto:
    nodes = [node("Shape x -> s"), node("Gather s i -> n"), node("Cast n -> f", to=1), node("Mul x f -> y")]
    return graph(nodes, {"i": np.array(0)}, x=("n", 4), y=("n", 4))


@pattern("graph_optimization_level")
def something_for_every_level() -> ModelProto:
    """Identity (basic), a fused Gemm (extended), a convolution (layout), half precision (all)."""
    nodes = [
        node("Identity x -> i"),
        node("Conv i w -> c"),
        node("Cast c -> h", to=10),
        node("Conv h hw -> g"),
        node("Cast g -> f", to=1),
        node("Flatten f -> v"),
        node("Gemm v m -> n"),
        node("Relu n -> y"),
    ]
    constants = {"w": ramp(16, 3, 3, 3), "hw": ramp(16, 16, 1, 1).astype(np.float16), "m": ramp(576, 4)}
    return graph(nodes, constants, x=(1, 3, 8, 8), y=(1, 4))


def pointwise() -> ModelProto:
    """A 1x1 convolution over many channels, whose sums depend on how they are cut."""
    weight = np.random.default_rng(0).standard_normal((64, 2048, 1, 1)).astype(np.float32)
    return graph([node("Conv x w -> y")], {"w": weight}, x=(1, 2048, 4, 4), y=(1, 64, 4, 4))


def big_gemm() -> ModelProto:
    weight = np.random.default_rng(0).standard_normal((256, 128)).astype(np.float32)
    return graph([node("Gemm x w -> y")], {"w": weight}, x=(3, 256), y=(3, 128))


def denormal() -> ModelProto:
    """x / x for a denormal x: 1, or 0 / 0 where denormals are zero."""
    return graph([node("Mul x tiny -> d"), node("Div d d -> y")], {"tiny": scalar(1e-40)}, x=("n",), y=("n",))
