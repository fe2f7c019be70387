"""ONNX Runtime sessions: options from a route or an engine's record, and opening a session with them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from routetune.tasks.engines.cuda import number_of
from routetune.tasks.engines.onnxruntime.denormals import flushing
from routetune.tasks.engines.onnxruntime.libraries import preload
from routetune.tasks.engines.onnxruntime.settings import Setting
from routetune.tasks.engines.onnxruntime.settings_cuda import every_setting
from routetune.tasks.errors import BadInput, NotHere

DENORMALS = "-session.set_denormal_as_zero"

#: What computes for a kind of device. The library itself only warns when one is missing, and takes the CPU.
PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


def provider_of(device: str) -> str:
    """The execution provider for a device.

    Raises:
        BadInput: the backend has none for it.
        NotHere: the installed library was built without it.
    """
    import onnxruntime

    kind = kind_of(device)
    if kind == "cuda":
        number_of(device)
    elif device != "cpu":
        raise BadInput(f"backend onnxruntime cannot use device {device!r}; it can use: cpu, cuda:N")
    has = onnxruntime.get_available_providers()
    if PROVIDERS[kind] not in has:
        raise NotHere(
            f"backend onnxruntime cannot use device {device!r}: onnxruntime {onnxruntime.__version__} here "
            f"was built without {PROVIDERS[kind]} (it has {', '.join(has)}). {ADVICE}"
        )
    return PROVIDERS[kind]


#: The two packages are one folder: whichever was installed last is the one that is imported.
ADVICE = (
    "Install the GPU build in place of the other: pip uninstall onnxruntime, then pip install "
    '--force-reinstall --no-deps onnxruntime-gpu; or set engine.device = "cpu" in the target'
)


def kind_of(device: str) -> str:
    """The kind of a device: "cpu" or "cuda"."""
    return device.partition(":")[0]


def provider_options(knobs: Mapping[str, str], device: str, stream: int = 0) -> dict[str, str]:
    """The options of a device's provider for the settings of a checked route, or of an engine.

    Args:
        stream: address of the CUDA stream to compute on; 0 for one of the provider's own.
    """
    if kind_of(device) == "cpu":
        return {}
    found = {"device_id": str(number_of(device))}
    if stream:
        found["user_compute_stream"] = str(stream)
    rows = every_setting()
    for name, value in knobs.items():
        row = rows.get(name.removeprefix("-"))
        if row is not None and row.place == "provider" and value != row.default:
            found[row.name] = value
    return found


def build_options(route: Mapping[str, str], output: Path, dimensions: Mapping[str, int]) -> Any:
    """SessionOptions that build the engine of a checked route and write it to `output`.

    Args:
        route: knob name -> value.
        output: where the optimised model goes.
        dimensions: symbolic dimensions to fix, by name.
    """
    options = _options(route)
    options.optimized_model_filepath = str(output)
    options.add_session_config_entry("session.save_model_format", "ONNX")
    for name, size in dimensions.items():
        options.add_free_dimension_override_by_name(name, size)
    return options


def unpacked(options: Any) -> Any:
    """The options of a build whose session is never run: without packing weights for the kernels.

    Packing takes half of the time of a large model, and is never written: whoever loads the engine packs, or
    leaves it where the route says so (`applied_at_load`).
    """
    options.add_session_config_entry("session.disable_prepacking", "1")
    return options


def load_options(knobs: Mapping[str, str]) -> Any:
    """SessionOptions that load a built engine: its graph is final, the rest of its route is applied again."""
    import onnxruntime

    options = _options(knobs)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def applied_at_load(route: Mapping[str, str]) -> dict[str, str]:
    """The part of a route that is not in the engine's graph, by knob name."""
    rows = every_setting()
    return {
        name: value
        for name, value in sorted(route.items())
        if (row := rows.get(name.removeprefix("-"))) is not None and row.at_load and value != row.default
    }


def only_at_load(route: Mapping[str, str]) -> dict[str, str]:
    """The part of a route that does not shape the engine's graph either: it acts at load and then alone."""
    rows = every_setting()
    at_load = applied_at_load(route)
    return {name: value for name, value in at_load.items() if rows[name.removeprefix("-")].only_at_load}


def disabled_optimizers(route: Mapping[str, str]) -> set[str]:
    """The transformers and rules that a route switches off."""
    rows = every_setting()
    names = {name.removeprefix("-") for name, value in route.items() if value == "off"}
    return names - rows.keys()


def open_session(
    model: Path,
    options: Any,
    provider: str,
    *,
    provider_options: Mapping[str, str] | None = None,
    plugins: Iterable[str] = (),
    disabled: Iterable[str] = (),
    flush: bool = False,
) -> Any:
    """An InferenceSession of the file, on this provider or not at all.

    The model is opened by its path, since its sidecars are found beside it.

    Raises:
        BadInput: a plugin cannot be loaded, or the provider.
        Exception: the library's own, when it refuses the model or the options.
    """
    import onnxruntime

    if provider == PROVIDERS["cuda"]:
        preload()
    for library in plugins:
        _register(options, library)
    with flushing(flush):
        # By default an error is answered by trying again with other providers, and a model may set options;
        # `disabled_optimizers` replaces the config entry of the same purpose, so it must hold all the names.
        session = onnxruntime.InferenceSession(
            str(model),
            options,
            providers=[(provider, dict(provider_options or {}))],
            enable_fallback=0,
            read_config_from_model=0,
            disabled_optimizers=set(disabled),
        )
    _insist(provider, session)
    return session


def _insist(provider: str, session: Any) -> None:
    """Raise BadInput where the library took another provider; it only warns itself."""
    if (taken := session.get_providers()[0]) != provider:
        raise BadInput(
            f"onnxruntime took {taken} in place of {provider}, which it could not load; "
            "the log says why. It needs the CUDA and cuDNN that onnxruntime-gpu was built for, as wheels "
            "beside it (pip install 'onnxruntime-gpu[cuda,cudnn]') or on LD_LIBRARY_PATH"
        )


def _options(knobs: Mapping[str, str]) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # A file's name ending in .ort would make it another format.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    # By default the library starts a thread for each core of the machine, and ties each to its core, also to
    # those that this process was told to keep off.
    if (usable := len(os.sched_getaffinity(0))) < (os.cpu_count() or 1):
        options.intra_op_num_threads = options.inter_op_num_threads = usable
    rows = every_setting()
    for name, value in knobs.items():
        row = rows.get(name.removeprefix("-"))
        if row is None or value == row.default or row.place in ("shapes", "provider"):
            continue
        if row.place == "entry":
            options.add_session_config_entry(row.name, value)
        else:
            setattr(options, row.name, _attribute(row, value))
    return options


def _attribute(row: Setting, value: str) -> Any:
    """The value of a SessionOptions attribute."""
    import onnxruntime

    match row.name:
        case "graph_optimization_level":
            name = "ORT_DISABLE_ALL" if value == "disabled" else f"ORT_ENABLE_{value.upper()}"
            return onnxruntime.GraphOptimizationLevel.__members__[name]
        case "execution_mode":
            return onnxruntime.ExecutionMode.__members__[f"ORT_{value.upper()}"]
        case "execution_order":
            return onnxruntime.ExecutionOrder.__members__[value.upper()]
        case _:
            return value == "on" if value in ("on", "off") else int(value)


def _register(options: Any, library: str) -> None:
    try:
        options.register_custom_ops_library(str(library))
    except Exception as error:
        raise BadInput(
            f"plugin {library} is not a custom-op library that onnxruntime can load: {error}"
        ) from error
