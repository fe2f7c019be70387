"""The CUDA provider of ONNX Runtime on a real GPU: knobs, engines that reload bit by bit, graphs, memory."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto
from routetune.tasks.arrays import save_arrays
from routetune.tasks.devices import lock_name
from routetune.tasks.engines import cuda
from routetune.tasks.engines import steps as engine_steps
from routetune.tasks.engines.base import BuildError, BuildOrder, Engine, default_device, open_backend
from routetune.tasks.engines.onnxruntime.probe import installed
from routetune.tasks.engines.onnxruntime.rules import graph, node
from routetune.tasks.engines.onnxruntime.session import (
    build_options,
    disabled_optimizers,
    open_session,
    provider_options,
)
from routetune.tasks.engines.onnxruntime.settings_cuda import every_setting, settings_on
from routetune.tasks.errors import BadInput
from routetune.tasks.targets.gpu import UNKNOWN
from routetune.tasks.verdicts import steps
from routetune.tasks.verdicts.duel import duel_figures
from routetune.tasks.verdicts.rounds import estimate_from, figures_from
from routetune.tasks.verdicts.samplers import Streams

from tests.engines.small_models import SAMPLES, Sample, cnn, mlp, tokens
from tests.gpu.here import why_no_cuda

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(why_no_cuda()), reason=why_no_cuda() or "can be used")]

DEVICE = "cuda:0"
Arrays = dict[str, np.ndarray[Any, Any]]
ROWS = {name: row for name, row in every_setting().items() if row.place == "provider"}
#: Options that the session does not tell back.
SILENT = {"enable_skip_layer_norm_strict_mode"}


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Engine]:
    def call(model: ModelProto, route: dict[str, str] | None = None) -> Engine:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.onnx"
        onnx.save(model, path)
        return open_backend("onnxruntime").build(
            BuildOrder(path, route or {}, path.with_suffix(".engine"), device=DEVICE)
        )

    return call


def load(engine: Engine) -> Any:
    return open_backend("onnxruntime").load(engine, DEVICE, {})


def inferred(engine: Engine, *inputs: Arrays) -> list[Arrays]:
    runner = load(engine)
    try:
        return [runner.infer(one) for one in inputs]
    finally:
        runner.close()


def same(one: Arrays, other: Arrays) -> bool:
    return all(one[name].tobytes() == other[name].tobytes() for name in one)


@cache
def attention() -> Sample:
    """A model on which the transformer fusions act: the sample encoder."""
    from routetune import data

    folder = Path(data.__path__[0])
    model = onnx.load(folder / "models" / "encoder.onnx")
    with np.load(folder / "inputs" / "encoder.npz") as arrays:
        return Sample("encoder", model, {}, [dict(arrays)])


@pytest.mark.parametrize("name", ROWS)
def test_the_library_knows_each_option_and_has_its_default(name: str, tmp_path: Path) -> None:
    model = mlp().save(tmp_path)
    for value in ROWS[name].values:
        options = provider_options({f"-{name}": value}, DEVICE)
        session = onnxruntime.InferenceSession(str(model), providers=[("CUDAExecutionProvider", options)])
        told = session.get_provider_options()["CUDAExecutionProvider"]
        assert told.get(name, value if name in SILENT else None) == value


def test_the_library_runs_the_same_transformers_on_cuda(tmp_path: Path) -> None:
    code = (
        "import sys, onnxruntime\n"
        "options = onnxruntime.SessionOptions()\n"
        "options.log_severity_level = 0\n"
        "onnxruntime.InferenceSession(sys.argv[1], options, providers=['CUDAExecutionProvider'])\n"
    )
    command = [sys.executable, "-c", code, str(mlp().save(tmp_path))]
    log = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stderr
    listed = dict.fromkeys(re.findall(r"Applying graph transformer (\S+) on step", log))
    assert tuple(listed) == installed().transformers


ONE_OFF = [(f"-{name}", value) for name, row in ROWS.items() for value in row.values if value != row.default]
ONE_OFF += [("-graph_optimization_level", level) for level in ("disabled", "basic", "extended", "all")]
TOGETHER = [
    dict.fromkeys(("-prefer_nhwc", "-enable_cuda_graph"), "1"),
    dict.fromkeys(("-prefer_nhwc", "-fuse_conv_bias", "-enable_cuda_graph"), "1"),
    dict.fromkeys(("-tunable_op_enable", "-tunable_op_tuning_enable"), "1"),
]
#: Its outputs are not even the same twice: see the test on it.
BROKEN = {"-fuse_conv_bias": "1"}


@pytest.mark.parametrize("name", [name for name, row in settings_on("cuda").items() if row.only_at_load])
def test_what_only_acts_at_load_shapes_no_graph(name: str, build: Callable[..., Engine]) -> None:
    for make in (*SAMPLES, attention):
        default = build(make().model).identity
        for value in settings_on("cuda")[name].values:
            graph_of = str(build(make().model, {f"-{name}": value}).identity).partition("-")[0]
            assert graph_of == default, (make.__name__, value)


@pytest.mark.parametrize("route", [{name: value} for name, value in ONE_OFF] + TOGETHER, ids=str)
def test_an_engine_reloads_bit_by_bit(
    route: dict[str, str], build: Callable[..., Engine], tmp_path: Path
) -> None:
    """As the very model with the very options, compiled anew, which no engine of ours has a part in."""
    for sample in (cnn(), tokens(), attention()):
        if route == BROKEN and sample.name == "cnn":
            continue
        session = open_session(
            sample.save(tmp_path),
            build_options(route, tmp_path / "unused", {}),
            "CUDAExecutionProvider",
            provider_options=provider_options(route, DEVICE),
            disabled=disabled_optimizers(route),
        )
        engine = build(sample.model, route)
        for inputs, got in zip(sample.inputs, inferred(engine, *sample.inputs), strict=True):
            options = onnxruntime.RunOptions()
            options.add_run_config_entry("gpu_graph_id", "-1")
            wanted = dict(zip(got, session.run(None, inputs, options), strict=True))
            assert same(got, wanted), sample.name


def test_fused_bias_is_broken_alone_and_right_with_nhwc(build: Callable[..., Engine]) -> None:
    """So the accuracy check has something to find, and a search must change both knobs at once."""
    sample = cnn()
    expected = dict(zip(("y", "features"), sample.expected(sample.inputs[0]), strict=True))

    def loss(route: dict[str, str]) -> float:
        got = inferred(build(sample.model, route), sample.inputs[0])[0]["features"]
        return float(np.nan_to_num(np.abs(got - expected["features"]), nan=1e9).max())

    assert loss({"-prefer_nhwc": "1", "-fuse_conv_bias": "1"}) < 0.01
    print("fuse_conv_bias alone is off by", loss(BROKEN))


@pytest.mark.parametrize("route", [{}, {"-enable_cuda_graph": "1"}], ids=["plain", "graph"])
def test_buffers_are_kept_by_shape_and_filled_by_value(
    route: dict[str, str], build: Callable[..., Engine]
) -> None:
    """With a graph each shape has one of its own; replays must take today's inputs, in any order."""
    sample = mlp()
    runner = load(build(sample.model, {"-use_tf32": "0"} | route))
    rng = np.random.default_rng(5)
    calls = [runner.prepare(inputs) for inputs in sample.inputs]
    for turn in range(3):
        for count in (1, 7, 4, 1):
            inputs = {"x": rng.standard_normal((count, 16)).astype(np.float32)}
            (expected,) = sample.expected(inputs)
            assert np.allclose(runner.infer(inputs)["y"], expected, atol=1e-5)
            calls[turn]()
    runner.close()
    with pytest.raises(RuntimeError, match="closed"):
        calls[0]()


def test_a_graph_that_cannot_be_is_the_route_s_fault(build: Callable[..., Engine]) -> None:
    """Unique has no CUDA kernel: a session with nodes left to the CPU takes no graph."""
    model = graph([node("Unique x -> y", sorted=1)], x=(6,), y=("n",))
    with pytest.raises(BuildError, match=r"(?i)graph"):
        build(model, {"-enable_cuda_graph": "1"})


def test_nodes_left_to_the_cpu_and_shapes_that_depend_on_values(build: Callable[..., Engine]) -> None:
    """Copies between host and device are nodes of the engine then."""
    model = graph(
        [node("Mul x x -> a"), node("Unique a -> b", sorted=1), node("Add b b -> y")], x=(6,), y=("n",)
    )
    engine = build(model)
    first, second = ({"x": np.array(x, np.float32)} for x in ([3, -3, 1, 2, 2, 1], [0, 0, 0, 0, 0, 1]))
    got = inferred(engine, first, second, first)
    assert [one["y"].tolist() for one in got] == [[2, 8, 18], [0, 2], [2, 8, 18]]
    runner = load(engine)
    call = runner.prepare(first)
    call()
    assert call.device_ns() > 0
    runner.close()


def test_an_output_that_is_an_input_or_a_weight(build: Callable[..., Engine]) -> None:
    model = graph([node("Relu x -> y")], {"w": np.arange(4, dtype=np.float32)})
    for name in ("x", "w"):
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, 1, (4,)))
    x = np.array([-1, 0, 1, 2], np.float32)
    try:
        engine = build(model)
    except BuildError as refused:  # an input as an output
        pytest.skip(str(refused))
    (got,) = inferred(engine, {"x": x})
    assert got["y"].tolist() == [0, 0, 1, 2]
    assert got["x"].tolist() == x.tolist() and got["w"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", ["float16", "float32", "int64", "bool"])
def test_types_go_to_the_device_and_back(dtype: str, build: Callable[..., Engine]) -> None:
    kind = {"bool": "BOOL", "float16": "FLOAT16", "float32": "FLOAT", "int64": "INT64"}[dtype]
    model = graph([node("Unsqueeze x axes -> y")], {"axes": np.array([0])}, x=(3,), y=(1, 3))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.DataType.Value(kind)
    x = np.array([0, 1, 1], dtype)
    (got,) = inferred(build(model), {"x": x})
    assert got["y"].dtype == x.dtype and got["y"].tolist() == [x.tolist()]


def test_memory_that_does_not_suffice_is_named(build: Callable[..., Engine]) -> None:
    model = graph([node("MatMul x w -> y")], {"w": np.ones((1, 4096), np.float32)}, x=("n", 1), y=("n", 4096))
    engine = build(model)
    free, _ = cuda.free_memory()
    held = cuda.Buffer(free - (1 << 30))
    runner = load(engine)
    try:
        with pytest.raises(MemoryError, match=r"GPU has no memory left|no memory left while"):
            runner.infer({"x": np.ones((1 << 18, 1), np.float32)})  # 4 GiB of output
        assert runner.infer({"x": np.ones((2, 1), np.float32)})["y"].shape == (2, 4096)
    finally:
        runner.close()
        held.close()


def test_closing_frees_the_device_s_memory(build: Callable[..., Engine]) -> None:
    weight = np.random.default_rng(0).standard_normal((1024, 32768)).astype(np.float32)  # 128 MiB
    model = graph([node("MatMul x w -> y")], {"w": weight}, x=(1, 1024), y=(1, 32768))
    engine = build(model, {"-enable_cuda_graph": "1"})
    free = []
    for _ in range(6):
        runner = load(engine)
        runner.prepare({"x": np.ones((1, 1024), np.float32)})()
        runner.close()
        del runner
        gc.collect()
        free.append(cuda.free_memory()[0])
    assert free[1] - free[-1] < weight.nbytes


def test_a_device_that_is_not_there_is_refused(build: Callable[..., Engine], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"'cuda:4711' does not exist"):
        open_backend("onnxruntime").build(
            BuildOrder(mlp().save(tmp_path), {}, tmp_path / "e", device="cuda:4711")
        )


def test_the_default_device_versions_and_lock() -> None:
    assert default_device("onnxruntime") == DEVICE
    versions = open_backend("onnxruntime").versions(DEVICE)
    assert {"onnxruntime package", "onnxruntime cuda", "cudart", "cudnn"} <= versions.keys()
    assert UNKNOWN not in versions.values()
    uuid = lock_name(DEVICE)
    assert uuid.startswith(("GPU-", "MIG-"))
    code = "from routetune.tasks.devices import lock_name; print(lock_name('cuda:0'))"
    renumbered = os.environ | {"CUDA_VISIBLE_DEVICES": uuid}
    told = subprocess.run([sys.executable, "-c", code], env=renumbered, capture_output=True, text=True)
    assert told.stdout.strip() == uuid


@pytest.mark.parametrize("graph", ["0", "1"])
def test_several_in_flight_are_as_right_as_one(graph: str, build: Callable[..., Engine]) -> None:
    """Each stream has a runner and a thread, where a graph is captured again, perhaps all at once."""
    sample = attention()
    engine = build(sample.model, {"-enable_cuda_graph": graph})
    (expected,) = inferred(engine, sample.inputs[0])
    runners = [load(engine) for _ in range(4)]
    with Streams([runner.prepare(sample.inputs[0]) for runner in runners]) as streams:
        assert all(ns > 0 for _ in range(5) for ns in streams.sample(40))
    for runner in runners:
        assert same(runner.infer(sample.inputs[0]), expected)
        runner.close()


def test_an_engine_beside_itself_is_as_fast_from_the_first_measurement_on(tmp_path: Path) -> None:
    """One-off timing called every harmless knob a win of 1.3x: a GPU has its clock up only after a while.

    Whichever side is loaded first, and from the first measurement of the process to the last.
    """
    path, inputs = str(tmp_path / "engine"), str(tmp_path / "inputs")
    sample = cnn()
    order = {"model": str(sample.save(tmp_path)), "route": {}, "device": DEVICE, "output": path}
    engine = engine_steps.build("onnxruntime", order)
    save_arrays(tmp_path / "inputs", sample.inputs[0])
    both = engine, path, engine, path
    found = {}
    for number in range(6):
        first = ("candidate", "control")[number % 2]
        raw = steps.time("onnxruntime", *both, DEVICE, {}, inputs, {"seconds": 1.0}, first)
        found[number, first] = round(estimate_from(raw).ratio, 4)
    print("an engine beside itself, by the side that was loaded first:", found)
    assert all(abs(ratio - 1) < 0.05 for ratio in found.values()), found


@pytest.mark.parametrize("streams", [1, 3])
def test_rounds_and_duels_have_the_device_s_time_beside_the_wall_s(streams: int, tmp_path: Path) -> None:
    """More work shows in both; with several in flight there is no single call to put events around."""
    found = {}
    for name, width in (("narrow", 64), ("wide", 4096)):
        weight = np.ones((4096, width), np.float32)
        model = graph([node("MatMul x w -> y")], {"w": weight}, x=(4096, 4096), y=(4096, width))
        onnx.save(model, tmp_path / f"{name}.onnx")
        order = {"model": str(tmp_path / f"{name}.onnx"), "route": {}, "device": DEVICE}
        path = str(tmp_path / name)
        found[name] = engine_steps.build("onnxruntime", order | {"output": path}), path
    save_arrays(tmp_path / "inputs", {"x": np.ones((4096, 4096), np.float32)})
    sides = [part for name in ("wide", "narrow") for part in found[name]]
    inputs = str(tmp_path / "inputs")
    raw = steps.time("onnxruntime", *sides, DEVICE, {}, inputs, {"seconds": 0.3, "streams": streams})
    load_of = {"seconds": 0.2, "streams": streams}
    duel = steps.duel("onnxruntime", found, DEVICE, {}, inputs, 0, load_of)
    figures = figures_from(raw)
    sides_of = (figures["candidate"], figures["control"]), tuple(duel_figures([duel])["times"].values())
    for pair in sides_of:
        if streams > 1:
            assert all("device_p50" not in side for side in pair)
            continue
        wide, narrow = sorted(pair, key=lambda side: -side["p50"])
        assert wide["device_p50"] > 2 * narrow["device_p50"] > 0
        assert wide["device_p50"] < 2 * wide["p50"]
    gpu = figures["conditions"]
    assert gpu["gpu.graphics_mhz"][0] > 0
