"""Publishing by another ε: a choice among what a real tune recorded, without a build."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from routetune.data import folder
from routetune.tasks.accuracy import check_accuracy
from routetune.tasks.bench import open_bench
from routetune.tasks.build import build_engines
from routetune.tasks.collect import collect
from routetune.tasks.errors import BadInput, NeedsBuild, NoEligibleRoute, RoutetuneError
from routetune.tasks.expand import open_campaign
from routetune.tasks.publish import publish_winner
from routetune.tasks.recall import recall_trials
from routetune.tasks.reference import make_references
from routetune.tasks.report import document as documents
from routetune.tasks.report.answers import shown
from routetune.tasks.report.staircase import frontier
from routetune.tasks.select import contenders_of, select_winner
from routetune.tasks.status import freshness
from routetune.tasks.store import Store, open_store
from routetune.tasks.store.manifests import Publication
from routetune.tasks.subject import judged_by
from routetune.tasks.targets.inputs import input_sets
from routetune.tasks.timing import time_engines

from tests.quick import quick

# Prepacking off adds up in another order: its loss is some 2e-5, the others' is some 4e-6.


def write_target(place: Path) -> Path:
    for name in ("models/digits_cnn.onnx", "inputs/digits.npz"):
        shutil.copy(folder() / name, place)
    path = place / "dial.toml"
    path.write_text(dial(tolerance=1e-5))
    return path


def dial(**accuracy: float) -> str:
    return quick(
        "dial",
        "digits_cnn.onnx",
        "-session.disable_prepacking=[0|1] -ConvBNFusion=[on|off]",
        shapes={"x": "32x1x8x8"},
        reference={"inputs": "digits.npz", "labels": "y"},
        accuracy=accuracy,
        timing={"finalists": 3},
    )


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which the target was tuned for real; each test has a copy."""
    place = tmp_path_factory.mktemp("tuned")
    tune(write_target(place), open_store(place / "store"))
    return place / "store"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_target(tmp_path)


@pytest.fixture
def store(store_folder: Path, tuned: Path) -> Store:
    shutil.copytree(tuned, store_folder)
    return open_store(store_folder)


def current(store: Store) -> Publication:
    (key,) = store.publications.environments("dial")
    found = store.publications.current("dial", key)
    assert found is not None
    return found


def tune(path: Path, store: Store) -> Publication:
    """The flow `tune`, stage by stage, without Prefect."""
    with open_bench(path, store) as bench:
        make_references.fn(bench, input_sets(bench.subject.target, bench.subject.model))  # type: ignore[attr-defined]
        search = open_campaign(bench)
        while routes := search.ask():
            trials = build_engines.fn(bench, routes)  # type: ignore[attr-defined]
            trials = check_accuracy.fn(bench, trials)  # type: ignore[attr-defined]
            search.tell(time_engines.fn(bench, trials))  # type: ignore[attr-defined]
        selection = select_winner.fn(bench, list(bench.trials.values()))  # type: ignore[attr-defined]
        found: Publication = publish_winner.fn(bench, selection)  # type: ignore[attr-defined]
        return found


def publish(path: Path, store: Store, epsilon: float, metric: str | None = None) -> Publication:
    """The flow `publish`, likewise."""
    with open_bench(path, store, amend=partial(judged_by, tolerance=epsilon, metric=metric)) as bench:
        make_references.fn(bench, input_sets(bench.subject.target, bench.subject.model))  # type: ignore[attr-defined]
        trials = recall_trials.fn(bench, None)  # type: ignore[attr-defined]
        selection = select_winner.fn(bench, trials)  # type: ignore[attr-defined]
        found: Publication = publish_winner.fn(bench, selection)  # type: ignore[attr-defined]
        return found


def builds(store: Store) -> set[Path]:
    return {entry.path for entry in store.entries if entry.key["stage"] == "build"}


@pytest.mark.parametrize(("speed", "lifted"), [(0.9, True), (0.1, False)])
def test_what_was_given_up_beside_a_route_that_may_not_win_now_is_in_the_duel(
    target: Path, store: Store, speed: float, lifted: bool
) -> None:
    """Its speed is told: no engine of this model is three times slower than another."""
    run = store.runs.list("dial")[-1].id
    rows = store.records.read(run).to_pylist()
    slow = next(row for row in rows if row["route"] and not row["alias_of"] and row["outcome"] == "eligible")
    given_up = {"abandoned": True, "speed": speed, "low": 0.0, "high": float("inf")}
    store.records.append([slow | given_up])
    with open_bench(target, store) as bench:
        make_references.fn(bench, input_sets(bench.subject.target, bench.subject.model))  # type: ignore[attr-defined]
        trials = recall_trials.fn(bench, None)  # type: ignore[attr-defined]
        found = next(trial for trial in trials if str(trial.route) == slow["route"])
        assert found.abandoned is not lifted
        assert bench.control is not None
        named = [str(trial.route) for trial in contenders_of(bench, bench.control, trials)]
        assert (slow["route"] in named) is lifted


def test_another_tolerance_is_a_choice_and_not_a_build(target: Path, store: Store) -> None:
    first = current(store)
    stairs = frontier(target, store, None, [1e-5, 1e-3], None)
    strict, wide = (one["eligible"] for one in stairs["answers"])
    assert 0 < strict < wide == 4 and first.manifest["trials"] == 4
    for path in store.root.rglob("*"):
        os.utime(path, (1e9, 1e9))
    collected = collect(store.root, max_size=0)
    assert collected["collected"]["entries"]["files"] > 0, "what the choice needs is pinned, and only that"
    before = builds(store)
    second = publish(target, store, 1e-3)
    assert builds(store) == before
    manifest = second.manifest
    assert second.reference.generation == first.reference.generation + 1
    assert manifest["trials"] == 4 and manifest["accuracy"]["tolerance"] == 1e-3
    assert not [one for one in manifest["excluded"] if one["outcome"] == "inaccurate"]
    state = freshness(target, store)
    assert state.state == "reselect"
    assert [str(change) for change in state.changes] == ["target.accuracy.tolerance: 0.001 -> 1e-05"]
    told = "published at ε = 0.001 of lInf, and the target file has 1e-05 of lInf"
    assert told in state.detail and told in shown(target, store)["detail"]
    assert told in documents.doubts(documents.open_document(target, store, None))[-1]
    lines = documents.reproduce(documents.open_document(target, store, None))
    assert f"routetune publish {target} --epsilon 0.001 --metric lInf" in lines
    target.write_text(dial(tolerance=1e-3))
    state = freshness(target, store)
    assert (state.state, state.detail) == ("fresh", ""), "written into the file, it is what was published"
    assert documents.doubts(documents.open_document(target, store, None)) == []
    rows = store.records.read(run=manifest["run"]).to_pylist()
    assert len(rows) == 4 and all(row["accepted"] and row["cached"] for row in rows)


@pytest.mark.slow
def test_another_metric_is_judged_from_the_same_losses(target: Path, store: Store) -> None:
    found = publish(target, store, 1e-9, "l2").manifest
    assert found["accuracy"]["metric"] == "l2" and found["trials"] == 4
    with pytest.raises(BadInput, match="topk"):
        publish(target, store, 0.5, "topk")
    with pytest.raises(BadInput, match="l7"):
        publish(target, store, 0.5, "l7")
    assert store.publications.verify("dial", found["environment_key"]) == []


def test_nothing_is_guessed_where_an_engine_or_a_figure_is_missing(target: Path, store: Store) -> None:
    first = current(store)
    with pytest.raises(NoEligibleRoute, match="bit-identical"):
        publish(target, store, 0.0)
    rows = store.records.read(run=first.manifest["run"]).to_pylist()
    (default,) = (row for row in rows if row["route"] == "")
    blob = store.blobs.path(default["engine"])
    blob.rename(blob.with_suffix(".away"))
    with pytest.raises(NeedsBuild, match="default route may win") as gone, pytest.warns():
        publish(target, store, 1e-3)
    assert gone.value.exit_code == 1 and default["engine"] in str(gone.value)
    target.write_text(dial(tolerance=1e-5, atol=1e-3))
    with pytest.raises(RoutetuneError, match="atol"):
        publish(target, store, 1e-3)
    assert current(store).reference == first.reference


def test_where_trials_are_lost_the_advice_leads_out_of_it(target: Path, store: Store) -> None:
    """What is published is fresh then, and a plain tune would do nothing; the run of today has no trials."""
    shutil.rmtree(store.root / "records")
    with pytest.raises(BadInput, match=r"first, with --force where that calls it fresh$"):
        publish(target, store, 0.1)


@pytest.mark.slow
def test_the_command_publishes(
    target: Path, store: Store, routetune: Callable[..., Any], prefect_url: str
) -> None:
    nothing = routetune("publish", target, "--epsilon", "1", ROUTETUNE_STORE=str(target.parent / "none"))
    assert nothing.returncode == 2 and "routetune tune" in nothing.stderr
    process = routetune("publish", target, "--epsilon", "inf", PREFECT_API_URL=prefect_url)
    assert process.returncode == 0, process.stderr
    assert "0 builds" in process.stdout and "the accuracy check is off" in process.stdout
    assert "published at ε = inf" in process.stdout
    assert routetune("status", target, "--check").returncode == 3
    none = routetune("publish", target, "--epsilon", "0", PREFECT_API_URL=prefect_url)
    assert none.returncode == 4 and "Traceback" not in none.stderr
    assert routetune("tune", target, PREFECT_API_URL=prefect_url).returncode == 0
    assert routetune("status", target, "--check").returncode == 0
