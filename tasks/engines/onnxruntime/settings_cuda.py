"""The options of ONNX Runtime's CUDA provider that a route may set, as one table.

The library refuses provider options that it does not know, but says nothing of those that do nothing for a
model. Left out are options that our runner decides: `device_id`, `user_compute_stream`, and with a stream of
ours `do_copy_in_default_stream` and `use_ep_level_unified_stream`, which then have no effect.
"""

from __future__ import annotations

from functools import cache

from routetune.tasks.engines.onnxruntime.settings import FLAG, Setting, settings

#: Session options and config entries that act on the CUDA provider's nodes too. The others are of the CPU's
#: kernels, its thread pools and its memory.
_SHARED = (
    "graph_optimization_level",
    "free_dimension_override",
    "session.graph_optimizations_loop_level",
    "optimization.constant_folding_max_output_size_in_bytes",
    "optimization.enable_gelu_approximation",
    "optimization.enable_cast_chain_elimination",
    "session.disable_aot_function_inlining",
    "enable_mem_pattern",
    "enable_mem_reuse",
    "session.use_device_allocator_for_initializers",
    "session.disable_prepacking",
    "session.disable_quant_qdq",
    "session.enable_quant_qdq_cleanup",
    "session.disable_double_qdq_remover",
    "session.enable_dq_matmulnbits_fusion",
    "session.qdq_matmulnbits_accuracy_level",
    "session.qdq_matmulnbits_block_size",
)


def _option(
    name: str,
    values: tuple[str, ...],
    default: str,
    help_text: str,
    changes_results: bool = False,
    shapes: bool = False,
) -> Setting:
    # All at load, those too that shape the graph: a provider's options are of one piece, and a reloaded
    # engine was seen to be bit-identical under the options it was built with.
    return Setting(name, values, default, help_text, "provider", True, changes_results, shapes)


_PROVIDER = (
    _option(
        "use_tf32",
        FLAG,
        "1",
        "Multiply float32 in TF32, with ten bits of mantissa.",
        changes_results=True,
    ),
    _option(
        "prefer_nhwc",
        FLAG,
        "0",
        "Compute convolutions, pooling and normalisation channels-last.",
        changes_results=True,
        shapes=True,
    ),
    _option(
        "enable_cuda_graph",
        FLAG,
        "0",
        "Capture the run once for each set of buffers and launch it as one CUDA graph. Needs every node on "
        "the GPU, and shapes that do not depend on values.",
    ),
    _option(
        "cudnn_conv_algo_search",
        ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
        "EXHAUSTIVE",
        "How cuDNN's convolution algorithm is chosen at the first run of each shape: by timing all, by "
        "cuDNN's heuristic, or always the same one.",
        changes_results=True,
    ),
    _option(
        "cudnn_conv_use_max_workspace",
        FLAG,
        "1",
        "Let cuDNN's convolutions take as much workspace as they like, instead of 32 MB.",
        changes_results=True,
    ),
    _option(
        "cudnn_conv1d_pad_to_nc1d",
        FLAG,
        "0",
        "Pad the input of one-dimensional convolutions to [N, C, 1, D] instead of [N, C, D, 1].",
        changes_results=True,
    ),
    _option(
        "fuse_conv_bias",
        FLAG,
        "0",
        "Let cuDNN add the bias within the convolution. Seen to break outputs without prefer_nhwc.",
        changes_results=True,
    ),
    _option(
        "sdpa_kernel",
        ("0", "1", "2", "4", "8", "16"),
        "0",
        "Attention kernels that may be used: 0 leaves it to the library, 1 is flash attention, 2 memory "
        "efficient attention, 4 TensorRT's fused one, 8 cuDNN's flash attention, 16 plain multiplications.",
        changes_results=True,
    ),
    _option(
        "enable_skip_layer_norm_strict_mode",
        FLAG,
        "0",
        "Normalise residual sums in the more precise of two kernels.",
        changes_results=True,
    ),
    _option(
        "tunable_op_enable",
        FLAG,
        "0",
        "Use operators that can be tuned at run time, where there are some.",
        changes_results=True,
    ),
    _option(
        "tunable_op_tuning_enable",
        FLAG,
        "0",
        "Tune these operators at the first run of each shape; needs tunable_op_enable.",
        changes_results=True,
    ),
    _option(
        "arena_extend_strategy",
        ("kNextPowerOfTwo", "kSameAsRequested"),
        "kNextPowerOfTwo",
        "How the arena of GPU memory grows: doubling, or by what is asked.",
    ),
)


@cache
def every_setting() -> dict[str, Setting]:
    """The rows of all devices by name; a name means the same wherever it is allowed."""
    return settings() | {row.name: row for row in _PROVIDER}


@cache
def settings_on(kind: str) -> dict[str, Setting]:
    """The rows that routes may set on a kind of device, "cpu" or "cuda", by name."""
    if kind != "cuda":
        return settings()
    shared = {name: row for name, row in settings().items() if name in _SHARED}
    return shared | {row.name: row for row in _PROVIDER}
