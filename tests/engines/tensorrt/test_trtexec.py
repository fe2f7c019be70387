"""trtexec's command lines; its flags as in TensorRT 11's samples/trtexec."""

from __future__ import annotations

import shlex

from routetune.tasks.engines.tensorrt.trtexec import command, untranslated

PROFILES = (
    {
        "x": {"min": [1, 3, 8, 8], "opt": [4, 3, 8, 8], "max": [8, 3, 8, 8]},
        "w": {e: [2] for e in ("min", "opt", "max")},
    },
    {"x": {e: [16, 3, 8, 8] for e in ("min", "opt", "max")}},
)


def test_a_route_and_everything_around_it() -> None:
    route = {
        "-copy_ppg": "off",
        "-kgen:codegen:cuda_tile": "2",
        "+builder_optimization_level": "5",
        "+tiling_optimization_level": "moderate",
        "+l2_limit_for_tiling": "1048576",
        "+max_aux_streams": "0",
        "+max_num_tactics": "7",
        "+avg_timing_iterations": "4",
        "+tf32": "off",
        "+sparse_weights": "on",
        "+tactic_source:jit_convolutions": "off",
        "+preview:aliased_plugin_io_10_03": "on",
    }
    settings = {
        "plugins": ["/opt/my plugin.so"],
        "memory_pools": {"workspace": 512.0, "tactic_dram": 0.5},
        "hardware_compatibility": "ampere_plus",
        "version_compatible": True,
    }
    words = command("model.onnx", route, PROFILES, {"x"}, settings)
    assert words == [
        "trtexec",
        "--onnx=model.onnx",
        "--saveEngine=engine.plan",
        "--minShapes=x:1x3x8x8",
        "--optShapes=x:4x3x8x8",
        "--maxShapes=x:8x3x8x8",
        "--dynamicPlugins=/opt/my plugin.so",
        "--memPoolSize=workspace:512,tacticDRAM:0.5",
        "--hardwareCompatibilityLevel=ampere+",
        "--versionCompatible",
        "--builderOptimizationLevel=5",
        "--tilingOptimizationLevel=2",
        "--l2LimitForTiling=1048576",
        "--maxAuxStreams=0",
        "--maxTactics=7",
        "--avgTiming=4",
        "--noTF32",
        "--sparsity=enable",
        "--tacticSources=-JIT_CONVOLUTIONS",
        "--setBuildRoute=-copy_ppg=off -kgen:codegen:cuda_tile=2",
    ]
    assert shlex.split(shlex.join(words)) == words
    assert untranslated(route) == ["+preview:aliased_plugin_io_10_03=on"]


def test_the_default_route_needs_no_flag() -> None:
    assert command("m.onnx", {}, ({"x": PROFILES[0]["x"]},)) == [
        "trtexec",
        "--onnx=m.onnx",
        "--saveEngine=engine.plan",
    ]
    assert command("m.onnx", {"+max_aux_streams": "auto", "+tf32": "on"})[3:] == []


def test_names_and_shapes_that_need_care() -> None:
    profile = {"a:0": {e: [] for e in ("min", "opt", "max")}, "b": {e: [2] for e in ("min", "opt", "max")}}
    assert "--minShapes='a:0':scalar,b:2" in command("m.onnx", {}, [profile], ["a:0", "b"])
