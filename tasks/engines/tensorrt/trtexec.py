"""trtexec's command line for a route: the same model, shapes and settings, built by NVIDIA's own tool."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from routetune.tasks.engines.tensorrt.knobs import PREVIEW, TACTIC_SOURCE

_TILING = {"none": "0", "fast": "1", "moderate": "2", "full": "3"}
_COMPATIBILITY = {"ampere_plus": "ampere+", "same_compute_capability": "sameComputeCapability"}
#: Memory pool -> trtexec's word for it, where it is another.
_POOLS = {
    "tactic_dram": "tacticDRAM",
    "tactic_shared_memory": "tacticSharedMem",
    "dla_managed_sram": "dlaSRAM",
}
_POOLS |= {"dla_local_dram": "dlaLocalDRAM", "dla_global_dram": "dlaGlobalDRAM"}
#: Builder setting -> trtexec's flag, where the value is written alike.
_FLAGS = {
    "+builder_optimization_level": "--builderOptimizationLevel",
    "+l2_limit_for_tiling": "--l2LimitForTiling",
    "+max_aux_streams": "--maxAuxStreams",
    "+max_num_tactics": "--maxTactics",
    "+avg_timing_iterations": "--avgTiming",
}


def command(
    model: str,
    route: Mapping[str, str],
    profiles: Sequence[Mapping[str, Mapping[str, Sequence[int]]]] = (),
    dynamic: Collection[str] = (),
    settings: Mapping[str, Any] | None = None,
) -> list[str]:
    """The words of a trtexec call that builds `route`, saves the engine and times it.

    Args:
        profiles: as in BuildOrder; trtexec builds one, so the first counts.
        dynamic: the inputs with dynamic dimensions; trtexec takes shapes of no others.
        settings: the [engine] section.
    """
    settings = settings or {}
    words = ["trtexec", f"--onnx={model}", "--saveEngine=engine.plan"]
    words += _shapes(profiles[0] if profiles else {}, dynamic)
    words += _settings(settings)
    words += [word for name, value in route.items() for word in _builder_setting(name, value)]
    sources = [_signed(name, value, TACTIC_SOURCE) for name, value in route.items() if TACTIC_SOURCE in name]
    if sources:
        words.append(f"--tacticSources={','.join(sources)}")
    compiler = " ".join(f"{name}={value}" for name, value in route.items() if name[0] == "-")
    return [*words, *([f"--setBuildRoute={compiler}"] if compiler else [])]


def untranslated(route: Mapping[str, str]) -> list[str]:
    """The settings of a route that `command` leaves out, since trtexec has no flag for them."""
    return [f"{name}={value}" for name, value in route.items() if name.startswith((PREVIEW, "@"))]


def _shapes(profile: Mapping[str, Mapping[str, Sequence[int]]], dynamic: Collection[str]) -> list[str]:
    named = {name: shapes for name, shapes in profile.items() if name in dynamic}
    if not named:
        return []
    return [
        f"--{end}Shapes="
        + ",".join(f"{_quoted(name)}:{_shape(shapes[end])}" for name, shapes in named.items())
        for end in ("min", "opt", "max")
    ]


def _shape(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes)) or "scalar"


def _quoted(name: str) -> str:
    """Names with the mark that ends a name go into quotes, which trtexec takes off."""
    return f"'{name}'" if ":" in name else name


def _settings(settings: Mapping[str, Any]) -> list[str]:
    words = [f"--dynamicPlugins={path}" for path in settings.get("plugins", ())]
    pools = [f"{_POOLS.get(name, name)}:{mib:g}" for name, mib in settings.get("memory_pools", {}).items()]
    if pools:
        words.append(f"--memPoolSize={','.join(pools)}")
    level = _COMPATIBILITY.get(settings.get("hardware_compatibility", "none"))
    if level:
        words.append(f"--hardwareCompatibilityLevel={level}")
    if settings.get("version_compatible"):
        words.append("--versionCompatible")
    return words


def _builder_setting(name: str, value: str) -> list[str]:
    if name in _FLAGS:
        return [f"{_FLAGS[name]}={value}"] if value != "auto" else []
    if name == "+tiling_optimization_level":
        return [f"--tilingOptimizationLevel={_TILING[value]}"]
    if name == "+tf32":
        return ["--noTF32"] if value == "off" else []
    if name == "+sparse_weights":
        return [f"--sparsity={'enable' if value == 'on' else 'disable'}"]
    return []


def _signed(name: str, value: str, family: str) -> str:
    return f"{'+' if value == 'on' else '-'}{name.removeprefix(family).upper()}"
