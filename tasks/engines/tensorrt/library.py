"""The installed TensorRT: its module, its versions, its log, and what it cannot do."""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from routetune.tasks.errors import BadInput, NotHere

#: Polygraphy's own switch between TensorRT and TensorRT-RTX; ours too, so that both always agree.
USE_RTX = "POLYGRAPHY_USE_TENSORRT_RTX"
OLDEST = (11, 1)

#: Said wherever a compiler knob is asked of a TensorRT that has none.
NO_TUNER = (
    "this TensorRT has no global performance tuner, so there are no compiler knobs (-name): that needs "
    "TensorRT 11.1 or newer on Linux, and TensorRT-RTX has none; builder settings (+name) and Q/DQ places "
    "(@name) still work"
)


def is_rtx() -> bool:
    """Whether TensorRT-RTX is to be used in place of TensorRT."""
    return os.environ.get(USE_RTX, "0") != "0"


@cache
def library() -> Any:
    """The module `tensorrt`, or `tensorrt_rtx`.

    Raises:
        BadInput: it is not installed, cannot be loaded, or is too old.
    """
    name = "tensorrt_rtx" if is_rtx() else "tensorrt"
    try:
        module = import_module(name)
    except (ImportError, OSError) as error:
        raise NotHere(f"{name} cannot be imported ({error}); {_advice(name)}") from error
    version = str(module.__version__)
    if name == "tensorrt" and _numbers(version) < OLDEST:
        raise BadInput(
            f"TensorRT {version} is too old: routetune needs 11.1 or newer, the first with the global "
            "performance tuner; install it with pip install 'routetune[tensorrt]', or set backend = "
            '"onnxruntime" in the target'
        )
    return module


def tensorrt_found() -> bool:
    """Whether TensorRT is installed, without loading it."""
    return find_spec("tensorrt") is not None


def versions() -> dict[str, str]:
    """What shapes an engine: version, flavour and, where it can be told, the tuner's version."""
    from importlib.metadata import PackageNotFoundError, version

    trt = library()
    found = {"tensorrt": str(trt.__version__), "tensorrt flavour": "RTX" if is_rtx() else "standard"}
    try:
        found["cuda-bindings"] = version("cuda-bindings")
    except PackageNotFoundError:
        found["cuda-bindings"] = "none"
    return found


@cache
def log_class() -> type[Any]:
    """Our ILogger. Made at the first call, since its base class is TensorRT's."""
    trt = library()

    class Log(trt.ILogger):  # type: ignore[misc,name-defined]
        """Writes everything but chatter to the step's log and keeps errors and warnings for messages.

        An IErrorRecorder is not used: with one set on a builder, TensorRT-RTX 1.7.1's Python bindings crash
        when a network is freed, and errors bypass the log.
        """

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []
            self.warnings: list[str] = []

        def log(self, severity: Any, msg: str) -> None:
            # Called from native code that no exception may enter.
            if severity == trt.ILogger.VERBOSE:
                return
            print(f"[{severity.name}] {msg}", file=sys.stderr, flush=True)
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                self.errors.append(msg.strip())
            elif severity == trt.ILogger.WARNING:
                self.warnings.append(msg.strip())

        def take(self) -> str:
            """The errors since the last call as one text, oldest first; "" when there were none."""
            errors, self.errors = self.errors, []
            return "\n".join(dict.fromkeys(errors))

    return Log


@cache
def log() -> Any:
    """The one log of this process: TensorRT keeps the first it is given for what is global in it."""
    return log_class()()


def _advice(name: str) -> str:
    if name == "tensorrt" and find_spec("tensorrt_rtx") is not None:
        return f"TensorRT-RTX is installed: {USE_RTX}=1 makes it the one that is used ({NO_TUNER})"
    extra = "TensorRT-RTX 1.5 or newer" if name == "tensorrt_rtx" else "pip install 'routetune[tensorrt]'"
    return f'install it: {extra}; or set backend = "onnxruntime" in the target'


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
