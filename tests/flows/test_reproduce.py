"""Reproducing: the published bytes are judged and timed again, and a claim that is not true is found out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from routetune.tasks.accuracy import check_accuracy
from routetune.tasks.bench import open_bench
from routetune.tasks.reference import make_references
from routetune.tasks.reproduce import comparison, duel_again, recall
from routetune.tasks.status import freshness
from routetune.tasks.store import Store, open_store
from routetune.tasks.subject import open_subject
from routetune.tasks.targets.inputs import input_sets

from tests.flows.test_challenge import FAST, built, rounding, rounding_target, tune

ROUTE = {"-session.enable_quant_qdq_cleanup": "1"}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    onnx.save(rounding(), tmp_path / "rounding.onnx")
    path = tmp_path / "rounding.toml"
    path.write_text(rounding_target(FAST))
    return path


@pytest.fixture
def store(store_folder: Path) -> Store:
    return open_store(store_folder)


Claim = Callable[..., None]


@pytest.fixture
def claim(target: Path, store: Store) -> Claim:
    """Publish an engine with a speed that somebody claims for it."""

    def call(route: dict[str, str], ratio: float, model: onnx.ModelProto | None = None) -> None:
        subject = open_subject(target)
        engine = built(target.parent, route, model)
        manifest = {
            "bound_to": subject.bound_to,
            "backend": "onnxruntime",
            "device": "cpu",
            "route": " ".join(f"{name}={value}" for name, value in route.items()),
            "control": "",
            "options": engine.options,
            "identity": engine.identity,
            "accuracy": {"metric": "lInf", "tolerance": 1e-3, "loss": 0.0, "verdict": "it is equal"},
            "speed": {"ratio": ratio, "low": 0.95 * ratio, "high": 1.05 * ratio, "loads": 8},
        }
        digest = store.blobs.put_file(engine.path)
        store.publications.publish("rounding", subject.key, digest, manifest)

    return call


def reproduce(path: Path, store: Store) -> dict[str, Any]:
    """The flow's body without Prefect."""
    run: Any = lambda stage, *given: stage.fn(bench, *given)  # noqa: E731
    with open_bench(path, store, refresh=True, purpose="reproduce") as bench:
        published, trial = recall(bench)
        run(make_references, input_sets(bench.subject.target, bench.subject.model))
        [trial] = run(check_accuracy, [trial])
        assert "accuracy" not in trial.cached, "it is made anew, whatever the store holds"
        return comparison(bench, published, trial, run(duel_again, (published, trial)))


@pytest.mark.slow
def test_a_true_claim_holds_and_nothing_is_published(target: Path, store: Store) -> None:
    first, _ = tune(target, store)
    found = reproduce(target, store)
    assert found["holds"] and found["accuracy"]["holds"] and found["speed"]["holds"]
    assert found["engine_digest"] == first.reference.engine and found["stale"] == []
    assert found["speed"]["old"] == first.manifest["speed"]
    assert found["speed"]["new"]["low"] > 1.3 and found["speed"]["new"]["loads"] >= 3
    assert found["accuracy"]["new"]["loss"] == found["accuracy"]["old"]["loss"]
    assert store.publications.current("rounding", first.manifest["environment_key"]) == first
    assert freshness(target, store).state == "fresh"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("route", "ratio", "holds", "words"),
    [
        (ROUTE, 1.4, True, "reaches the published interval"),
        (ROUTE, 400.0, True, "is below the published interval, but clears"),
        ({"-enable_mem_pattern": "off"}, 2.5, False, "does not clear 1 + min_gain = 1.3"),
    ],
)
def test_claims_of_speed(
    target: Path, store: Store, claim: Claim, route: dict[str, str], ratio: float, holds: bool, words: str
) -> None:
    claim(route, ratio)
    found = reproduce(target, store)
    assert found["holds"] is found["speed"]["holds"] is holds and found["accuracy"]["holds"]
    assert words in found["speed"]["reason"]


@pytest.mark.slow
def test_an_engine_that_computes_something_else_and_the_command_line(
    target: Path, store: Store, claim: Claim, routetune: Any, prefect_url: str
) -> None:
    other = rounding()
    other.graph.node[-1].op_type = "Sub"
    claim(ROUTE, 4.0, other)
    process = routetune("reproduce", target, "--json", PREFECT_API_URL=prefect_url)
    assert process.returncode == 1, process.stderr
    found = json.loads(process.stdout)
    assert not found["holds"] and not found["accuracy"]["holds"]
    assert found["accuracy"]["new"]["loss"] > 1e-3 and "lInf" in found["accuracy"]["reason"]
    claim({}, 1.0)
    process = routetune("reproduce", target, PREFECT_API_URL=prefect_url)
    assert process.returncode == 0, process.stderr
    assert "default route: holds" in process.stdout and "its own control" in process.stdout
    process = routetune("reproduce", target, "--store", target.parent / "other")
    assert process.returncode == 2 and "is not published" in process.stderr
