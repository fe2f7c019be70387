"""What every backend must do; run on each implementation.

A backend joins with a `Case`: its name for `open_backend`, the device, routes that it must build, and one
that changes nothing.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import pytest
from routetune.tasks import canonical
from routetune.tasks.engines.base import Backend, BuildError, BuildOrder, Engine, open_backend
from routetune.tasks.engines.onnxruntime.rules import graph, node
from routetune.tasks.errors import BadInput
from routetune.tasks.routes.knob import KnobDatabase

from tests.engines.small_models import SAMPLES, Sample, mlp
from tests.engines.tensorrt.here import why_not
from tests.gpu.here import why_no_cuda


@dataclass(frozen=True)
class Case:
    """One backend under test.

    Attributes:
        name: as `open_backend` takes it.
        device: where it builds and runs.
        routes: routes that differ from the default and from each other on at least one sample.
        silent: a route that compiles to the default route's engine on the mlp sample.
        tolerance: largest difference from the reference, relative to its largest value.
        opaque: whether engines may have no identity.
    """

    name: str
    device: str
    routes: tuple[dict[str, str], ...]
    silent: dict[str, str]
    tolerance: float = 1e-5
    opaque: bool = False
    marks: tuple[Any, ...] = field(default=())


CASES = (
    Case(
        "onnxruntime",
        "cpu",
        routes=(
            {"-graph_optimization_level": "disabled"},
            {"-graph_optimization_level": "basic"},
            {"-intra_op_num_threads": "1"},
            {"-execution_mode": "parallel", "-inter_op_num_threads": "2"},
            {"-MatMulAddFusion": "off", "-NchwcTransformer": "off"},
        ),
        silent={"-AttentionFusion": "off"},
    ),
    Case(
        "onnxruntime",
        "cuda:0",
        routes=(
            {"-graph_optimization_level": "disabled"},
            {"-graph_optimization_level": "basic", "-use_tf32": "0"},
            {"-enable_cuda_graph": "1"},
            {"-prefer_nhwc": "1"},
            {"-MatMulAddFusion": "off", "-cudnn_conv_algo_search": "HEURISTIC"},
        ),
        silent={"-AttentionFusion": "off"},
        tolerance=5e-3,  # TF32 has ten bits of mantissa
        marks=(pytest.mark.gpu, pytest.mark.skipif(bool(why_no_cuda()), reason=why_no_cuda())),
    ),
    Case(
        "tensorrt",
        "cuda:0",
        routes=(
            {"+builder_optimization_level": "0"},
            {"+builder_optimization_level": "5"},
            {"+tf32": "off"},
            {"+max_aux_streams": "0"},
        ),
        silent={"+sparse_weights": "on"},
        tolerance=5e-3,  # TF32 has ten bits of mantissa
        opaque=True,
        marks=(pytest.mark.tensorrt, pytest.mark.skipif(bool(why_not()), reason=why_not())),
    ),
)


@pytest.fixture(
    params=[pytest.param(case, id=f"{case.name}-{case.device}", marks=case.marks) for case in CASES]
)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@pytest.fixture
def backend(case: Case) -> Backend:
    return open_backend(case.name)


@pytest.fixture(params=SAMPLES, ids=lambda make: make.__name__)
def sample(request: pytest.FixtureRequest) -> Sample:
    made: Sample = request.param()
    return made


class Builder:
    """Builds samples in a folder of its own."""

    def __init__(self, backend: Backend, device: str, folder: Path) -> None:
        self.backend, self.device, self.folder = backend, device, folder
        self.built = 0

    def __call__(self, sample: Sample, route: dict[str, str] | None = None) -> Engine:
        self.built += 1
        model, output = sample.save(self.folder), self.folder / f"{self.built}.engine"
        profiles = (sample.profile,) if sample.profile else ()
        return self.backend.build(BuildOrder(model, route or {}, output, profiles, device=self.device))

    def outputs(self, engine: Engine, sample: Sample) -> list[dict[str, np.ndarray[Any, Any]]]:
        runner = self.backend.load(engine, self.device, {})
        try:
            return [runner.infer(inputs) for inputs in sample.inputs]
        finally:
            runner.close()


@pytest.fixture
def build(backend: Backend, case: Case, tmp_path: Path) -> Iterator[Builder]:
    yield Builder(backend, case.device, tmp_path)
    gc.collect()


def test_an_engine_is_a_file_and_what_is_known_of_it(build: Builder, sample: Sample, case: Case) -> None:
    engine = build(sample)
    content = engine.path.read_bytes()
    assert engine.size == len(content) > 0
    assert engine.digest == hashlib.sha256(content).hexdigest()
    assert engine.identity or case.opaque
    assert canonical.dumps(dict(engine.options))


def test_every_route_computes_what_the_model_says(build: Builder, sample: Sample, case: Case) -> None:
    for route in ({}, *case.routes):
        for inputs, outputs in zip(sample.inputs, build.outputs(build(sample, route), sample), strict=True):
            expected = sample.expected(inputs)
            assert list(outputs) == [value.name for value in sample.model.graph.output]
            for got, wanted in zip(outputs.values(), expected, strict=True):
                assert got.dtype == wanted.dtype
                assert got.shape == wanted.shape
                assert np.abs(got - wanted).max() <= case.tolerance * max(1, np.abs(wanted).max()), route


def test_an_engine_needs_nothing_but_its_file(build: Builder, sample: Sample, tmp_path: Path) -> None:
    engine = build(sample)
    before = build.outputs(engine, sample)
    elsewhere = tmp_path / "mod èle 士" / "an engine"
    elsewhere.parent.mkdir()
    engine.path.rename(elsewhere)
    (tmp_path / f"{sample.name}.onnx").unlink()
    moved = Engine(elsewhere, engine.digest, engine.size, engine.identity, engine.options)
    for one, other in zip(before, build.outputs(moved, sample), strict=True):
        assert all(one[name].tobytes() == other[name].tobytes() for name in one)


def test_outputs_are_the_caller_s_own(build: Builder, sample: Sample) -> None:
    runner = build.backend.load(build(sample), build.device, {})
    first = runner.infer(sample.inputs[0])
    kept = {name: array.copy() for name, array in first.items()}
    for array in runner.infer(sample.inputs[0]).values():
        array.fill(0)
    runner.infer(sample.inputs[-1])
    runner.close()
    assert all(np.array_equal(first[name], kept[name]) for name in kept)
    assert all(array.any() for array in first.values())


def test_a_prepared_call_can_be_made_again_and_again(build: Builder, sample: Sample, case: Case) -> None:
    runner = build.backend.load(build(sample), build.device, {})
    calls = [runner.prepare(inputs) for inputs in sample.inputs]
    for _ in range(3):
        assert [call() for call in calls] == [None] * len(calls)  # type: ignore[func-returns-value]
    outputs = runner.infer(sample.inputs[0])
    runner.close()
    expected = sample.expected(sample.inputs[0])
    got = next(iter(outputs.values()))
    assert np.abs(got - expected[0]).max() <= max(case.tolerance, 1e-4) * max(1, np.abs(expected[0]).max())


def test_two_engines_can_be_loaded_side_by_side(build: Builder, sample: Sample, case: Case) -> None:
    one, other = (
        build.backend.load(build(sample, route), build.device, {}) for route in ({}, case.routes[0])
    )
    calls = [runner.prepare(sample.inputs[0]) for runner in (one, other)]
    for _ in range(3):
        for call in calls:
            call()
    one.close()
    calls[1]()
    assert other.infer(sample.inputs[0])
    other.close()


def test_closing_frees_and_ends(build: Builder, tmp_path: Path) -> None:
    """Sixteen loads of 32 MB, each with a prepared call that is still referred to."""
    weight = np.random.default_rng(0).standard_normal((1024, 8192)).astype(np.float32)
    model = graph([node("MatMul x w -> y")], {"w": weight}, x=(1, 1024), y=(1, 8192))
    inputs = {"x": np.ones((1, 1024), np.float32)}
    engine = build(Sample("large", model, {}, [inputs]))
    calls, resident = [], []
    for _ in range(16):
        runner = build.backend.load(engine, build.device, {})
        calls.append(runner.prepare(inputs))
        calls[-1]()
        runner.close()
        resident.append(psutil.Process().memory_info().rss)
    assert resident[-1] - resident[3] < 4 * weight.nbytes
    with pytest.raises(RuntimeError):
        runner.infer(inputs)
    with pytest.raises(RuntimeError):
        calls[-1]()


def test_routes_have_identities(build: Builder, case: Case) -> None:
    """Equal when built twice or when nothing came of the route; different where something did."""
    sample = mlp()
    default = build(sample)
    if case.opaque and default.identity is None:
        pytest.skip("the engine has layers whose content the library does not show")
    assert build(sample).identity == default.identity
    assert build(sample, case.silent).identity == default.identity
    routes = [{}, *case.routes]
    engines = [build(sample, route) for route in routes]
    assert len({engine.identity for engine in engines}) == len(routes)
    for engine, route in zip(engines, routes, strict=True):
        assert build(sample, route).identity == engine.identity


def test_routes_that_differ_only_at_load_share_a_build(build: Builder, sample: Sample, case: Case) -> None:
    """What a backend makes of a shared build is what building the whole route gives."""
    if not hasattr(build.backend, "shaping"):
        pytest.skip("this backend's engines are files and nothing beside")
    shared = 0
    for route in ({}, *case.routes, {name: value for one in case.routes for name, value in one.items()}):
        shape = build.backend.shaping(route)
        assert shape.items() <= route.items()
        shared += len(shape) < len(route)
        whole, settled = build(sample, route), build.backend.settled(build(sample, shape), route)
        assert (settled.identity, settled.options) == (whole.identity, whole.options)
        for one, other in zip(build.outputs(whole, sample), build.outputs(settled, sample), strict=True):
            assert all(one[name].tobytes() == other[name].tobytes() for name in one)
    assert shared


def test_a_route_is_checked_against_the_database(build: Builder, case: Case) -> None:
    database = build.backend.knobs(case.device)
    assert isinstance(database, KnobDatabase) and len(database)
    knob = next(knob for knob in database.values() if knob.bounded)
    for route in ({knob.name: "no such value"}, {"-no_such_knob": "on"}):
        with pytest.raises(BadInput):
            build(mlp(), route)
    assert database.route(case.routes[0]).as_dict() == case.routes[0]


BAD = {
    "garbage": b"this is not a model at all",
    "empty": b"",
    "cut short": mlp().model.SerializeToString()[:-100],
    "no such input": graph([node("Relu z -> y")]).SerializeToString(),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_model_is_refused_and_leaves_nothing(kind: str, build: Builder, tmp_path: Path) -> None:
    model, output = tmp_path / "bad.onnx", tmp_path / "engine"
    model.write_bytes(BAD[kind])
    output.write_bytes(b"an engine of before")
    with pytest.raises(BuildError) as refused:
        build.backend.build(BuildOrder(model, {}, output, device=build.device))
    assert len(str(refused.value)) > 10
    assert not output.exists()
    with pytest.raises(BuildError):
        build.backend.build(BuildOrder(tmp_path / "none.onnx", {}, output, device=build.device))
    assert build.outputs(build(mlp()), mlp())


def test_a_spoilt_engine_is_not_loaded(build: Builder) -> None:
    engine = build(mlp())
    engine.path.write_bytes(engine.path.read_bytes()[: engine.size // 2])
    with pytest.raises(Exception, match=r"."):
        build.backend.load(engine, build.device, {})


def test_an_engine_is_for_one_device(build: Builder) -> None:
    engine = build(mlp())
    with pytest.raises(BadInput):
        build.backend.load(engine, "cpu:other", {})
    with pytest.raises(BadInput):
        build.backend.knobs("abacus")


def test_wrong_inputs_are_named(build: Builder) -> None:
    runner = build.backend.load(build(mlp()), build.device, {})
    for inputs in ({}, {"x": np.ones((4, 16))}, {"x": np.ones((4, 16), np.float32), "z": np.ones(1)}):
        with pytest.raises(BadInput, match="input"):
            runner.infer(inputs)
    runner.close()


def test_versions_are_text(backend: Backend, case: Case) -> None:
    versions = backend.versions(case.device)
    assert versions
    assert all(isinstance(value, str) and value for pair in versions.items() for value in pair)


def test_the_models_are_valid(sample: Sample) -> None:
    onnx.checker.check_model(sample.model, full_check=True)
