"""Reference outputs: the model run as written, by Polygraphy's ONNX Runtime runner, without optimisation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from routetune.tasks.arrays import Array, arrays_digest, load_arrays, save_arrays
from routetune.tasks.engines.steps import engine_from, loaded

#: What shapes the outputs besides the model and the inputs; part of the key of the stage.
RUNTIME = {"runner": "polygraphy.OnnxrtRunner", "optimisation": "disabled", "threads": 1}

#: Tensors that numpy, and so Polygraphy, has a type for.
_PLAIN = frozenset(
    {f"tensor({name})" for name in ("float", "double", "float16", "bool")}
    | {f"tensor({sign}int{bits})" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)


class ReferenceFailed(Exception):
    """The model does not run as written, so there is nothing to compare candidates with."""


def make(source: Mapping[str, Any], sets: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Run every input set twice, in one session, and keep the outputs of the first time.

    Args:
        source: what computes: {"model", "plugins"}, the model as written; or {"backend", "engine", "path",
            "device", "settings"}, an engine.
        sets: one dict per input set: "name", "role", "inputs" (an arrays file), "output" (the file to write).

    Returns: one dict per set: "name", "unstable" (outputs whose two runs differ in any bit), "constant"
        (outputs of one value), "single" (of one element), "empty" (of none), "non_finite" (with NaN or
        infinities).
    """
    with _opened(source) as run:
        first = [run(one) for one in sets]
        second = [run(one) for one in sets]
    report = []
    for one, outputs, again in zip(sets, first, second, strict=True):
        save_arrays(Path(one["output"]), outputs)
        report.append({"name": one["name"], "unstable": differing(outputs, again), **look_at(outputs)})
    return report


def again(source: Mapping[str, Any], sets: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Run every input set once more, in what should be another process than that of `make`.

    Returns: one dict per set: "name", and "unstable", the outputs that differ in any bit from the kept ones.
    """
    with _opened(source) as run:
        return [
            {"name": one["name"], "unstable": differing(load_arrays(Path(one["output"])), run(one))}
            for one in sets
        ]


def differing(outputs: Mapping[str, Array], others: Mapping[str, Array]) -> list[str]:
    """Names of outputs that differ in any bit, in type or in shape."""
    return [
        name
        for name, array in outputs.items()
        if name not in others or arrays_digest({name: array}) != arrays_digest({name: others[name]})
    ]


def look_at(outputs: Mapping[str, Array]) -> dict[str, list[str]]:
    """The outputs that a comparison proves little by, and those that nothing can be compared with."""
    return {
        "constant": [n for n, a in outputs.items() if a.size > 1 and bool(np.all(a == a.reshape(-1)[0]))],
        "single": [n for n, a in outputs.items() if a.size == 1],
        "empty": [n for n, a in outputs.items() if not a.size],
        "non_finite": [n for n, a in outputs.items() if not _finite(a)],
    }


def _finite(array: Array) -> bool:
    return array.dtype.kind in "biu" or bool(np.all(np.isfinite(array)))


Run = Callable[[Mapping[str, str]], dict[str, Array]]


@contextmanager
def _opened(source: Mapping[str, Any]) -> Iterator[Run]:
    """What runs one input set."""
    with ExitStack() as stack:
        if "model" in source:
            infer = stack.enter_context(_model(source["model"], source["plugins"]))
        else:
            engine = engine_from(source["path"], source["engine"])
            runner = loaded(source["backend"], engine, source["device"], source["settings"])
            infer = stack.enter_context(runner).infer

        def run(one: Mapping[str, str]) -> dict[str, Array]:
            try:
                outputs = infer(load_arrays(Path(one["inputs"])))
            except Exception as error:
                raise ReferenceFailed(
                    f"input set {one['name']!r}: the model does not run: {error}"
                ) from error
            return {name: np.array(value) for name, value in outputs.items()}

        yield run


@contextmanager
def _model(model: str, plugins: Sequence[str]) -> Iterator[Callable[[Mapping[str, Array]], Any]]:
    session = _session(model, plugins)
    if all(value.type in _PLAIN for value in (*session.get_inputs(), *session.get_outputs())):
        from polygraphy.backend.onnxrt import OnnxrtRunner

        with OnnxrtRunner(session, name="reference") as runner:
            yield lambda inputs: runner.infer(inputs, check_inputs=False)
        return
    # Polygraphy cannot feed or fetch what numpy has no type for, such as bfloat16; ONNX Runtime can.
    from routetune.tasks.engines.onnxruntime.runner import SessionRunner

    own = SessionRunner(session)
    try:
        yield own.infer
    finally:
        own.close()


def _session(model: str, plugins: Sequence[str]) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = int(str(RUNTIME["threads"]))
    for library in plugins:
        options.register_custom_ops_library(library)
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ReferenceFailed(f"ONNX Runtime cannot open the model: {error}") from error
