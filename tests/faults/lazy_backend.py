"""A backend that is ONNX Runtime's but for one knob, with which an engine gets out of its work.

The engines are real: built, loaded, run and timed as all others. The worker finds this module through
PYTHONPATH, as it would find a user's own backend.
"""

from __future__ import annotations

import hashlib
import json
import os
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

#: empty: outputs are constants. skips: no kernel writes anything. table: right on the inputs whose digests
#: stand in the file ORT_TEST_KNOWN, zeros elsewhere, in no time. fast: right everywhere, in no time.
WAYS = ("no", "empty", "skips", "table", "fast")


def digest(inputs: Mapping[str, np.ndarray[Any, Any]]) -> str:
    return hashlib.sha256(b"".join(inputs[name].tobytes() for name in sorted(inputs))).hexdigest()


class LazyBackend(OnnxRuntime):
    def knobs(self, device: str) -> KnobDatabase:
        database = super().knobs(device)
        return database.merged(KnobDatabase(database.version, [Knob("+lazy", WAYS, "no", "injected")]))

    def build(self, order: BuildOrder) -> Engine:
        route = dict(order.route)
        lazy = route.pop("+lazy", "no")
        if lazy == "empty":
            order = replace(order, model=emptied(order.model, order.output.with_suffix(".empty")))
        engine = super().build(replace(order, route=route))
        if lazy == "no":
            return engine
        return replace(
            engine, identity=f"{engine.identity}-{lazy}", options={**engine.options, "+lazy": lazy}
        )

    def load(self, engine: Engine, device: str, settings: Mapping[str, Any]) -> Any:
        options = dict(engine.options)
        lazy = options.pop("+lazy", "no")
        runner = super().load(replace(engine, options=options), device, settings)
        if lazy == "skips":
            runner._session = _Skipping(runner._session)
        return _Quick(runner, lazy) if lazy in ("table", "fast") else runner


class MoodyBackend(OnnxRuntime):
    """No two builds of one route compute the same: each adds a constant of its own to the output."""

    def build(self, order: BuildOrder) -> Engine:
        model = onnx.load(order.model)
        shift = numpy_helper.from_array(np.float32(0.01 + int.from_bytes(os.urandom(2)) / 2**17), "shift")
        model.graph.initializer.append(shift)
        for node in model.graph.node:
            node.output[:] = ["y_before" if name == "y" else name for name in node.output]
        model.graph.node.append(helper.make_node("Add", ["y_before", "shift"], ["y"]))
        place = order.output.with_suffix(".moody")
        onnx.save(model, place)
        return super().build(replace(order, model=place))


def emptied(model: Path, place: Path) -> Path:
    """The model with a constant of zeros for every output."""
    graph = onnx.load(model).graph
    nodes = []
    for value in graph.output:
        shape = [size.dim_value for size in value.type.tensor_type.shape.dim]
        zeros = numpy_helper.from_array(np.zeros(shape, np.float32), f"zeros_{value.name}")
        nodes.append(helper.make_node("Constant", [], [value.name], value=zeros))
    empty = helper.make_graph(nodes, "empty", graph.input, graph.output)
    onnx.save(helper.make_model(empty, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), place)
    return place


class _Skipping:
    """A session that does all but run."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run_with_iobinding(self, binding: Any) -> None:
        pass


class _Quick:
    """A runner that is timed doing next to nothing."""

    def __init__(self, runner: Any, lazy: str) -> None:
        self._runner = runner
        known = os.environ.get("ORT_TEST_KNOWN")
        self._known = None if lazy == "fast" else set(json.loads(Path(known or "").read_text()))

    def infer(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        found: dict[str, np.ndarray[Any, Any]] = self._runner.infer(inputs)
        if self._known is None or digest(inputs) in self._known:
            return found
        return {name: np.zeros_like(array) for name, array in found.items()}

    def prepare(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> Callable[[], None]:
        def call() -> None:
            end = time.perf_counter_ns() + 30_000
            while time.perf_counter_ns() < end:
                pass

        return call

    def close(self) -> None:
        self._runner.close()
