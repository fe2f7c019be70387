"""The worker's timing steps on real engines: latency and throughput, and who loads how many sessions."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from routetune.tasks.arrays import load_arrays, save_arrays
from routetune.tasks.engines import steps as engine_steps
from routetune.tasks.engines.base import Engine
from routetune.tasks.verdicts import steps
from routetune.tasks.verdicts.duel import duel_figures, log_ratios
from routetune.tasks.verdicts.rounds import estimate_from, figures_from
from routetune.tasks.verdicts.samplers import Serial, Streams

from tests.engines.small_models import cnn

QUICK = {"seconds": 0.2, "warm_up_seconds": 0.02}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """An engine with its place, and the file of its inputs."""
    place = tmp_path_factory.mktemp("timing")
    sample = cnn()
    order = {
        "model": str(sample.save(place)),
        "route": {"-intra_op_num_threads": "1"},
        "output": str(place / "engine.onnx"),
    }
    engine = engine_steps.build("onnxruntime", order)
    save_arrays(place / "inputs", sample.inputs[0])
    return {**engine, "path": str(place / "engine.onnx")}, str(place / "inputs")


def without_neighbours(measured: Callable[[], Any], log_ratios_of: Callable[[Any], list[float]]) -> Any:
    """What was measured when nobody took the cores for just one side: a fault of ours is there every time."""
    for _ in range(5):
        found = measured()
        if all(abs(ratio) < 0.7 for ratio in log_ratios_of(found)):
            return found
    raise AssertionError(f"an engine beside itself has {log_ratios_of(found)}, five times")


@pytest.mark.parametrize("streams", [1, 2])
def test_an_engine_beside_itself_is_as_fast(built: tuple[dict[str, Any], str], streams: int) -> None:
    engine, inputs = built
    settings = QUICK | {"streams": streams}
    sides = engine, engine["path"], engine, engine["path"]
    raw = without_neighbours(
        lambda: steps.time("onnxruntime", *sides, "cpu", {}, inputs, settings),
        lambda raw: [math.log(estimate_from(raw).ratio)],
    )
    assert estimate_from(raw).n >= 6
    assert raw["settings"]["streams"] == streams
    # A chunk of streams gives one sample; of single calls, each call is one.
    each = raw["calls"] if streams == 1 else 1
    for one in raw["rounds"]:  # AB where threads of a busy machine rest late, else ABBA
        assert len(one["candidate_ns"]) == one["order"].count("A") * each
    assert figures_from(raw)["candidate"]["p50"] > 1000
    assert "device_p50" not in figures_from(raw)["candidate"]  # no events on a CPU


@pytest.mark.parametrize("first", ["candidate", "control"])
def test_the_side_that_is_asked_for_is_loaded_first_and_keeps_its_name(
    built: tuple[dict[str, Any], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    engine, inputs = built
    paths = {side: str(tmp_path / side) for side in ("candidate", "control")}
    for path in paths.values():
        shutil.copy(engine["path"], path)
    loads: list[str] = []
    load = steps.loaded

    def noted(backend: str, opened: Engine, *rest: Any) -> Any:
        loads.append(opened.path.name)
        return load(backend, opened, *rest)

    monkeypatch.setattr(steps, "loaded", noted)
    sides = [part for path in paths.values() for part in (engine, path)]
    settings = QUICK | {"max_rounds": 2, "window_seconds": 0.0}
    raw = steps.time("onnxruntime", *sides, "cpu", {}, inputs, settings, first)
    assert loads == [first, *(paths.keys() - {first})]
    assert raw["loaded_first"] == first and len(raw["rounds"]) == 2


@pytest.mark.parametrize("streams", [1, 3])
def test_a_duel_load_of_real_engines(built: tuple[dict[str, Any], str], streams: int) -> None:
    engine, inputs = built
    engines = dict.fromkeys(("-a=1", "(control)"), (engine, engine["path"]))
    duelling = {"seconds": 0.1, "streams": streams}
    loads = without_neighbours(
        lambda: [steps.duel("onnxruntime", engines, "cpu", {}, inputs, load, duelling) for load in range(2)],
        lambda loads: log_ratios(loads, "-a=1", "(control)"),
    )
    assert [list(load["samples"]) for load in loads] == [["-a=1", "(control)"], ["(control)", "-a=1"]]
    assert duel_figures(loads)["times"]["-a=1"]["calls"] >= 4


@pytest.mark.parametrize(("concurrent", "loaded"), [(True, 1), (False, 3)])
def test_streams_share_an_engine_where_its_backend_allows(
    built: tuple[dict[str, Any], str], concurrent: bool, loaded: int
) -> None:
    engine, inputs = built
    runners: list[Any] = []

    @contextmanager
    def load() -> Iterator[Any]:
        opened = engine_steps.engine_from(engine["path"], engine)
        with engine_steps.loaded("onnxruntime", opened, "cpu", {}) as runner:
            runner.concurrent = concurrent  # type: ignore[attr-defined]
            runners.append(runner)
            yield runner

    arrays = load_arrays(Path(inputs))
    with ExitStack() as stack:
        sampler = steps.sampler(stack, load, arrays, streams=3)
        assert isinstance(sampler, Streams) and len(sampler.sample(12)) == 1
        assert isinstance(steps.sampler(stack, load, arrays), Serial)
    assert len(runners) == loaded + 1
