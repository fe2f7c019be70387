"""TensorRT as a backend: an engine is a serialized plan, built by a build route and builder settings."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from routetune.tasks.engines import cuda
from routetune.tasks.engines.base import BuildOrder, Engine, Runner
from routetune.tasks.errors import BadInput

if TYPE_CHECKING:
    from routetune.tasks.routes.knob import KnobDatabase


class TensorRT:
    """The backend; holds nothing, so that one is as good as another.

    `Engine.options` is {"backend", "version", "flavour", "device", "version_compatible"}.
    """

    name = "tensorrt"

    def __init__(self) -> None:
        from routetune.tasks.engines.tensorrt.library import library

        library()

    def knobs(self, device: str) -> KnobDatabase:
        """The knob database of the installed library.

        Raises:
            BadInput: not a CUDA device, or TensorRT makes no builder here.
        """
        from routetune.tasks.engines.tensorrt.knobs import knob_database

        cuda.number_of(device)
        return knob_database()

    def versions(self, device: str) -> dict[str, str]:
        """Versions of TensorRT, of its tuner and of the CUDA bindings."""
        from routetune.tasks.engines.tensorrt.library import versions

        tuner = self.knobs(device).version
        return versions() | {"tensorrt tuner": tuner}

    def build(self, order: BuildOrder) -> Engine:
        """Build one engine.

        Raises:
            BadInput: a route, device, plugin or setting that cannot be.
            BuildError: the library refuses the model or the route.
            TimeoutError: the order's "seconds" were over.
        """
        from routetune.tasks.engines.tensorrt.build import build_bytes, reporting
        from routetune.tasks.engines.tensorrt.knobs import check_route

        if order.settings.get("compute_capabilities"):
            cuda.number_of(order.device)  # built for another GPU than this machine's, if it has one
        else:
            cuda.use(order.device)
        check_route(order.route)
        # What an earlier build left there must not pass for the result of this one.
        order.output.unlink(missing_ok=True)
        with reporting():
            data = build_bytes(order)
        order.output.write_bytes(data)
        return Engine(
            path=order.output,
            digest=hashlib.sha256(data).hexdigest(),
            size=len(data),
            identity=_identity(data, order.settings),
            options=_options(order.settings),
        )

    def load(self, engine: Engine, device: str, settings: Mapping[str, Any]) -> Runner:
        """Load an engine whose digest the caller has verified: deserializing runs code that is in it.

        Raises:
            BadInput: the engine is for another backend, kind of device, or version.
            RuntimeError: TensorRT refuses the file.
        """
        from routetune.tasks.engines.tensorrt.build import load_plugins
        from routetune.tasks.engines.tensorrt.runner import EngineRunner, deserialized

        check_options(engine.options, device)
        cuda.use(device)
        load_plugins(settings.get("plugins", ()))
        host_code = bool(engine.options.get("version_compatible"))
        loaded = deserialized(engine.path.read_bytes(), host_code=host_code)
        return EngineRunner(loaded, use_graph=bool(settings.get("cuda_graph", False)))


def check_options(options: Mapping[str, Any], device: str) -> None:
    """Refuse an engine that was not built for this backend, kind of device and version. Raises BadInput."""
    expected = _options({}) | {"device": device.partition(":")[0]}
    fields = ["backend", "device", "flavour"]
    if not options.get("version_compatible"):
        fields.append("version")
    for field in fields:
        if options.get(field) != expected[field]:
            raise BadInput(
                f"the engine is for {field} {options.get(field)!r}, not for {expected[field]!r}: tune again"
            )


def _options(settings: Mapping[str, Any]) -> dict[str, Any]:
    from routetune.tasks.engines.tensorrt.library import versions

    found = versions()
    return {
        "backend": TensorRT.name,
        "version": found["tensorrt"],
        "flavour": found["tensorrt flavour"],
        "device": "cuda",
        "version_compatible": bool(settings.get("version_compatible", False)),
    }


def _identity(data: bytes, settings: Mapping[str, Any]) -> str | None:
    """The engine's identity; None, with the reason in the log, when it cannot be inspected here."""
    from routetune.tasks.engines.tensorrt.identity import identity
    from routetune.tasks.engines.tensorrt.runner import deserialized, inspected

    if settings.get("compute_capabilities"):
        return None
    try:
        loaded = deserialized(data, host_code=bool(settings.get("version_compatible", False)))
        return identity(inspected(loaded))
    except RuntimeError as error:
        print(f"the engine's identity is unknown: {error}", file=sys.stderr)
        return None
