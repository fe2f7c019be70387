"""A backend that is ONNX Runtime's but for four places, whose losses and times are known beforehand.

The engines are real: built, loaded, run and timed as all others. A place that is on adds a constant of its
own to the first score of each row, and changes how long a call is made to last, so that the staircase and its
winners are known. The worker finds this module through PYTHONPATH, as it would find a user's own backend.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from routetune.tasks.engines.base import BuildOrder, Engine
from routetune.tasks.engines.onnxruntime.backend import OnnxRuntime
from routetune.tasks.routes.knob import Knob, KnobDatabase

#: place -> what it adds to a score, and the milliseconds that it saves of BASE.
PLACES = {"-a": (1.0, -1.0), "-b": (2.0, 1.5), "-c": (4.0, 1.5), "-d": (8.0, 1.5)}
BASE = 6.0


class PlantedBackend(OnnxRuntime):
    def knobs(self, device: str) -> KnobDatabase:
        database = super().knobs(device)
        ours = [Knob(name, ("off", "on"), "off", "planted") for name in PLACES]
        return database.merged(KnobDatabase(database.version, ours))

    def build(self, order: BuildOrder) -> Engine:
        on = sorted(name for name in order.route if name in PLACES)
        rest = {name: value for name, value in order.route.items() if name not in PLACES}
        rest["-intra_op_num_threads"] = "1"  # so that no thread pool spins beside what is made to last
        place = order.output.with_suffix(".planted")
        _shifted(order.model, sum(PLACES[name][0] for name in on), place)
        engine = super().build(replace(order, route=rest, model=place))
        spin = BASE - sum(PLACES[name][1] for name in on)
        identity = f"{engine.identity}-{''.join(on)}"
        return replace(engine, identity=identity, options={**engine.options, "spin": spin})

    def load(self, engine: Engine, device: str, settings: Mapping[str, Any]) -> Any:
        options = dict(engine.options)
        spin = options.pop("spin")
        return _Lasting(super().load(replace(engine, options=options), device, settings), spin)


def _shifted(model: Path, shift: float, place: Path) -> None:
    """The model with `shift` added to the first of its scores."""
    loaded = onnx.load(model)
    if shift:
        scores = loaded.graph.output[0]
        classes = scores.type.tensor_type.shape.dim[-1].dim_value
        added = np.eye(1, classes, dtype=np.float32) * np.float32(shift)
        for node in loaded.graph.node:
            node.output[:] = ["before" if name == scores.name else name for name in node.output]
        loaded.graph.initializer.append(numpy_helper.from_array(added, "shift"))
        loaded.graph.node.append(helper.make_node("Add", ["before", "shift"], [scores.name]))
    onnx.save(loaded, place)


class _Lasting:
    """A runner whose timed call lasts as long as was planted, the inference included."""

    def __init__(self, runner: Any, milliseconds: float) -> None:
        self._runner, self._ns = runner, round(milliseconds * 1e6)

    def infer(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        found: dict[str, np.ndarray[Any, Any]] = self._runner.infer(inputs)
        return found

    def prepare(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> Callable[[], None]:
        inner = self._runner.prepare(inputs)

        def call() -> None:
            end = time.perf_counter_ns() + self._ns
            inner()
            while time.perf_counter_ns() < end:
                pass

        return call

    def close(self) -> None:
        self._runner.close()
