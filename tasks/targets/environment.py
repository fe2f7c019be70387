"""The environment: everything a result is bound to besides the target."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from routetune.tasks import canonical
from routetune.tasks.errors import BadInput
from routetune.tasks.targets import gpu, processor
from routetune.tasks.targets.devices import plain, usable_cores
from routetune.tasks.targets.gpu import NOT_APPLICABLE, UNKNOWN, Provider, load_nvml

__all__ = [
    "KEYED_VARIABLES",
    "NOT_APPLICABLE",
    "SEMANTICS",
    "UNKNOWN",
    "WORKER_VARIABLES",
    "Environment",
    "conditions",
    "keyed_variables",
    "observe",
    "worker_variables",
]

#: Raised by hand when the meaning of a verdict changes: how inputs are drawn, losses computed, rounds judged.
SEMANTICS = 1

#: Variables that shape engines, outputs or times, on any device; a trailing * stands for any ending.
_KEYED_ANYWHERE = (
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "OMP_DYNAMIC",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MLAS_*",
    "ORT_*",
)
#: The same on a GPU only: they must never make a CPU target stale.
_KEYED_ON_GPU = (
    "NVIDIA_TF32_OVERRIDE",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_MODULE_LOADING",
    "CUDA_FORCE_PTX_JIT",
    "CUDA_DISABLE_PTX_JIT",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_*",
    "CUDNN_*",
    "POLYGRAPHY_USE_TENSORRT_RTX",
)
#: Variables that are part of the environment's key where they are set.
KEYED_VARIABLES = _KEYED_ANYWHERE + _KEYED_ON_GPU
#: Variables that a worker is started with. Every other one is withheld: none can shape a result unseen.
WORKER_VARIABLES = (
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "XDG_CACHE_HOME",
    "XDG_RUNTIME_DIR",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_CACHE_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    *KEYED_VARIABLES,
)
#: Neither passed on nor keyed, though a pattern above matches: telemetry shapes nothing, and options read
#: from a model's metadata would be outside the model digest.
_WITHHELD = frozenset({"ORT_DISABLE_TELEMETRY", "ORT_LOAD_CONFIG_FROM_MODEL"})
_LIBRARIES = ("numpy", "onnx", "polygraphy")


@dataclass(frozen=True)
class Environment:
    """One visible dict, and its key.

    Attributes:
        fields: dotted name -> value, UNKNOWN or NOT_APPLICABLE.
    """

    fields: dict[str, str | int]

    @property
    def key(self) -> str:
        """16 hex digits of the SHA-256 of the fields as canonical JSON."""
        return canonical.digest(self.fields)[:16]

    @property
    def is_gpu(self) -> bool:
        return self.fields["device"] == "cuda"

    @property
    def label(self) -> str:
        """For people: "AMD EPYC, 2 cores, onnxruntime 1.32.0"."""
        backend = str(self.fields["backend"])
        version = str(self.fields.get(f"version.{backend}", "")).split(" ")[0]
        if self.is_gpu:
            device = f"{self.fields['gpu.name']}, driver {self.fields['driver']}"
        else:
            cores = self.fields["cpu.cores"]
            device = f"{self.fields['cpu.model']}, {cores} core{'s' * (cores != 1)}"
        return f"{device}, {backend} {version}".rstrip()

    @property
    def cannot_tell(self) -> list[str]:
        """Unknown fields of a GPU environment. While there are any, nothing may be reused or rebuilt.

        On a CPU an unknown field (a processor without a name) stays the same from run to run, so it hides
        nothing, and the list is empty.
        """
        return [name for name, value in self.fields.items() if value == UNKNOWN] if self.is_gpu else []


def observe(
    backend_name: str,
    device: str,
    versions: Mapping[str, str],
    *,
    variables: Mapping[str, str] | None = None,
    nvml: Provider = load_nvml,
) -> Environment:
    """The environment of results made with a backend on a device of this machine, now.

    `versions` are the backend's own (library -> version and build flavour). `variables` defaults to this
    process's. NVML is asked only about a GPU: without it, or with a driver it does not match, CPU targets are
    untouched, and the fields of a GPU are UNKNOWN.

    Raises:
        BadInput: `device` is none of "cpu", "cpu:0-3" and "cuda:N", or not all of its cores may be used.
    """
    variables = os.environ if variables is None else variables
    number = _gpu_number(device)
    fields: dict[str, str | int] = {
        "semantics": SEMANTICS,
        "backend": backend_name,
        "device": "cpu" if number is None else "cuda",
        "python": ".".join(platform.python_version_tuple()[:2]),
        **_processor_fields(device),
    }
    fields |= {f"version.{name}": _version(name) for name in _LIBRARIES}
    fields |= {f"version.{name}": version for name, version in versions.items()}
    on_gpu = number is not None
    fields |= {f"variable.{name}": value for name, value in keyed_variables(variables, on_gpu).items()}
    if number is not None:
        fields |= gpu.describe(number, variables, nvml)
    return Environment(dict(sorted(fields.items())))


def conditions(
    device: str = "cpu", *, variables: Mapping[str, str] | None = None, nvml: Provider = load_nvml
) -> dict[str, Any]:
    """Plain JSON worth recording beside a result though nothing is bound to it: host, kernel, load, clocks.

    Raises:
        BadInput: `device` is neither "cpu" nor "cuda:N".
    """
    number = _gpu_number(device)
    found: dict[str, Any] = {
        "host": platform.node(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "mhz": _clock(),
    }
    if number is not None:
        found["gpu"] = gpu.momentary(number, os.environ if variables is None else variables, nvml)
    return found


def worker_variables(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that a worker is started with, out of `variables` (by default this process's)."""
    return _matching(os.environ if variables is None else variables, WORKER_VARIABLES)


def keyed_variables(variables: Mapping[str, str], on_gpu: bool) -> dict[str, str]:
    """The variables that are part of the environment, of those that are set; all of them reach the worker."""
    return _matching(variables, KEYED_VARIABLES if on_gpu else _KEYED_ANYWHERE)


def _matching(variables: Mapping[str, str], patterns: tuple[str, ...]) -> dict[str, str]:
    exact = {pattern for pattern in patterns if not pattern.endswith("*")}
    prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    return {
        name: value
        for name, value in sorted(variables.items())
        if name not in _WITHHELD and (name in exact or name.startswith(prefixes))
    }


def _gpu_number(device: str) -> int | None:
    if plain(device) == "cpu":
        return None
    if not re.fullmatch(r"cuda:\d{1,4}", device, re.ASCII):
        raise BadInput(f"device {device!r} must be 'cpu' or 'cuda:N' such as 'cuda:0'")
    return int(device.removeprefix("cuda:"))


def _processor_fields(device: str) -> dict[str, str | int]:
    quota = processor.quota()
    return {
        "cpu.architecture": processor.architecture() or UNKNOWN,
        "cpu.model": processor.model() or UNKNOWN,
        "cpu.flags": _or_unknown(processor.flags()),
        "cpu.cores": _or_unknown(usable_cores(device)),
        "cpu.quota": NOT_APPLICABLE if quota is None else f"{quota:.2f}",
    }


def _or_unknown(value: Any) -> Any:
    return UNKNOWN if value is None else value


def _version(library: str) -> str:
    """The installed version without importing the library."""
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return NOT_APPLICABLE


def _clock() -> float | None:
    """The first core's clock in MHz, where the kernel tells."""
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq").read_text()
        return round(int(text) / 1000, 1)
    except (OSError, ValueError):
        found = re.search(r"cpu MHz\s*:\s*([\d.]+)", _cpuinfo())
        return float(found[1]) if found else None


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return ""
