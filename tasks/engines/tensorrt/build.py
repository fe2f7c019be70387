"""Building an engine: parse the model, configure the builder, set the route and see that it was taken."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from routetune.tasks.engines.base import BuildError, BuildOrder
from routetune.tasks.engines.tensorrt import timing_cache
from routetune.tasks.engines.tensorrt.knobs import apply_settings, compiler_route, new_builder
from routetune.tasks.engines.tensorrt.library import NO_TUNER, is_rtx, library, log
from routetune.tasks.errors import BadInput

MIB = 2**20


def build_bytes(order: BuildOrder) -> bytes:
    """The serialized engine of an order whose route has been checked.

    Raises:
        BuildError: TensorRT refuses the model or the route; the message holds every error it gave.
        TimeoutError: the order's "seconds" are over; TensorRT was asked to stop, and did.
        BadInput: a setting that cannot be.
    """
    log().take()
    load_plugins(order.settings.get("plugins", ()))
    builder = new_builder()
    network, parser = _parsed(builder, order.model)
    # Referred to until the build is over: neither builder nor configuration keeps it alive.
    monitor = monitor_class()(order.settings.get("seconds"))
    config = _configured(builder, monitor, order.settings)
    _add_profiles(builder, network, config, order)
    apply_settings(config, order.route)
    _set_route(config, compiler_route(order.route))
    cache_file = order.settings.get("timing_cache")
    if not cache_file or is_rtx():  # TensorRT-RTX times nothing at build time; its timing cache stays empty
        return _built(builder, network, parser, config, monitor)
    timing_cache.attach(config, Path(cache_file))
    data = _built(builder, network, parser, config, monitor)
    timing_cache.keep(config, Path(cache_file))
    return data


def load_plugins(libraries: Any) -> None:
    """Load plugin libraries; they register themselves. Raises BadInput."""
    from polygraphy.backend.trt import load_plugins as load

    try:
        load([str(path) for path in libraries])
    except OSError as error:
        raise BadInput(f"a plugin library cannot be loaded: {error}") from error


def _parsed(builder: Any, model: Path) -> tuple[Any, Any]:
    """The network, and the parser, which owns its weights."""
    trt = library()
    if not model.is_file() or not model.stat().st_size:
        raise BuildError(f"model {model.name} cannot be read: it is missing or empty")
    trt.init_libnvinfer_plugins(log(), "")
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, log())
    if not parser.parse_from_file(str(model)):
        errors = [_parser_error(parser.get_error(index)) for index in range(parser.num_errors)]
        said = "\n".join(dict.fromkeys(errors)) or log().take() or "no reason was given"
        log().take()
        raise BuildError(f"TensorRT cannot parse model {model.name}:\n{said}")
    return network, parser


def _parser_error(error: Any) -> str:
    node = f"node {error.node()}" if error.node() >= 0 else "the model"
    names = " ".join(text for text in (error.node_operator(), error.node_name()) if text)
    return f"{node}{f' ({names})' if names else ''}: {error.desc()}"


def _configured(builder: Any, monitor: Any, settings: Mapping[str, Any]) -> Any:
    """A configuration with everything that is not the route's, by Polygraphy's loader."""
    from polygraphy.backend.tensorrt_rtx import CreateConfigRTX
    from polygraphy.backend.trt import CreateConfig
    from polygraphy.exception import PolygraphyException

    trt = library()
    levels = trt.HardwareCompatibilityLevel.__members__
    level = settings.get("hardware_compatibility", "none")
    common = {
        "memory_pool_limits": {
            _member(trt.MemoryPoolType, "memory_pools", name): int(mib * MIB)
            for name, mib in settings.get("memory_pools", {}).items()
        },
        # For the engine inspector; it costs the engine nothing at run time.
        "profiling_verbosity": trt.ProfilingVerbosity.DETAILED,
        "version_compatible": bool(settings.get("version_compatible", False)),
        "hardware_compatibility_level": None if level == "none" else levels[level.upper()],
        "progress_monitor": monitor,
    }
    targets = [_capability(text) for text in settings.get("compute_capabilities", ())]
    if targets and not is_rtx():
        raise BadInput("compute_capabilities in [engine] is for TensorRT-RTX; TensorRT builds for this GPU")
    try:
        # Without a network: profiles are added below, since Polygraphy takes marks in names as wildcards.
        if is_rtx():
            return CreateConfigRTX(compute_capabilities=targets or None, **common)(builder, None)
        return CreateConfig(**common)(builder, None)
    except PolygraphyException as error:
        raise BuildError(f"TensorRT does not take these settings: {error}\n{log().take()}".strip()) from error


def _add_profiles(builder: Any, network: Any, config: Any, order: BuildOrder) -> None:
    """One optimization profile for each of the order, over every input that needs one."""
    values = order.settings.get("shape_values", {})
    for shapes in order.profiles:
        profile = builder.create_optimization_profile()
        for index in range(network.num_inputs):
            tensor = network.get_input(index)
            try:
                _add_limits(profile, tensor, shapes, values)
            except (ValueError, RuntimeError) as error:
                raise BuildError(f"TensorRT refuses the profile of input {tensor.name!r}: {error}") from error
        if config.add_optimization_profile(profile) < 0:
            raise BuildError(f"TensorRT refuses an optimization profile: {dict(shapes)}\n{log().take()}")


def _add_limits(profile: Any, tensor: Any, shapes: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Put one input into a profile, if it needs to be there."""
    name = tensor.name
    if tensor.is_shape_tensor:
        limits = _limits(values, name, "an input that shapes depend on", "shape_values in [engine]")
        profile.set_shape_input(name, *limits)
    elif name in shapes or -1 in tuple(tensor.shape):
        profile.set_shape(name, *_limits(shapes, name, "of dynamic shape", "[shapes]"))


def _limits(given: Mapping[str, Any], name: str, what: str, where: str) -> tuple[tuple[int, ...], ...]:
    if name not in given:
        raise BuildError(f"input {name!r} is {what}: give its min, opt and max under {where} of the target")
    return tuple(tuple(given[name][end]) for end in ("min", "opt", "max"))


def _set_route(config: Any, route: str) -> None:
    """Set the build route and read it back: the Python setter drops TensorRT's refusal."""
    if not route:
        return
    config.build_route = route
    if config.build_route.split() == route.split():
        return
    if not config.all_build_routes.strip():
        raise BuildError(f"the route {route!r} cannot be set: {NO_TUNER}")
    said = log().take() or "it gave no reason"
    raise BuildError(f"TensorRT refused the route {route!r} and keeps {config.build_route!r}: {said}")


def _built(builder: Any, network: Any, parser: Any, config: Any, monitor: Any) -> bytes:
    from polygraphy.backend.trt import engine_bytes_from_network
    from polygraphy.exception import PolygraphyException

    try:
        data = bytes(engine_bytes_from_network((builder, network, parser), config=config))
    except PolygraphyException as error:
        said = log().take()
        if monitor.cancelled:
            raise TimeoutError(f"the build was stopped after its {monitor.seconds:g} s") from error
        if "out of memory" in said.lower() or "OutOfMemory" in said:
            raise MemoryError(f"TensorRT ran out of memory: {said}") from error
        raise BuildError(f"TensorRT built no engine: {said or error}") from error
    return data


@cache
def monitor_class() -> type[Any]:
    """Our IProgressMonitor. Made at the first call, since its base class is TensorRT's."""
    trt = library()

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc,name-defined]
        """Writes phases to the step's log and ends the build when its time is over."""

        def __init__(self, seconds: float | None) -> None:
            trt.IProgressMonitor.__init__(self)
            self.seconds = seconds
            self.cancelled = False
            self._started = time.monotonic()

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            if parent_phase is None or num_steps > 1:
                passed = time.monotonic() - self._started
                print(f"{passed:8.2f} s  {phase_name} ({num_steps} steps)", file=sys.stderr, flush=True)

        def phase_finish(self, phase_name: str) -> None:
            pass

        def step_complete(self, phase_name: str, step: int) -> bool:
            late = self.seconds is not None and time.monotonic() - self._started > self.seconds
            self.cancelled = self.cancelled or late
            return not self.cancelled

    return Monitor


def _member(enum: Any, setting: str, name: str) -> Any:
    found = enum.__members__.get(name.upper())
    if found is None:
        known = ", ".join(member.lower() for member in enum.__members__)
        raise BadInput(f"{setting} in [engine]: {name!r} is not one of {known}")
    return found


def _capability(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)


@contextmanager
def reporting() -> Iterator[None]:
    """Polygraphy's own account of a build goes to the step's log, without colours."""
    from polygraphy.logger import G_LOGGER

    with G_LOGGER.verbosity(G_LOGGER.INFO):
        yield
