"""The rewrites of ONNX Runtime's optimiser that can be switched off one by one, in our words.

Graph transformers and rewrite rules are both named in `disabled_optimizers`. The verbose log names the
transformers that a build runs; rules run unseen inside two of them, and show only in what they do.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pass:
    """A graph transformer or rewrite rule: its name, what it does, whether outputs may change by rounding."""

    name: str
    help: str
    changes_results: bool = False


#: Transformers that act on the CUDA provider's nodes only, and on the CPU's only.
CUDA_ONLY = frozenset(
    {"BiasSoftmaxFusion", "GroupQueryAttentionFusion", "GroupQueryAttentionPreNormFusion", "SwiGluFusion"}
)
CPU_ONLY = frozenset(
    {
        "TransposeOptimizer_CPUExecutionProvider",
        "QDQS8ToU8Transformer",
        "GemmActivationFusion",
        "MatMulIntegerToFloatFusion",
        "DynamicQuantizeMatMulFusion",
        "NchwcTransformer",
        "NhwcTransformer",
        "ConvAddActivationFusion",
    }
)
#: Transformers that no knob switches: those that hold the rules, the one that applies the fixed dimensions,
#: one that runs even when it is named, and those of other providers.
_NEVER = frozenset(
    {
        "Level1_RuleBasedTransformer",
        "Level2_RuleBasedTransformer",
        "Level3_RuleBasedTransformer",
        "FreeDimensionOverrideTransformer",
        "EnsureUniqueDQForNodeUnit",
        "BiasDropoutFusion",
        "MatMulActivationFusion",
        "RocmBlasAltImpl",
    }
)
#: The same for the CPU's knobs, and for the CUDA provider's.
NOT_KNOBS = _NEVER | CUDA_ONLY
NOT_KNOBS_ON_CUDA = _NEVER | CPU_ONLY

_TRANSFORMERS = (
    Pass("DoubleQDQPairsRemover", "Make one Q/DQ pair of two in a row.", True),
    Pass("ConstantSharing", "Let equal constants be one."),
    Pass("CommonSubexpressionElimination", "Compute equal expressions once."),
    Pass("ConstantFolding", "Compute expressions of constants while building."),
    Pass("MatMulAddFusion", "Make a Gemm of MatMul and Add.", True),
    Pass("ReshapeFusion", "Make one Reshape of one whose shape is put together from pieces."),
    Pass("SliceConcatToSpaceToDepthFusion", "Make SpaceToDepth of strided slices that are joined again."),
    Pass("GeluFusionL1", "Make a standard Gelu of its parts, from opset 20 on.", True),
    Pass("LayerNormFusionL1", "Make a standard LayerNormalization of its parts, from opset 17 on.", True),
    Pass("QDQPropagationTransformer", "Move Q/DQ pairs past nodes that only move data.", True),
    Pass(
        "WeightBiasQuantization", "Quantise float weights and biases of nodes whose data is quantised.", True
    ),
    Pass("WhereDummyDq", "Quantise the constant branch of a Where whose other branch is quantised.", True),
    Pass("TransposeOptimizer", "Push transposes through the graph until they cancel."),
    Pass("TransposeOptimizer_CPUExecutionProvider", "The same with the CPU's own channels-last operators."),
    Pass("QDQS8ToU8Transformer", "Turn signed 8-bit activations into unsigned ones.", True),
    Pass("QDQSelectorActionTransformer", "Make integer operators of float ones between Q/DQ pairs.", True),
    Pass("GemmActivationFusion", "Put an activation into the Gemm before it.", True),
    Pass("MatMulIntegerToFloatFusion", "Make one operator of MatMulInteger, Cast and Mul.", True),
    Pass(
        "DynamicQuantizeMatMulFusion", "Put the dynamic quantisation into the multiplication after it.", True
    ),
    Pass("ConvActivationFusion", "Put an activation into the convolution before it.", True),
    Pass("GeluFusionL2", "Make a fused Gelu of its parts.", True),
    Pass("LayerNormFusionL2", "Make a fused LayerNormalization of its parts.", True),
    Pass("SimplifiedLayerNormFusion", "Make a fused root-mean-square normalisation of its parts.", True),
    Pass("AttentionFusion", "Make one Attention operator of the nodes of an attention block.", True),
    Pass("EmbedLayerNormFusion", "Make one operator of embeddings, their sum and its normalisation.", True),
    Pass("BiasSoftmaxFusion", "Put the sum into the Softmax after it.", True),
    Pass("GroupQueryAttentionFusion", "Put rotary embeddings into the attention after them.", True),
    Pass("GroupQueryAttentionPreNormFusion", "Put the normalisation into the attention after it.", True),
    Pass("SwiGluFusion", "Make one operator of the parts of a gated SiLU.", True),
    Pass("GatherSliceToSplitFusion", "Make one Split of Gathers or Slices that share an input."),
    Pass("GatherToSliceFusion", "Make a Slice of a Gather over a range."),
    Pass("MatmulTransposeFusion", "Let the multiplication read its input transposed.", True),
    Pass("BiasGeluFusion", "Put the bias into the Gelu after it.", True),
    Pass("SkipLayerNormFusion", "Put the residual sum into the normalisation after it.", True),
    Pass("BiasSkipLayerNormFusion", "Put the bias into a normalisation that holds a residual sum.", True),
    Pass("FastGeluFusion", "Make a FastGelu of the parts of the tanh approximation.", True),
    Pass("QuickGeluFusion", "Make a QuickGelu of x times the sigmoid of a multiple of x.", True),
    Pass("MatMulScaleFusion", "Put a constant factor into the multiplication beside it.", True),
    Pass("MatMulNBitsFusion", "Put the bias into the n-bit multiplication before it.", True),
    Pass("QDQFinalCleanupTransformer", "Remove DQ/Q pairs that are left over.", True),
    Pass("NchwcTransformer", "Compute convolutions and pooling in a layout blocked by channels.", True),
    Pass("NhwcTransformer", "Compute integer and half-precision convolutions channels-last.", True),
    Pass("ConvAddActivationFusion", "Put a sum and an activation into the convolution before them.", True),
    Pass(
        "FuseFp16InitializerToFp32NodeTransformer", "Store half-precision weights as the float that is used."
    ),
)

_RULES = (
    Pass("EliminateIdentity", "Drop Identity nodes."),
    Pass("EliminateSlice", "Drop slices that keep everything."),
    Pass("UnsqueezeElimination", "Unsqueeze constants while building (opset 12 and below)."),
    Pass("EliminateDropout", "Drop Dropout nodes, which do nothing in inference."),
    Pass("ExpandElimination", "Drop expansions to the shape that is already there."),
    Pass("CastElimination", "Drop casts to the type that is already there."),
    Pass("PreShapeNodeElimination", "Drop casts of which only the shape is used."),
    Pass("NoopElimination", "Drop additions of zero, multiplications by one and the like."),
    Pass("DivMulFusion", "Divide by x instead of multiplying by 1 / x.", True),
    Pass("FuseReluClip", "Make one Clip of Relu and Clip."),
    Pass("GemmSumFusion", "Let the Gemm add what a Sum adds after it.", True),
    Pass("GemmTransposeFusion", "Let the Gemm read its input or write its output transposed.", True),
    Pass("NotWhereFusion", "Swap the branches of a Where instead of negating its condition."),
    Pass("ConvAddFusion", "Add a constant to the bias of the convolution before it.", True),
    Pass("ConvMulFusion", "Multiply a constant into the weights of the convolution before it.", True),
    Pass("ConvBNFusion", "Put a BatchNormalization into the weights of the convolution before it.", True),
    Pass("Pad_Fusion", "Put a Pad into the convolution or pooling after it."),
    Pass(
        "MatMul_BatchNormalization_Fusion",
        "Put a BatchNormalization into the weights of the MatMul before it.",
        True,
    ),
    Pass("LabelEncoderFusion", "Make one LabelEncoder of two in a row."),
    Pass("ClipQuantRewrite", "Drop a Clip whose bounds the quantisation after it imposes anyway."),
    Pass("ReluQuantRewrite", "Drop a Relu that the quantisation after it imposes anyway."),
)

TRANSFORMERS = {entry.name: entry for entry in _TRANSFORMERS}
RULES = {entry.name: entry for entry in _RULES}


def described(name: str) -> Pass:
    """The pass of this name; for one that a newer library has brought, a plain description."""
    known = TRANSFORMERS.get(name) or RULES.get(name)
    return known or Pass(name, "A rewrite of this version of the library.", True)
