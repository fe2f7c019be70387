"""What a Prefect user sees: task states, run names, artifacts; and that refresh_cache works as usual."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from routetune.data import folder
from routetune.tasks.report.progress import Snapshot, listening
from routetune.tasks.retune import TargetsFailed
from routetune.tasks.store import open_store
from routetune.tasks.subject import open_subject, today

from tests.quick import quick


def seen(routes: str, name: str = "Seen_by.Prefect", model: str = "digits_cnn.onnx") -> str:
    return quick(name, model, routes, shapes={"x": "8x1x8x8"})


@pytest.fixture
def target(tmp_path: Path) -> Path:
    shutil.copy(folder() / "models/digits_cnn.onnx", tmp_path)
    path = tmp_path / "seen.toml"
    path.write_text(seen("-enable_mem_pattern=[on|off] -MatMulAddFusion=[on|off]"))
    return path


class Recorder:
    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []

    def update(self, snapshot: Snapshot) -> None:
        self.snapshots.append(snapshot)


def tune(target: Path, store: Path) -> dict[str, Any]:
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
    from routetune.flows.tune import tune as flow

    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        summary: dict[str, Any] = flow(str(target), str(store), force=True)
    return summary


def task_runs() -> dict[str, list[str]]:
    """State names of the latest flow run's tasks, by the first words of the task run's name."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.client.schemas.sorting import FlowRunSort

    with get_client(sync_client=True) as client:
        [run] = client.read_flow_runs(limit=1, sort=FlowRunSort.START_TIME_DESC)
        label = today("onnxruntime", "cpu").label
        assert run.name == f"tune Seen_by.Prefect on {label}"
        assert {"target:Seen_by.Prefect", f"onnxruntime:{version('onnxruntime')}"} <= set(run.tags)
        assert any(tag.startswith("cpu:") for tag in run.tags)
        found = client.read_task_runs(flow_run_filter=FlowRunFilter(id={"any_": [run.id]}))
    states: dict[str, list[str]] = {}
    for one in found:
        states.setdefault(one.name.partition(":")[0], []).append(one.state_name or "")
    return states


def artifact(key: str) -> Any:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import ArtifactFilter

    with get_client(sync_client=True) as client:
        [found] = client.read_artifacts(artifact_filter=ArtifactFilter(key={"any_": [key]}), limit=1)
    return found.data


def materialisations(url: str) -> list[dict[str, Any]]:
    import httpx

    name = "prefect.asset.materialization.succeeded"
    answer = httpx.post(f"{url}/events/filter", json={"filter": {"event": {"name": [name]}}}, timeout=30)
    found: list[dict[str, Any]] = answer.raise_for_status().json()["events"]
    return found


def test_a_run_as_prefect_shows_it(target: Path, store_folder: Path, prefect_url: str) -> None:
    recorder = Recorder()
    with listening(recorder):
        summary = tune(target, store_folder)
    names = {"make references", "build engines", "check accuracy", "time engines", "select winner", "publish"}
    assert names <= _eventually(task_runs, lambda found: names <= set(found)).keys()
    assert summary["decision"]["reason"] in artifact("summary-seen-by-prefect")
    assert "-enable_mem_pattern=off" in str(artifact("trials-seen-by-prefect"))

    steps = json.loads(artifact("frontier-seen-by-prefect"))
    loosest = max(steps, key=lambda step: step["eligible"])
    assert loosest["eligible"] == summary["counts"]["eligible"] and loosest["default_eligible"]
    assert str(artifact("frontier-picture-seen-by-prefect")).startswith("data:image/png;base64,")

    subject = open_subject(target)
    [engine] = _eventually(
        lambda: [
            one
            for one in materialisations(prefect_url)
            if one["resource"]["prefect.resource.id"] == f"routetune://Seen_by.Prefect/{subject.key}"
        ],
        len,
    )
    published = open_store(store_folder).publications.current("Seen_by.Prefect", subject.key)
    assert published is not None and engine["payload"]["engine"] == published.reference.engine
    assert engine["resource"]["prefect.asset.url"] == published.engine.as_uri()
    made_from = [one["prefect.resource.id"] for one in engine["related"]]
    assert f"routetune://models/{subject.model.digest[:16]}" in made_from
    assert any(one.startswith("routetune://references/") for one in made_from)

    stages = [snapshot.stage for snapshot in recorder.snapshots]
    assert stages[0] == "reference outputs" and stages[-1] == "duel of the finalists"
    done = [snapshot.done for snapshot in recorder.snapshots]
    assert done == sorted(done) and done[-1] == summary["counts"]["trials"]

    tune(target, store_folder)
    cached = {"make references", "build engines", "check accuracy", "time engines"}
    states = _eventually(task_runs, lambda found: cached <= set(found))
    assert all("Cached" in states[name] for name in cached), states
    # The control is timed against nothing, so its batch asks the store for nothing; finalists are always
    # timed afresh.
    assert "Completed" not in states["build engines"] + states["check accuracy"]
    assert set(states["select winner"]) == {"Completed"}


def test_refresh_cache_makes_everything_anew(target: Path, store_folder: Path, prefect_url: str) -> None:
    from prefect.settings import PREFECT_TASKS_REFRESH_CACHE, temporary_settings

    first = tune(target, store_folder)
    with temporary_settings({PREFECT_TASKS_REFRESH_CACHE: True}):
        again = tune(target, store_folder)
    assert again["counts"]["builds"] == first["counts"]["builds"] > 1
    assert again["counts"]["from_store"] == 0


def test_a_retune_in_which_targets_failed_is_a_failed_run_that_names_them(
    target: Path, store_folder: Path, prefect_url: str
) -> None:
    """Its state has the usual name, which automations look for; the report is there all the same."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
    from routetune.flows.retune import retune
    from routetune.flows.run import run_retune

    places = target.parent / "of_which_some_fail"
    places.mkdir()
    (places / "bad.toml").write_text(seen("-no_such_knob=[on|off]", "bad", "../digits_cnn.onnx"))
    (places / "broken.toml").write_text("schema = 1\nmodel = 3\n")
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        with pytest.raises(TargetsFailed) as failed:
            retune(str(places), str(store_folder))
        report = run_retune([places], store_folder, force=True)
    told = "failed: bad (1 of 2 targets); refused: broken (1 of 2 targets)"
    assert str(failed.value) == told
    for one in (failed.value.report, report):
        assert one["counts"] == {"failed": 1, "refused": 1} and one["exit_code"] == 1
    assert "## Failed" in artifact("retune-of-which-some-fail")
    named = FlowRunFilter(name=FlowRunFilterName(any_=[f"retune {places}"]))
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(flow_run_filter=named)
    states = [run.state for run in runs if run.state]
    assert [(one.type.value, one.name, one.message) for one in states] == [("FAILED", "Failed", told)] * 2


def _eventually(ask: Any, enough: Any) -> Any:
    """The server records task runs a moment after they ended."""
    import time

    deadline = time.monotonic() + 15
    while not enough(found := ask()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found
