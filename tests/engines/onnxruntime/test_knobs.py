"""The knob database: every value of every knob is set, and seen to act in the installed library."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import psutil
import pytest
from routetune.tasks.engines.base import BuildOrder, Engine
from routetune.tasks.engines.onnxruntime import probe, rules
from routetune.tasks.engines.onnxruntime.backend import OnnxRuntime
from routetune.tasks.engines.onnxruntime.knobs import check_route, knob_database
from routetune.tasks.engines.onnxruntime.passes import NOT_KNOBS, RULES, TRANSFORMERS
from routetune.tasks.engines.onnxruntime.settings import settings
from routetune.tasks.errors import BadInput
from routetune.tasks.routes.knob import KnobDatabase

from tests.engines.onnxruntime import patterns

BACKEND = OnnxRuntime()
PROFILES = ({"x": {"min": [1, 4], "opt": [3, 4], "max": [8, 4]}},)
ON_OFF = {"on": "1", "off": "0"}

#: Knobs whose values show in the library's log, as a pattern for the value.
LOGGED: dict[str, Callable[[str], str]] = {
    "session.x64quantprecision": lambda value: {
        "0": r"\A(?!.*Applying graph transformer Avx2WeightS8ToU8Transformer)",
        "1": "Applying graph transformer Avx2WeightS8ToU8Transformer",
    }[value],
    "session.graph_optimizations_loop_level": r"in loop 1 time/s \(.* Loop Level : {}\)".format,
    "session.dynamic_block_base": r"Dynamic block base set to {}\D".format,
    "execution_mode": lambda value: f"execution_mode:{('sequential', 'parallel').index(value)}",
    "execution_order": lambda value: f"execution_order:{value.upper()} ",
    "intra_op_num_threads": r"intra_op_param:OrtThreadPoolParams {{ thread_pool_size: {} ".format,
    "inter_op_num_threads": r"inter_op_param:OrtThreadPoolParams {{ thread_pool_size: {} ".format,
    "enable_mem_pattern": lambda value: f"enable_mem_pattern:{ON_OFF[value]}",
    "enable_mem_reuse": lambda value: f"enable_mem_reuse:{ON_OFF[value]}",
    "enable_cpu_mem_arena": lambda value: f"enable_cpu_mem_arena:{ON_OFF[value]}",
}
#: Knobs whose values change the outputs of a model.
COMPUTED: dict[str, patterns.Make] = {
    "session.disable_prepacking": patterns.big_gemm,
    "mlas.nchwc_pointwise_conv_max_input_channel_batch": patterns.pointwise,
    "mlas.use_lut_gemm": lambda: patterns.low_bits(2),
    "mlas.qnbit.force_fp32": lambda: patterns.low_bits(4),
    "session.set_denormal_as_zero": patterns.denormal,
}
#: Entries that change times only; the session says that it has them.
READ_BACK = (
    "session.intra_op.allow_spinning",
    "session.intra_op.spin_duration_us",
    "session.intra_op.spin_backoff_max",
    "session.inter_op.allow_spinning",
    "session.inter_op.spin_duration_us",
    "session.inter_op.spin_backoff_max",
    "session.force_spinning_stop",
    "session.use_device_allocator_for_initializers",
    "mlas.nchwc_depthwise_sliding",
)


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Engine]:
    def call(model: onnx.ModelProto, **route: str) -> Engine:
        path = tmp_path / "model.onnx"
        onnx.save(model, path)
        names = {f"-{name}": value for name, value in route.items()}
        output = tmp_path / f"{len(list(tmp_path.iterdir()))}.engine"
        return BACKEND.build(BuildOrder(path, names, output, PROFILES))

    return call


@pytest.fixture
def verbose() -> Iterator[None]:
    onnxruntime.set_default_logger_severity(0)
    yield
    onnxruntime.set_default_logger_severity(2)


def test_the_database_is_the_installed_library_s() -> None:
    database = BACKEND.knobs("cpu")
    assert database.version == onnxruntime.__version__
    assert len(database) >= 60
    assert all(
        knob.bounded and knob.default in (knob.values or ()) and knob.help for knob in database.values()
    )
    assert KnobDatabase.from_json(database.to_json()).to_json() == database.to_json()
    listed = {name for name in probe.installed().transformers if name not in NOT_KNOBS}
    assert listed == {name for name in TRANSFORMERS if f"-{name}" in database}
    assert {f"-{name}" for name in RULES} <= set(database)


def test_every_knob_is_tried_below() -> None:
    tried = {*patterns.PATTERNS, *rules.models(), *LOGGED, *COMPUTED, *READ_BACK}
    assert {f"-{name}" for name in tried} == set(knob_database())


GRAPH = {
    **patterns.PATTERNS,
    **{name: (lambda model=model: model) for name, model in rules.models().items()},
}
#: Where another rewrite would do the same, it is off.
BESIDES = {"UnsqueezeElimination": {"ConstantFolding": "off"}}


@pytest.mark.parametrize("name", GRAPH)
def test_each_value_gives_a_graph_of_its_own(name: str, build: Callable[..., Engine]) -> None:
    model = GRAPH[name]()
    onnx.checker.check_model(model)
    besides = BESIDES.get(name, {})
    values = knob_database()[f"-{name}"].values or ()
    identities = [build(model, **{name: value}, **besides).identity for value in values]
    assert len(set(identities)) == len(values) > 1
    assert build(model, **besides).identity == identities[values.index(knob_database()[f"-{name}"].default)]


@pytest.mark.parametrize("name", [name for name in GRAPH if name in TRANSFORMERS])
def test_the_log_names_a_transformer_unless_it_is_off(
    name: str, build: Callable[..., Engine], verbose: None, capfd: pytest.CaptureFixture[str]
) -> None:
    for value, expected in (("on", True), ("off", False)):
        build(GRAPH[name](), **{name: value})
        log = capfd.readouterr().err
        assert (f"GraphTransformer {name} modified: 1" in log) is expected
        assert (f"Applying graph transformer {name} on" in log) is expected


@pytest.mark.parametrize("name", LOGGED)
def test_the_log_confirms_each_value(
    name: str, build: Callable[..., Engine], verbose: None, capfd: pytest.CaptureFixture[str]
) -> None:
    row = settings()[name]
    for value in row.values:
        engine = build(patterns.gemm_relu(), **{name: value})
        log = capfd.readouterr().err
        assert re.search(LOGGED[name](value), log, re.DOTALL), f"building with {name}={value}"
        if not row.at_load:
            continue
        BACKEND.load(engine, "cpu", {}).close()
        assert re.search(LOGGED[name](value), capfd.readouterr().err), f"loading with {name}={value}"


@pytest.mark.parametrize("name", COMPUTED)
def test_each_value_computes_in_its_own_way(name: str, build: Callable[..., Engine]) -> None:
    model = COMPUTED[name]()
    shape = [size.dim_value or 4 for size in model.graph.input[0].type.tensor_type.shape.dim]
    inputs = {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
    outputs, identities = [], set()
    for value in settings()[name].values:
        # One thread: how the work is shared out may change the sums, too.
        engine = build(model, **{name: value}, intra_op_num_threads="1")
        identities.add(engine.identity)
        runner = BACKEND.load(engine, "cpu", {})
        outputs.append(runner.infer(inputs)["y"].tobytes())
        assert runner.infer(inputs)["y"].tobytes() == outputs[-1]
        runner.close()
    assert len(set(outputs)) == len(outputs) == len(identities)


@pytest.mark.parametrize("name", READ_BACK)
def test_the_session_of_an_engine_has_the_entry(
    name: str, build: Callable[..., Engine], verbose: None, capfd: pytest.CaptureFixture[str]
) -> None:
    for value in settings()[name].values:
        engine = build(patterns.gemm_relu(), **{name: value})
        capfd.readouterr()
        BACKEND.load(engine, "cpu", {}).close()
        shown = f" {name}: {value} " in capfd.readouterr().err
        assert shown is (value != settings()[name].default)


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_threads_are_really_there(build: Callable[..., Engine]) -> None:
    counts = {}
    for value in ("1", "2", "4"):
        engine = build(patterns.gemm_relu(), intra_op_num_threads=value)
        before = psutil.Process().num_threads()
        runner = BACKEND.load(engine, "cpu", {})
        counts[value] = psutil.Process().num_threads() - before
        runner.close()
    assert counts == {"1": 0, "2": 1, "4": 3}  # the calling thread computes, too


@pytest.mark.parametrize(
    ("route", "message"),
    [
        ({"-session.no_such_entry": "1"}, "unknown knob '-session.no_such_entry'"),
        ({"-ConvBNFusio": "off"}, "did you mean -ConvBNFusion"),
        ({"-FreeDimensionOverrideTransformer": "off"}, "unknown knob"),
        ({"ConvBNFusion": "off"}, "unknown knob"),
        ({"-ConvBNFusion": "maybe"}, "allowed: on, off"),
        ({"-intra_op_num_threads": "100000"}, "allowed: 0, 1, 2, 4"),
        ({"-mlas.nchwc_pointwise_conv_max_input_channel_batch": "x"}, "allowed: 16, 32"),
        ({"-graph_optimization_level": "ALL"}, "allowed: disabled, basic"),
    ],
)
def test_what_the_library_would_swallow_is_refused(
    route: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=re.escape(message)):
        check_route(route)
    with pytest.raises(BadInput, match=re.escape(message)):
        BACKEND.build(BuildOrder(tmp_path / "none.onnx", route, tmp_path / "engine"))


def test_a_library_that_cannot_be_asked_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = "import sys; sys.exit('ImportError: libonnxruntime.so: no such file')"
    monkeypatch.setattr(probe, "_command", lambda: [sys.executable, "-c", broken])
    with pytest.raises(BadInput, match="cannot be asked for its knobs: ImportError: libonnxruntime"):
        probe.installed.__wrapped__()
