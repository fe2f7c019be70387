"""A published engine as a model of a Triton Inference Server's model repository.

Field names are those of Triton's ModelConfig (triton-inference-server/common, protobuf/model_config.proto),
parameters those of its ONNX Runtime backend (triton-inference-server/onnxruntime_backend, README.md).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from routetune.tasks.canonical import digest as digest_of_name
from routetune.tasks.errors import BadInput, RoutetuneError
from routetune.tasks.service import find, warn_if_stale
from routetune.tasks.store import names
from routetune.tasks.store.files import (
    UNFINISHED,
    copy_hashed,
    hash_file,
    make_folder,
    remove_folder,
    sync_folder,
    unfinished,
    write_atomically,
)
from routetune.tasks.store.loader import Published
from routetune.tasks.store.signing import KeySource
from routetune.tasks.targets.model import TensorInfo, interface

CONFIG = "config.pbtxt"
#: The first line of every configuration of ours, with the target's name behind it.
MARK = "# Written by routetune for target"
#: Backend -> Triton's platform, and the name of the model file.
PLATFORMS = {
    "onnxruntime": ("onnxruntime_onnx", "model.onnx"),
    "tensorrt": ("tensorrt_plan", "model.plan"),
}

_TYPES = {"bool": "BOOL", "float16": "FP16", "float32": "FP32", "float64": "FP64", "bfloat16": "BF16"}
_TYPES |= {f"{sign}int{bits}": f"{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
#: Knob -> Triton's parameter, and the values where they are spelled otherwise.
_PARAMETERS: dict[str, tuple[str, dict[str, str]]] = {
    "-intra_op_num_threads": ("intra_op_thread_count", {}),
    "-inter_op_num_threads": ("inter_op_thread_count", {}),
    "-execution_mode": ("execution_mode", {"sequential": "0", "parallel": "1"}),
    "-enable_cpu_mem_arena": ("enable_mem_arena", {"on": "1", "off": "0"}),
    "-enable_mem_pattern": ("enable_mem_pattern", {"on": "1", "off": "0"}),
    "-session.use_device_allocator_for_initializers": ("session.use_device_allocator_for_initializers", {}),
}
#: Knobs that Triton hands on to the CUDA provider as they are.
_CUDA = frozenset(
    f"-{name}"
    for name in [
        "use_tf32",
        "prefer_nhwc",
        "enable_cuda_graph",
        "cudnn_conv_algo_search",
        "cudnn_conv_use_max_workspace",
        "cudnn_conv1d_pad_to_nc1d",
        "fuse_conv_bias",
        "sdpa_kernel",
        "enable_skip_layer_norm_strict_mode",
        "tunable_op_enable",
        "tunable_op_tuning_enable",
        "arena_extend_strategy",
        "do_copy_in_default_stream",
        "use_ep_level_unified_stream",
    ]
)


def exported(
    what: Path,
    root: Path | str | None,
    folder: Path,
    name: str | None = None,
    strict: bool = False,
    require_signature: Sequence[KeySource] | None = None,
) -> dict[str, Any]:
    """Export the engine for a target file or name; see `service.find` and `export`."""
    published, subject = find(what, root, strict, require_signature)
    warn_if_stale(published)
    if published.manifest["backend"] == "onnxruntime":
        # Of the engine itself: a route may have fixed dimensions that the model leaves open.
        inputs, outputs = interface(published.path)
    elif subject is not None:
        inputs, outputs = subject.model.inputs, subject.model.outputs
    else:
        raise BadInput(
            f"what an engine of {published.manifest['backend']} takes stands only in its model: give the "
            "target's file, not its name"
        )
    return export(published, inputs.values(), outputs.values(), folder, name)


def export(
    published: Published,
    inputs: Iterable[TensorInfo],
    outputs: Iterable[TensorInfo],
    folder: Path,
    name: str | None = None,
) -> dict[str, Any]:
    """Put the engine into the model repository `folder` as model `name`; its version is its generation.

    The version's folder is complete before the configuration names it. Earlier versions stay.

    Returns: plain JSON: "target", "model", "version", "engine", "config", "engine_digest", and "unsaid", what
        the configuration cannot express.

    Raises:
        BadInput: the model's folder there is not one that this target was exported to, or Triton cannot be
            told what the engine takes.
        RoutetuneError: the version is there with other bytes, or the engine was changed meanwhile.
    """
    manifest = published.manifest
    target, version = str(manifest["target"]), int(manifest["generation"])
    model = names.file(name or target)
    text, unsaid = configuration(manifest, model, inputs, outputs)
    home, file_name = folder.absolute() / model, PLATFORMS[manifest["backend"]][1]
    _refuse_others(home, target)
    if home.exists():
        _clear(home)
        _place_version(published, home, version, file_name)
        write_atomically(home / CONFIG, text.encode())
    else:
        _place_whole(published, home, text, version, file_name)
    return {
        "target": target,
        "model": model,
        "version": version,
        "engine": str(home / str(version) / file_name),
        "config": str(home / CONFIG),
        "engine_digest": manifest["engine"]["digest"],
        "unsaid": unsaid,
    }


def configuration(
    manifest: Mapping[str, Any], model: str, inputs: Iterable[TensorInfo], outputs: Iterable[TensorInfo]
) -> tuple[str, list[str]]:
    """The text of config.pbtxt, and sentences on what it cannot express (they are comments in it, too).

    Raises:
        BadInput: a backend, an element type or an unknown rank that Triton cannot serve.
    """
    backend = manifest["backend"]
    if backend not in PLATFORMS:
        raise BadInput(f"backend {backend!r} is none of Triton's; it has {' and '.join(PLATFORMS)}")
    platform, file_name = PLATFORMS[backend]
    parameters, cuda, unsaid = _options(manifest)
    digest = manifest["engine"]["digest"]
    lines = [
        f"{MARK} {manifest['target']}",
        f"# generation {manifest['generation']}, route: {manifest['route'] or 'the default'}",
        f"# engine SHA-256: {digest}",
        *(f"# not said here: {sentence}" for sentence in unsaid),
        f"name: {_quoted(model)}",
        f"backend: {_quoted(backend)}",
        f"platform: {_quoted(platform)}",
        f"default_model_filename: {_quoted(file_name)}",
        "max_batch_size: 0",  # so that shapes are whole: the first dimension need not be a batch
        *(f"input {{ {_tensor(one)} }}" for one in inputs),
        *(f"output {{ {_tensor(one)} }}" for one in outputs),
        f"version_policy {{ specific {{ versions: [ {manifest['generation']} ] }} }}",
        f"instance_group {{ count: 1 {_place(manifest)} }}",
        *_optimization(backend, cuda),
    ]
    parameters |= {"routetune.engine_sha256": digest, "routetune.route": manifest["route"]}
    lines += [
        f"parameters {{ key: {_quoted(key)} value {{ string_value: {_quoted(value)} }} }}"
        for key, value in parameters.items()
    ]
    return "\n".join(lines) + "\n", unsaid


def _options(manifest: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """An engine's options as Triton's parameters, as options of its CUDA provider, and what is neither."""
    parameters: dict[str, str] = {}
    cuda: dict[str, str] = {}
    unsaid = []
    on_gpu = str(manifest["device"]).startswith("cuda")
    knobs = manifest["options"].get("knobs", {}) if manifest["backend"] == "onnxruntime" else {}
    for knob, value in knobs.items():
        if knob in _PARAMETERS:
            name, spelled = _PARAMETERS[knob]
            parameters[name] = spelled.get(value, value)
        elif knob in _CUDA and on_gpu:
            cuda[knob.removeprefix("-")] = value
        else:
            unsaid.append(f"{knob}={value}: Triton cannot set it, so the engine may not run as measured")
    fields = manifest["bound_to"]["environment"]
    version = fields.get(f"version.{manifest['backend']}")
    unsaid.append(f"the server's {manifest['backend']} must be {version or 'that which it was tuned with'}")
    if manifest["bound_to"]["target"].get("engine", {}).get("plugins"):
        unsaid.append("the target has plugins: name them in model_operations { op_library_filename: [...] }")
    return parameters, cuda, unsaid


def _optimization(backend: str, cuda: Mapping[str, str]) -> list[str]:
    if backend != "onnxruntime":
        return []
    told = " ".join(
        f"parameters {{ key: {_quoted(key)} value: {_quoted(value)} }}" for key, value in cuda.items()
    )
    provider = (
        f' execution_accelerators {{ gpu_execution_accelerator {{ name: "cuda" {told} }} }}' if cuda else ""
    )
    # Level 2 switches Triton's own optimisation off: the engine's graph is final.
    return [f"optimization {{ graph {{ level: 2 }}{provider} }}"]


def _place(manifest: Mapping[str, Any]) -> str:
    device, _, number = str(manifest["device"]).partition(":")
    if device != "cuda":
        return "kind: KIND_CPU"
    profiles = sorted(manifest["bound_to"]["target"].get("profiles", {}), key=int)
    several = manifest["backend"] == "tensorrt" and len(profiles) > 1
    told = f" profile: [ {', '.join(map(_quoted, profiles))} ]" if several else ""
    return f"kind: KIND_GPU gpus: [ {number or 0} ]{told}"


def _tensor(one: TensorInfo) -> str:
    kind = _TYPES.get(one.dtype)
    if kind is None or one.shape is None:
        found = f"of type {one.dtype or 'unknown'}" if kind is None else "of no known rank"
        raise BadInput(
            f"{one.name!r} is {found}, which Triton cannot be told; convert it or state it in the model"
        )
    sizes = [size if isinstance(size, int) else -1 for size in one.shape]
    # Triton knows no scalars, only views of one element as such.
    shape = f"dims: [ {', '.join(map(str, sizes))} ]" if sizes else "dims: [ 1 ] reshape { shape: [ ] }"
    return f"name: {_quoted(one.name)} data_type: TYPE_{kind} {shape}"


def _quoted(text: str) -> str:
    escaped: str = import_module("google.protobuf.text_encoding").CEscape(text, as_utf8=True)
    return f'"{escaped}"'


def _refuse_others(home: Path, target: str) -> None:
    """Raise BadInput unless `home` is free, or was made by an export of the same target."""
    if not home.exists() and not home.is_symlink():
        return
    try:
        first = (home / CONFIG).read_text().partition("\n")[0]
    except (OSError, UnicodeDecodeError):
        first = ""
    if home.is_symlink() or first != f"{MARK} {target}":
        raise BadInput(
            f"{home} is there already, and not from an export of target {target!r}, so it is left alone: "
            "choose another name with --model-name, or move it away"
        )


def _clear(home: Path) -> None:
    """What killed exports left."""
    for left in home.glob(f"{UNFINISHED}*"):
        if left.is_dir():
            remove_folder(left)
        else:
            left.unlink()


def _place_whole(published: Published, home: Path, text: str, version: int, file_name: str) -> None:
    """Under a name of its own first: a polling server must not meet a version without its configuration.

    Always the same name for the same model, so that the next export finds what a killed one left. Triton
    passes over no folder, hidden or not, but refuses one whose configuration names another: that comes first.
    """
    make_folder(home.parent)
    whole = home.with_name(f"{UNFINISHED}routetune-{digest_of_name(home.name)[:16]}")
    if whole.exists():
        shutil.rmtree(whole)
    whole.mkdir()
    try:
        write_atomically(whole / CONFIG, text.encode())
        _place_version(published, whole, version, file_name)
        whole.rename(home)
    except BaseException:
        shutil.rmtree(whole, ignore_errors=True)
        raise
    sync_folder(home.parent)


def _place_version(published: Published, home: Path, version: int, file_name: str) -> None:
    digest, place = published.manifest["engine"]["digest"], home / str(version)
    if place.exists():
        if (found := _digest_of(place / file_name)) != digest:
            raise RoutetuneError(
                f"{place} holds another engine than generation {version} ({found}, expected {digest}): it "
                "was changed there, or is of another store; move it away and export again"
            )
        return
    temporary = unfinished(home)
    temporary.mkdir()
    if (found := copy_hashed(published.path, temporary / file_name, 0o644)) != digest:
        remove_folder(temporary)
        raise RoutetuneError(f"engine {published.path} changed while it was read: {digest} -> {found}")
    sync_folder(temporary)
    temporary.rename(place)
    sync_folder(home)


def _digest_of(path: Path) -> str:
    try:
        return hash_file(path)
    except OSError as error:
        return str(error.strerror)
