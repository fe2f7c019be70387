"""ONNX Runtime as a backend: an engine is the optimised model plus the options that are applied at load."""

from __future__ import annotations

import errno
import hashlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from routetune.tasks.engines import cuda
from routetune.tasks.engines.base import BuildError, BuildOrder, Engine, Idle, Runner
from routetune.tasks.engines.onnxruntime.sidecars import LIMIT, embed, external_bytes
from routetune.tasks.errors import BadInput

if TYPE_CHECKING:
    from onnx import ModelProto
    from routetune.tasks.routes.knob import KnobDatabase


class OnnxRuntime:
    """The backend; holds nothing, so that one is as good as another.

    `Engine.options` is {"backend", "version", "provider", "device", "knobs"}: "device" is the kind, "cpu" or
    "cuda"; "knobs" are the settings of the route that are not in the file, by knob name, those of the
    provider among them.
    """

    name = "onnxruntime"
    largest_engine = LIMIT

    def knobs(self, device: str) -> KnobDatabase:
        """The knob database of the installed library for this device.

        Raises:
            BadInput: the library is missing, or has no provider for the device here.
        """
        from routetune.tasks.engines.onnxruntime.knobs import knob_database
        from routetune.tasks.engines.onnxruntime.session import kind_of, provider_of

        provider_of(device)
        return knob_database(kind_of(device))

    def versions(self, device: str) -> dict[str, str]:
        """The library's version, build and providers; for a GPU, the versions of CUDA and cuDNN too.

        Raises:
            BadInput: it has no provider for the device here.
        """
        import onnxruntime
        from routetune.tasks.engines.onnxruntime.libraries import versions_on_cuda
        from routetune.tasks.engines.onnxruntime.session import kind_of, provider_of

        provider_of(device)
        found = {
            "onnxruntime": onnxruntime.__version__,
            "onnxruntime build": onnxruntime.get_build_info(),
            "onnxruntime providers": " ".join(onnxruntime.get_available_providers()),
        }
        return found | (versions_on_cuda() if kind_of(device) == "cuda" else {})

    def build(self, order: BuildOrder) -> Engine:
        """Build one engine; the file is complete in itself, whatever sidecars the model has.

        Raises:
            BadInput: a route, device or plugin that cannot be.
            BuildError: the library refuses the model or the route.
            OSError: the disk is full, or the like; it says nothing of the route.
        """
        from routetune.tasks.engines.onnxruntime.knobs import check_route
        from routetune.tasks.engines.onnxruntime.session import applied_at_load, kind_of, provider_of

        provider = provider_of(order.device)
        check_route(order.route, kind_of(order.device))
        if order.device != "cpu":
            cuda.use(order.device)
        # What an earlier build left there must not pass for the result of this one.
        order.output.unlink(missing_ok=True)
        try:
            _compile(order, provider)
            data, model = _compiled(order.output)
            if embed(model, order.model.parent):
                data = model.SerializeToString()
                order.output.write_bytes(data)
            knobs = applied_at_load(self.shaping(order.route))
            digest, known_by = _digests(data, model, knobs)
            options = _options(provider, kind_of(order.device), knobs)
            built = Engine(order.output, digest, len(data), known_by, options)
            return self.settled(built, order.route)
        except BaseException as error:
            order.output.unlink(missing_ok=True)
            if isinstance(error, BuildError):
                _refuse_full_disk(order)
            raise

    def shaping(self, route: Mapping[str, str]) -> dict[str, str]:
        """The part of a route that shapes the file; routes that share it can share a build."""
        from routetune.tasks.engines.onnxruntime.session import only_at_load

        rest = only_at_load(route)
        return {name: value for name, value in route.items() if name not in rest}

    def settled(self, engine: Engine, route: Mapping[str, str]) -> Engine:
        """The engine of a route, from that of its shaping part: the same file, loaded otherwise."""
        from routetune.tasks.engines.onnxruntime.identity import beside
        from routetune.tasks.engines.onnxruntime.session import only_at_load

        settings = only_at_load(route)
        known_by = engine.identity and beside(engine.identity, settings)
        knobs = dict(sorted({**engine.options["knobs"], **settings}.items()))
        return replace(engine, identity=known_by, options={**engine.options, "knobs": knobs})

    def idle(self, order: BuildOrder, knobs: Mapping[str, Sequence[str]]) -> Idle:
        """The knobs among `knobs` (name -> values to be tried) whose rewrite does nothing on this model, with
        the levels at which it is so; none where it is so at all of them."""
        from routetune.tasks.engines.onnxruntime.firing import idle_knobs

        return idle_knobs(order, knobs)

    def load(self, engine: Engine, device: str, settings: Mapping[str, Any]) -> Runner:
        """Load an engine whose digest the caller has verified; its graph is not optimised again.

        Raises:
            BadInput: the engine was built for another device, or for another backend.
            Exception: the library's own, when it refuses the file.
        """
        from routetune.tasks.engines.onnxruntime.knobs import check_route
        from routetune.tasks.engines.onnxruntime.session import kind_of, provider_of

        options, kind = engine.options, kind_of(device)
        for field, expected in (("backend", OnnxRuntime.name), ("device", kind)):
            if options.get(field) != expected:
                raise BadInput(f"the engine is for {field} {options.get(field)!r}, not for {expected!r}")
        provider_of(device)
        check_route(options["knobs"], kind)
        loaded = _loaded_on_cuda if kind == "cuda" else _loaded_on_cpu
        return loaded(engine, device, settings.get("plugins", ()))


def _loaded_on_cpu(engine: Engine, device: str, plugins: Iterable[str]) -> Runner:
    from routetune.tasks.engines.onnxruntime.runner import SessionRunner
    from routetune.tasks.engines.onnxruntime.session import DENORMALS, load_options, open_session

    knobs = engine.options["knobs"]
    flush = knobs.get(DENORMALS) == "1"
    provider = engine.options["provider"]
    session = open_session(engine.path, load_options(knobs), provider, plugins=plugins, flush=flush)
    return SessionRunner(session, flush)


def _loaded_on_cuda(engine: Engine, device: str, plugins: Iterable[str]) -> Runner:
    from routetune.tasks.engines.onnxruntime.runner_cuda import CudaRunner, device_errors
    from routetune.tasks.engines.onnxruntime.session import load_options, open_session, provider_options

    cuda.use(device)
    knobs, stream = engine.options["knobs"], cuda.Stream()
    try:
        with device_errors():
            session = open_session(
                engine.path,
                load_options(knobs),
                engine.options["provider"],
                provider_options=provider_options(knobs, device, stream.handle),
                plugins=plugins,
            )
        return CudaRunner(session, stream, cuda.number_of(device), knobs.get("-enable_cuda_graph") == "1")
    except BaseException:
        stream.close()
        raise


def _refuse_full_disk(order: BuildOrder) -> None:
    """Raise OSError where an engine as large as the model finds no room: the library would blame that."""
    import onnx

    size = 0
    with suppress(Exception):  # a model that cannot be read is what the library has told of
        size = order.model.stat().st_size
        size += external_bytes(onnx.load(order.model, load_external_data=False), order.model.parent)
    if shutil.disk_usage(order.output.parent).free < size:
        raise OSError(errno.ENOSPC, f"no room for an engine of {size} bytes", str(order.output.parent))


def _compile(order: BuildOrder, provider: str) -> None:
    """Let the library write the optimised model; its session is not kept."""
    from routetune.tasks.engines.onnxruntime.session import (
        DENORMALS,
        build_options,
        disabled_optimizers,
        open_session,
        provider_options,
        unpacked,
    )

    dimensions = _fixed_dimensions(order) if order.route.get("-free_dimension_override") == "on" else {}
    try:
        open_session(
            order.model,
            unpacked(build_options(order.route, order.output, dimensions)),
            provider,
            provider_options=provider_options(order.route, order.device),
            plugins=order.settings.get("plugins", ()),
            disabled=disabled_optimizers(order.route),
            flush=order.route.get(DENORMALS) == "1",
        )
    except (BadInput, MemoryError):
        raise
    except Exception as error:
        if order.device != "cpu" and isinstance(told := _named(error), MemoryError):
            raise told from error
        raise BuildError(str(error).strip()) from error


def _named(error: Exception) -> Exception:
    from routetune.tasks.engines.onnxruntime.runner_cuda import named

    return named(error)


def _compiled(path: Path) -> tuple[bytes, ModelProto]:
    """What the library wrote, read once: its bytes and its message."""
    import onnx

    data = path.read_bytes() if path.exists() else b""
    if not data:
        raise BuildError("onnxruntime reported no error but wrote no engine")
    try:
        return data, onnx.ModelProto.FromString(data)
    except Exception as error:
        raise BuildError(f"onnxruntime wrote an engine that is not an ONNX model: {error}") from error


def _digests(data: bytes, model: ModelProto, knobs: dict[str, str]) -> tuple[str, str]:
    """SHA-256 of the bytes, and the identity; hashing releases the GIL, so they are found together."""
    from routetune.tasks.engines.onnxruntime.identity import identity

    with ThreadPoolExecutor(1) as pool:
        whole = pool.submit(hashlib.sha256, data)
        known_by = identity(model, knobs)
        return whole.result().hexdigest(), known_by


def _fixed_dimensions(order: BuildOrder) -> dict[str, int]:
    """Symbolic dimension -> size, from the opt shapes of the first profile.

    Raises:
        BuildError: two inputs want one dimension to have different sizes, or the model cannot be read.
    """
    import onnx

    try:
        inputs = onnx.load(order.model, load_external_data=False).graph.input
    except Exception as error:
        raise BuildError(f"model {order.model.name} cannot be read: {error}") from error
    sizes: dict[str, int] = {}
    profile = order.profiles[0] if order.profiles else {}
    for value in inputs:
        opt = profile[value.name]["opt"] if value.name in profile else []
        for dimension, size in zip(value.type.tensor_type.shape.dim, opt, strict=False):
            name = dimension.dim_param
            if name and sizes.setdefault(name, size) != size:
                raise BuildError(
                    f"dimension {name!r} cannot be fixed: the first profile's opt shapes make it "
                    f"{sizes[name]} and, for input {value.name!r}, {size}"
                )
    return sizes


def _options(provider: str, device: str, knobs: dict[str, str]) -> dict[str, Any]:
    import onnxruntime

    return {
        "backend": OnnxRuntime.name,
        "version": onnxruntime.__version__,
        "provider": provider,
        "device": device,
        "knobs": knobs,
    }
