"""Reference outputs: the model run as written, by Polygraphy's ONNX Runtime runner, without optimisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from routetune.tasks.arrays import Array, arrays_digest, load_arrays, save_arrays

#: What shapes the outputs besides the model and the inputs; part of the key of the stage.
RUNTIME = {"runner": "polygraphy.OnnxrtRunner", "optimisation": "disabled", "threads": 1}


class ReferenceFailed(Exception):
    """The model does not run as written, so there is nothing to compare candidates with."""


def make(model: str, sets: Sequence[Mapping[str, str]], plugins: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Run every input set twice, in two sessions.

    Args:
        model: the ONNX file.
        sets: one dict per input set: "name", "inputs" (an arrays file), "output" (the file to write).
        plugins: custom-op libraries.

    Returns: one dict per set: "name", "unstable" (outputs whose two runs differ in any bit), "constant"
        (outputs with a single value), "non_finite" (outputs with NaN or infinities).
    """
    first = _run(model, sets, plugins)
    second = _run(model, sets, plugins)
    report = []
    for one, outputs, again in zip(sets, first, second, strict=True):
        save_arrays(Path(one["output"]), outputs)
        report.append({"name": one["name"], **_look_at(outputs, again)})
    return report


def _run(model: str, sets: Sequence[Mapping[str, str]], plugins: Sequence[str]) -> list[dict[str, Array]]:
    from polygraphy.backend.onnxrt import OnnxrtRunner

    results = []
    with OnnxrtRunner(_session(model, plugins), name="reference") as runner:
        for one in sets:
            inputs = load_arrays(Path(one["inputs"]))
            try:
                outputs = runner.infer(inputs, check_inputs=False)
            except Exception as error:
                raise ReferenceFailed(
                    f"input set {one['name']!r}: the model does not run: {error}"
                ) from error
            results.append({name: np.array(value) for name, value in outputs.items()})
    return results


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


def _look_at(outputs: Mapping[str, Array], again: Mapping[str, Array]) -> dict[str, list[str]]:
    return {
        "unstable": [
            name
            for name, array in outputs.items()
            if arrays_digest({name: array}) != arrays_digest({name: again[name]})
        ],
        "constant": [n for n, a in outputs.items() if a.size > 1 and np.all(a == a.reshape(-1)[0])],
        "non_finite": [n for n, a in outputs.items() if a.dtype.kind == "f" and not np.all(np.isfinite(a))],
    }
