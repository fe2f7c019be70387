"""ONNX Runtime's session options and config entries that a route may set, as one table.

Only those with an effect on the CPU provider are here; what the CUDA provider has besides, and which of these
act on it, is in `settings_cuda`. The library itself accepts unknown entries and most
bad values without a word, so everything is checked against this table before it gets there.
"""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from functools import cache
from typing import Literal

from routetune.tasks.targets.processor import cores

SWITCH = ("on", "off")
FLAG = ("0", "1")

#: Where a setting goes: an attribute of SessionOptions, a config entry, the shapes of the inputs, or the
#: options of the execution provider.
Place = Literal["attribute", "entry", "shapes", "provider"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One session option or config entry.

    Attributes:
        name: as the library calls it; the knob's name is this with a "-" before it.
        values: what it may be set to.
        default: what leaving it alone means; never handed to the library.
        help: what it does.
        place: where it goes.
        at_load: it acts when an engine is loaded or run, so it is applied again whenever that happens.
            The others are baked into the engine's graph.
        changes_results: it may change the outputs, if only by rounding.
        shapes: it acts at load and shapes the graph too, so that no build is shared across its values.
    """

    name: str
    values: tuple[str, ...]
    default: str
    help: str
    place: Place = "entry"
    at_load: bool = False
    changes_results: bool = False
    shapes: bool = False

    @property
    def only_at_load(self) -> bool:
        """Whether builds that differ in it alone give the same graph."""
        return self.at_load and not self.shapes


@cache
def settings() -> dict[str, Setting]:
    """The table by name, with the rows that this machine can use and its numbers of threads."""
    rows = (*_GRAPH, *_thread_rows(), *_MEMORY, *_KERNELS, *_QUANTIZATION)
    return {row.name: row for row in rows if row.name not in _ONLY or _ONLY[row.name]}


def thread_counts() -> tuple[str, ...]:
    """0, and powers of two up to the cores that this process may use, and their number.

    1, 2 and 4 are always there, so that a target file means the same on a smaller machine.
    """
    usable = cores() or 1
    powers = [1 << power for power in range(10) if 1 << power <= max(4, usable)]
    return tuple(str(count) for count in sorted({0, *powers, usable}))


def _thread_rows() -> list[Setting]:
    return [
        *_SCHEDULING,
        Setting(
            "intra_op_num_threads",
            thread_counts(),
            "0",
            "Threads that share the work of one node; 0 is one for each physical core, or for each core that "
            "the process may use, where those are fewer than there are.",
            place="attribute",
            at_load=True,
            changes_results=True,
        ),
        Setting(
            "inter_op_num_threads",
            thread_counts(),
            "0",
            "Threads that run nodes side by side in parallel mode; 0 as for intra_op_num_threads.",
            place="attribute",
            at_load=True,
        ),
        *(row for pool in ("intra_op", "inter_op") for row in _spinning(pool)),
    ]


def _spinning(pool: str) -> list[Setting]:
    return [
        Setting(
            f"session.{pool}.allow_spinning",
            FLAG,
            "1",
            f"Let idle {pool} threads spin for new work before they sleep.",
            at_load=True,
        ),
        Setting(
            f"session.{pool}.spin_duration_us",
            ("-1", "0", "10", "100", "1000", "10000"),
            "-1",
            f"Microseconds that idle {pool} threads spin before they sleep; -1 leaves it to the library.",
            at_load=True,
        ),
        Setting(
            f"session.{pool}.spin_backoff_max",
            ("1", "2", "4", "8", "16", "64"),
            "1",
            f"How far the pauses between two looks of a spinning {pool} thread may grow; 1 is no growth.",
            at_load=True,
        ),
    ]


_X86 = platform.machine().lower() in ("x86_64", "amd64")

#: Rows that only some machines have.
_ONLY = {
    "session.x64quantprecision": _X86,
    # The library flushes denormals on x86 only, and the calling thread's part in it is ours to do.
    "session.set_denormal_as_zero": sys.platform == "linux" and platform.machine() == "x86_64",
}

_GRAPH = (
    Setting(
        "graph_optimization_level",
        ("disabled", "basic", "extended", "layout", "all"),
        "all",
        "How far the graph is rewritten: not at all, with standard operators, with fused operators, "
        "with other memory layouts, with everything.",
        place="attribute",
        changes_results=True,
    ),
    Setting(
        "free_dimension_override",
        SWITCH,
        "off",
        "Fix every symbolic input dimension to the first profile's opt shape, so that shape arithmetic "
        "is folded away; the engine then takes that one shape only.",
        place="shapes",
    ),
    Setting(
        "session.graph_optimizations_loop_level",
        ("0", "1", "2"),
        "1",
        "Whether level 2 and 3 rewrites run again after the last fusions: never, where these changed "
        "the graph, or until nothing changes.",
    ),
    Setting(
        "optimization.constant_folding_max_output_size_in_bytes",
        ("default", "4096", "65536", "1048576", "16777216"),
        "default",
        "Leave a constant expression unfolded when its result is larger than this.",
    ),
    Setting(
        "optimization.enable_gelu_approximation",
        FLAG,
        "0",
        "Compute Gelu by its tanh approximation (FastGelu).",
        changes_results=True,
    ),
    Setting(
        "optimization.enable_cast_chain_elimination",
        FLAG,
        "0",
        "Drop the casts in between in a chain of casts, with the rounding that they did.",
        changes_results=True,
    ),
    Setting(
        "session.disable_aot_function_inlining",
        FLAG,
        "0",
        "Inline model-local functions only after the first level of rewrites instead of before it.",
        changes_results=True,
    ),
)

_SCHEDULING = (
    Setting(
        "execution_mode",
        ("sequential", "parallel"),
        "sequential",
        "Run independent nodes one after the other, or side by side on the inter-op threads.",
        place="attribute",
        at_load=True,
    ),
    Setting(
        "execution_order",
        ("default", "priority_based"),
        "default",
        "The order in which nodes that do not depend on each other run.",
        place="attribute",
        at_load=True,
    ),
    Setting(
        "session.force_spinning_stop",
        FLAG,
        "0",
        "Let the threads stop spinning as soon as the last run at work has ended.",
        at_load=True,
    ),
    Setting(
        "session.dynamic_block_base",
        ("0", "1", "2", "4", "8", "16"),
        "0",
        "Cut the work of a node into blocks that shrink towards its end, this many for each thread at first; "
        "0 cuts into equal blocks.",
        at_load=True,
    ),
)

_MEMORY = (
    Setting(
        "enable_mem_pattern",
        SWITCH,
        "on",
        "Remember the allocations of a run and make them at once in the next run of equal shapes.",
        place="attribute",
        at_load=True,
    ),
    Setting(
        "enable_mem_reuse",
        SWITCH,
        "on",
        "Let tensors that are no longer needed give their memory to later ones.",
        place="attribute",
        at_load=True,
    ),
    Setting(
        "enable_cpu_mem_arena",
        SWITCH,
        "on",
        "Keep freed memory in an arena instead of giving it back to the system.",
        place="attribute",
        at_load=True,
    ),
    Setting(
        "session.use_device_allocator_for_initializers",
        FLAG,
        "0",
        "Allocate weights from the system, outside the arena.",
        at_load=True,
    ),
)

_KERNELS = (
    Setting(
        "session.disable_prepacking",
        FLAG,
        "0",
        "Keep weights as they are in the model instead of rearranging them for the kernels at load.",
        at_load=True,
        changes_results=True,
    ),
    Setting(
        "session.set_denormal_as_zero",
        FLAG,
        "0",
        "Treat denormal numbers as zero, while building and while running.",
        at_load=True,
        changes_results=True,
        shapes=True,
    ),
    Setting(
        "mlas.nchwc_pointwise_conv_max_input_channel_batch",
        ("16", "32", "64", "128", "256", "512", "1024"),
        "128",
        "How many input channels a 1x1 convolution in the blocked layout sums at a time.",
        at_load=True,
        changes_results=True,
    ),
    Setting(
        "mlas.nchwc_depthwise_sliding",
        FLAG,
        "1",
        "The sliding-window kernel for depthwise convolutions in the blocked layout, where the processor "
        "has AVX-512.",
        at_load=True,
    ),
    Setting(
        "mlas.use_lut_gemm",
        FLAG,
        "0",
        "Multiply by 2-bit weights through look-up tables.",
        at_load=True,
        changes_results=True,
    ),
    Setting(
        "mlas.qnbit.force_fp32",
        FLAG,
        "0",
        "Multiply by 4-bit weights in float32 where the node allows int8.",
        at_load=True,
        changes_results=True,
    ),
)

_QUANTIZATION = (
    Setting(
        "session.disable_quant_qdq",
        FLAG,
        "0",
        "Leave Q/DQ pairs as they are and compute in float between them.",
        changes_results=True,
    ),
    Setting(
        "session.enable_quant_qdq_cleanup",
        FLAG,
        "0",
        "Remove Q/DQ pairs that no integer kernel absorbed.",
        changes_results=True,
    ),
    Setting(
        "session.disable_double_qdq_remover",
        FLAG,
        "0",
        "Leave two Q/DQ pairs in a row as they are.",
        changes_results=True,
    ),
    Setting(
        "session.qdqisint8allowed",
        FLAG,
        "0" if _X86 else "1",
        "Let integer kernels take signed 8-bit activations instead of turning them into unsigned ones.",
        changes_results=True,
    ),
    Setting(
        "session.x64quantprecision",
        FLAG,
        "0",
        "Unsigned 8-bit weights, which cannot saturate on processors without VNNI.",
        changes_results=True,
    ),
    Setting(
        "session.enable_dq_matmulnbits_fusion",
        FLAG,
        "0",
        "Fuse DequantizeLinear, Reshape, Transpose and MatMul into one n-bit multiplication.",
        changes_results=True,
    ),
    Setting(
        "session.qdq_matmulnbits_accuracy_level",
        ("0", "1", "2", "3", "4"),
        "4",
        "Arithmetic of n-bit multiplications made from Q/DQ: 1 is float32, 2 float16, 3 bfloat16, 4 int8.",
        changes_results=True,
    ),
    Setting(
        "session.qdq_matmulnbits_block_size",
        ("16", "32", "64", "128", "256"),
        "32",
        "The block size of n-bit multiplications made from Q/DQ with one scale for each channel.",
        changes_results=True,
    ),
)
