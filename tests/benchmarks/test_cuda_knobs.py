"""What each option of ONNX Runtime's CUDA provider does for the sample models: speed, loss, GPU time."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from routetune.data import folder, make
from routetune.tasks.arrays import save_arrays
from routetune.tasks.engines import steps as engine_steps
from routetune.tasks.engines.base import open_backend
from routetune.tasks.engines.onnxruntime.settings_cuda import every_setting
from routetune.tasks.targets import gpu
from routetune.tasks.verdicts import steps
from routetune.tasks.verdicts.rounds import estimate_from, figures_from

from tests.benchmarks.stage import write
from tests.gpu.here import why_no_cuda

FILE = "gpu_knobs.json"
COMMAND = "pytest -m 'benchmark and gpu' tests/benchmarks/test_cuda_knobs.py"
ROUNDS = {"seconds": 0.6, "width": 0.01}
DEVICE = "cuda:0"
TOGETHER = (
    ("-prefer_nhwc", "-fuse_conv_bias"),
    ("-prefer_nhwc", "-enable_cuda_graph"),
    ("-prefer_nhwc", "-fuse_conv_bias", "-enable_cuda_graph"),
)


def routes() -> list[dict[str, str]]:
    rows = [row for row in every_setting().values() if row.place == "provider"]
    one_off = [{f"-{row.name}": value} for row in rows for value in row.values if value != row.default]
    levels = [{"-graph_optimization_level": level} for level in ("disabled", "basic", "extended")]
    return [{}, *one_off, *(dict.fromkeys(names, "1") for names in TOGETHER), *levels]


def workloads() -> dict[str, tuple[Path, dict[str, Any]]]:
    rng = np.random.default_rng(0)
    models = folder() / "models"
    with np.load(folder() / "inputs" / "encoder.npz") as arrays:
        tokens = dict(arrays)
    images = rng.standard_normal((4, 3, 224, 224)).astype(np.float32)
    return {
        "digits b32": (models / "digits_cnn.onnx", {"x": rng.random((32, 1, 8, 8), np.float32)}),
        "encoder b8 s64": (models / "encoder.onnx", tokens),
        "squeezenet b4": (make.ensure("squeezenet"), {"data_0": images}),
    }


@pytest.mark.benchmark
@pytest.mark.gpu
@pytest.mark.skipif(bool(why_no_cuda()), reason=why_no_cuda() or "can be used")
@pytest.mark.parametrize("name", ["digits b32", "encoder b8 s64", "squeezenet b4"])
def test_each_knob(name: str, tmp_path: Path) -> None:
    model, inputs = workloads()[name]
    save_arrays(tmp_path / "inputs", inputs)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    reference = onnxruntime.InferenceSession(str(model), options, ["CPUExecutionProvider"]).run(None, inputs)
    order = {"model": str(model), "device": DEVICE}
    control = (
        engine_steps.build("onnxruntime", order | {"route": {}, "output": str(tmp_path / "control")}),
        str(tmp_path / "control"),
    )
    found = {}
    for number, route in enumerate(routes()):
        path = str(tmp_path / f"{number}")
        engine = engine_steps.build("onnxruntime", order | {"route": route, "output": path})
        raw = steps.time("onnxruntime", engine, path, *control, DEVICE, {}, str(tmp_path / "inputs"), ROUNDS)
        runner = open_backend("onnxruntime").load(engine_steps.engine_from(path, engine), DEVICE, {})
        outputs = list(runner.infer(inputs).values())
        runner.close()
        spelt = " ".join(f"{knob}={value}" for knob, value in route.items())
        found[spelt or "(default)"] = _row(raw) | {"relative lInf": _loss(outputs, reference)}
    machine = {"gpu": gpu.describe(0, {}), "versions": open_backend("onnxruntime").versions(DEVICE)}
    write(FILE, name, COMMAND, {"settings": ROUNDS, "host": platform.machine(), **machine, "routes": found})
    assert found["-enable_cuda_graph=1"]["speed"] > 1.0


def _row(raw: dict[str, Any]) -> dict[str, Any]:
    estimate, figures = estimate_from(raw), figures_from(raw)["candidate"]
    milliseconds = {name: round(figures[name] / 1e6, 4) for name in ("p50", "device_p50") if name in figures}
    speeds = {"speed": estimate.ratio, "low": estimate.low, "high": estimate.high}
    return {name: round(value, 3) for name, value in speeds.items()} | {"ms": milliseconds}


def _loss(outputs: list[Any], reference: list[Any]) -> float | str:
    """The largest difference, relative to the largest value of its output."""
    worst = 0.0
    for got, wanted in zip(outputs, reference, strict=True):
        difference = float(np.abs(got.astype(np.float64) - wanted).max() / np.abs(wanted).max())
        if not np.isfinite(difference):
            return "not finite"
        worst = max(worst, difference)
    return float(f"{worst:.1e}")
