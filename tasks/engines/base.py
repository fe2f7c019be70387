"""The seam between routetune and the libraries that build and run engines.

A backend runs inside the worker process. It imports neither Prefect nor the store, and it knows nothing of
keys or records: it is handed paths and settings, and writes files where it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from routetune.tasks.routes.knob import KnobDatabase

    Arrays = Mapping[str, np.ndarray[Any, Any]]


#: Knobs that do nothing on a model, by name, with the settings of another knob beside which it is so; none
#: where it is so beside any.
Idle = dict[str, list[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class BuildOrder:
    """What a backend needs to build one engine.

    Attributes:
        model: the ONNX file; sidecars are beside it.
        route: knob name -> value, for the knobs that are not at their default.
        profiles: one dict per profile, input name -> {"min": [...], "opt": [...], "max": [...]}.
        settings: the [engine] section of the target as plain JSON (plugins as absolute paths, ...), with
            "seconds", after which a backend that can shall give up, and "timing_cache", a file to begin with
            and to write back, where the caller keeps one.
        device: "cpu" or "cuda:0".
        output: the file to write the engine to.
    """

    model: Path
    route: Mapping[str, str]
    output: Path
    profiles: tuple[Mapping[str, Mapping[str, list[int]]], ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Engine:
    """A built engine: a file, and the options that must be applied again whenever it is loaded.

    Attributes:
        path: the file.
        digest: SHA-256 of the file, hex.
        size: bytes.
        identity: equal for engines that compute the same thing the same way, or None when unknown.
        options: plain JSON, given back to `Backend.load`; part of the publication's manifest.
    """

    path: Path
    digest: str
    size: int
    identity: str | None
    options: Mapping[str, Any]


class Runner(Protocol):
    """A loaded engine, ready to infer. Closing it frees its memory.

    A runner whose prepared calls may run at once, each on a thread of its own, has an attribute `concurrent`
    that is true. Without it, every stream of a throughput measurement gets a runner of its own.

    A prepared call of a runner on a GPU may have a method `device_ns()`: it runs once more and returns the
    nanoseconds between two events of its stream. They are recorded beside the times that rank engines.
    """

    def infer(self, inputs: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        """Run once; returns every output by name, in the engine's order, as host arrays.

        Output buffers that the backend allows to be bound are filled with a sentinel first, so that a
        skipped write cannot inherit a right answer.
        """
        ...

    def prepare(self, inputs: Arrays) -> Callable[[], None]:
        """A call that runs one inference on fixed inputs with as little of Python around it as possible."""
        ...

    def close(self) -> None: ...


class Backend(Protocol):
    """What every backend offers; `tests/contracts/test_backend.py` runs on each implementation.

    A backend that can tell which knobs do nothing on a model has a method besides:
    `idle(order, knobs: Mapping[str, Sequence[str]]) -> Idle`, of `knobs` (name -> values to be tried). Routes
    that differ only in these are tried last.

    One whose engines are a file and settings applied whenever that is loaded has two methods besides, with
    which routes that differ only in such settings share a build: `shaping(route) -> route`, the part of a
    route that shapes the file, and `settled(engine, route) -> Engine`, which makes of the engine of that part
    the engine of the whole route, equal to what `build` gives for it. One of them alone shares nothing.

    One whose engines cannot be of any size has an attribute `largest_engine`, bytes; a model whose weights
    alone are more is refused before anything is built.
    """

    name: str

    def knobs(self, device: str) -> KnobDatabase:
        """The knob database of the installed library for this device."""
        ...

    def versions(self, device: str) -> dict[str, str]:
        """Library name -> version and build flavour of everything that shapes an engine or its results."""
        ...

    def build(self, order: BuildOrder) -> Engine:
        """Build and write the engine. Raises BuildError with the library's message."""
        ...

    def load(self, engine: Engine, device: str, settings: Mapping[str, Any]) -> Runner:
        """Load an engine whose digest the caller has verified against a manifest of ours."""
        ...


class BuildError(Exception):
    """The library refused the model or the route, cleanly; the message is its own."""


def default_device(backend: str) -> str:
    """The device that a backend works on when none is named: a GPU where there is one that it can use."""
    if backend == "tensorrt" or (backend == "onnxruntime" and _onnxruntime_has_gpu()):
        return "cuda:0"
    return "cpu"


def _onnxruntime_has_gpu() -> bool:
    """Whether NVML sees a GPU and the installed ONNX Runtime was built for it; asked from cheap to dear."""
    from routetune.tasks.engines import cuda

    if not cuda.present():
        return False
    try:
        import onnxruntime
    except ImportError:
        return False
    return "CUDAExecutionProvider" in onnxruntime.get_available_providers()


def open_backend(name: str) -> Backend:
    """The backend called `name`: "onnxruntime", "tensorrt", or the user's own as "module:Class".

    Raises:
        BadInput: no such backend, or its library cannot be imported.
    """
    from importlib import import_module

    from routetune.tasks.errors import BadInput

    known = {
        "onnxruntime": "routetune.tasks.engines.onnxruntime.backend:OnnxRuntime",
        "tensorrt": "routetune.tasks.engines.tensorrt.backend:TensorRT",
    }
    module, colon, attribute = known.get(name, name).partition(":")
    if not colon:
        raise BadInput(f"backend {name!r} is not one of {', '.join(known)}, nor of the form 'module:Class'")
    try:
        backend: Backend = getattr(import_module(module), attribute)()
    except (ImportError, AttributeError) as error:
        raise BadInput(f"backend {name!r} cannot be used: {error}") from error
    return backend
