"""Runs of two hosts that share a bucket, stage by stage: what one tells the other, and when."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from routetune.tasks.accuracy import check_accuracy
from routetune.tasks.bench import open_bench
from routetune.tasks.build import build_engines
from routetune.tasks.engines.worker import StepFailed
from routetune.tasks.expand import open_campaign
from routetune.tasks.publish import publish_winner
from routetune.tasks.reference import make_references
from routetune.tasks.select import select_winner
from routetune.tasks.store import Store, open_store
from routetune.tasks.targets.inputs import input_sets
from routetune.tasks.timing import time_engines
from routetune.tasks.trial import Outcome

from tests.flows.test_stages import tune
from tests.quick import quick


@pytest.fixture
def target(tmp_path: Path) -> Path:
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [64])],
        [numpy_helper.from_array(np.arange(64, dtype=np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "m.onnx")
    path = tmp_path / "plain.toml"
    path.write_text(quick("plain", "m.onnx", "-enable_mem_pattern=[on|off]"))
    return path


@pytest.fixture
def open_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Store]:
    """The shared store as a host opens it; from then on we are that host."""

    def call(host: str) -> Store:
        for name in ("XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
            folder = tmp_path / host / name
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            monkeypatch.setenv(name, str(folder))
        return open_store(f"memory://{tmp_path.name}/store")

    return call


def die() -> tuple[dict[str, object], list[str]]:
    raise StepFailed(Outcome.CRASHED, "it died by signal 11")


def test_a_crash_is_told_to_others_once_the_run_has_ended_well(
    target: Path, open_on: Callable[[str], Store]
) -> None:
    with open_bench(target, open_on("one")) as bench:
        key = bench.key("build", code="0" * 64, route="-a=on")
        value = bench.answer(key, die).value
        assert value["failure"]["outcome"] == "crashed"
        assert open_on("other").entries.get(key) is None
        open_on("one")
        bench.finish({})
    found = open_on("other").entries.get(key)
    assert found is not None and found.value == value


def test_a_crash_that_was_the_machines_doing_is_told_to_nobody(
    target: Path, open_on: Callable[[str], Store]
) -> None:
    with open_bench(target, open_on("one")) as bench:
        key = bench.key("build", code="0" * 64, route="-a=on")
        bench.answer(key, die)
        bench._disown_deaths()
        bench.finish({})
    assert open_on("other").entries.get(key) is None
    assert open_on("one").entries.get(key) is None


@pytest.mark.slow
@pytest.mark.parametrize("met", [False, True])
def test_whoever_had_the_same_to_tune_has_tuned_it_unless_the_winner_has_met_that(
    target: Path, open_on: Callable[[str], Store], met: bool
) -> None:
    with open_bench(target, open_on("one")) as bench:
        make_references.fn(bench, input_sets(bench.subject.target, bench.subject.model))  # type: ignore[attr-defined]
        search = open_campaign(bench)
        while routes := search.ask():
            trials = check_accuracy.fn(bench, build_engines.fn(bench, routes))  # type: ignore[attr-defined]
            search.tell(time_engines.fn(bench, trials))  # type: ignore[attr-defined]
        selection = select_winner.fn(bench, list(bench.trials.values()))  # type: ignore[attr-defined]
        theirs, _ = tune(target, open_on("other"))
        open_on("one")
        bench.met = theirs.reference.generation if met else 0
        if met:
            published = publish_winner.fn(bench, selection)  # type: ignore[attr-defined]
        else:
            with pytest.warns(UserWarning, match="was published by another host meanwhile: it stays"):
                published = publish_winner.fn(bench, selection)  # type: ignore[attr-defined]
        assert published.reference.generation == (2 if met else 1)
        assert (published.manifest["run"] == theirs.manifest["run"]) != met
    history = open_on("third").publications.history("plain")
    assert [past.reference.generation for past in history] == ([2, 1] if met else [1])
