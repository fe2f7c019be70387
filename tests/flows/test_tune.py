"""The flow as a user meets it: tune, tune again, change something, kill it, break the model."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from routetune.data import folder
from routetune.tasks.store import open_store

from tests.quick import quick

ROUTES = "-graph_optimization_level=[disabled|all] -session.disable_prepacking=[0|1]"


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., Path]:
    """A target file over the sample CNN, with its model and inputs beside it."""
    for name in ("models/digits_cnn.onnx", "inputs/digits.npz"):
        shutil.copy(folder() / name, tmp_path)

    def write(
        tolerance: Any = 1e-3, routes: str = ROUTES, algorithm: str = "full", seconds: float = 0.1
    ) -> Path:
        path = tmp_path / "small.toml"
        text = quick(
            "small",
            "digits_cnn.onnx",
            routes,
            shapes={"x": {"min": "1x1x8x8", "opt": "32x1x8x8", "max": "32x1x8x8"}},
            reference={"inputs": "digits.npz", "labels": "y"},
            accuracy={"tolerance": tolerance},
            search={"algorithm": algorithm},
            # A gain that no noise makes up: of one load each, luck beats what is published now and then.
            timing={"seconds": seconds, "width": 0.001, "min_gain": 0.5},
        )
        path.write_text(text)
        return path

    return write


def answer(process: subprocess.CompletedProcess[str], code: int = 0) -> dict[str, Any]:
    assert process.returncode == code, process.stderr
    found: dict[str, Any] = json.loads(process.stdout)
    return found


def test_from_target_to_publication_and_again(
    small: Callable[..., Path], routetune: Any, prefect_url: str, store_folder: Path
) -> None:
    target = small()
    first = answer(routetune("tune", target, "--json", PREFECT_API_URL=prefect_url))
    assert first["state"] == "tuned"
    assert first["counts"]["trials"] == 4
    assert first["counts"]["builds"] == 2  # what is not packed at load is built alike
    assert Path(first["engine"]).exists()
    routes = {trial["route"] for trial in first["trials"]}
    assert "" in routes and "-graph_optimization_level=disabled" in routes
    assert first["objective"] == {"of": "latency", "streams": 1}
    assert first["times"]["control"]["p50"] <= first["times"]["control"]["p99"]
    assert all(isinstance(remark, str) for remark in first["remarks"])
    assert sum(trial["times"] is not None for trial in first["trials"]) >= 2

    again = answer(routetune("tune", target, "--json"))
    assert again["note"] == "fresh, nothing to do"
    assert again["counts"]["builds"] == 0
    assert again["engine_digest"] == first["engine_digest"]

    state = answer(routetune("status", target, "--json", "--check"))
    assert [one["state"] for one in state["targets"]] == ["fresh"]
    assert answer(routetune("verify", target, "--json"))["problems"] == []
    assert answer(routetune("show", target, "--json"))["route"] == first["route"]

    forced = answer(routetune("tune", target, "--force", "--json", PREFECT_API_URL=prefect_url))
    assert forced["counts"]["builds"] == 0
    assert forced["state"] == "kept" and forced["generation"] == first["generation"]
    assert f"(generation {first['generation']}, " in forced["note"] and "stays" in forced["note"]

    small(tolerance=2e-3)
    [moved] = answer(routetune("status", target, "--json", "--check"), code=3)["targets"]
    assert moved["state"] == "reselect"
    assert [change["field"] for change in moved["changes"]] == ["target.accuracy.tolerance"]
    chosen = answer(routetune("tune", target, "--json", PREFECT_API_URL=prefect_url))
    assert chosen["state"] == "tuned" and chosen["generation"] == first["generation"] + 1
    assert chosen["counts"]["builds"] == 0
    back = answer(routetune("rollback", target, "--json"))
    assert back["generation"] == first["generation"]
    assert "no earlier" in routetune("rollback", target).stderr
    small()

    engine = Path(back["engine"])
    engine.chmod(0o600)
    engine.write_bytes(engine.read_bytes()[:-1] + b"?")
    assert routetune("verify", target).returncode == 1
    healed = answer(routetune("tune", target, "--json", PREFECT_API_URL=prefect_url))
    assert healed["state"] == "tuned" and healed["counts"]["builds"] == 0
    assert answer(routetune("status", target, "--json", "--check"))["targets"][0]["state"] == "fresh"


def test_an_impossible_tolerance_ends_with_4_and_publishes_nothing(
    small: Callable[..., Path], routetune: Any, prefect_url: str
) -> None:
    # Level all folds the batch norms, so its bits differ from the reference; level disabled's do not, but
    # it is not among these routes.
    target = small(tolerance=0, routes="-session.disable_prepacking=[0|1]")
    process = routetune("tune", target, PREFECT_API_URL=prefect_url)
    assert process.returncode == 4, process.stderr
    assert "none of the 2 routes tried is eligible" in process.stderr
    assert "-session.disable_prepacking=1" in process.stdout, "each route with its reason"
    assert "Traceback" not in process.stderr
    refused = answer(routetune("tune", target, "--json", PREFECT_API_URL=prefect_url), code=4)
    assert {one["outcome"] for one in refused["excluded"]} == {"inaccurate"} and refused["error"]
    state = answer(routetune("status", target, "--json"))["targets"][0]
    assert state["state"] == "failed"


def test_a_killed_run_goes_on_where_it_was(
    small: Callable[..., Path], routetune: Any, prefect_url: str, store_folder: Path
) -> None:
    """H52: what was finished is neither built nor measured again, the best of it included."""
    target = small(
        routes="-graph_optimization_level=[disabled|basic|extended|all] -session.disable_prepacking=[0|1]",
        seconds=0.6,
    )
    environment = os.environ | {"ROUTETUNE_STORE": str(store_folder), "PREFECT_API_URL": prefect_url}
    command = [sys.executable, "-m", "routetune.flows", "tune", str(target), "--json"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as run:
        deadline = time.monotonic() + 120
        while len(finished(store_folder)) < 3 and time.monotonic() < deadline:
            assert run.poll() is None, "the run ended before it could be killed"
            time.sleep(0.05)
        os.kill(run.pid, signal.SIGKILL)
    before, measured = finished(store_folder), speeds(store_folder)
    assert 3 <= len(before) < 8
    second = answer(routetune("tune", target, "--json", PREFECT_API_URL=prefect_url))
    assert second["counts"]["trials"] == 8
    assert second["counts"]["from_store"] >= len(before)
    after = finished(store_folder)
    assert len(after) == len(set(after)) == 8, "each finished trial stands in the record once"
    assert len({run for run, _ in after}) == 1
    told = {trial["route"]: trial["speed"] for trial in second["trials"]}
    assert len(measured) >= 3
    assert {route: told[route] for route in measured} == measured
    assert {route: speeds(store_folder)[route] for route in measured} == measured


def test_a_store_full_of_damage_heals(
    small: Callable[..., Path], routetune: Any, prefect_url: str, store_folder: Path
) -> None:
    """G47, through the command line: every file is emptied at once."""
    target = small(routes="-session.disable_prepacking=[0|1]")
    first = answer(routetune("tune", target, "--json", PREFECT_API_URL=prefect_url))
    for part in ("entries", "blobs", "records", "runs", "publications"):
        for file in (store_folder / part).rglob("*"):
            if file.is_file():
                file.chmod(0o600)
                file.write_bytes(b"")
    state = answer(routetune("status", target, "--json", "--check"), code=3)["targets"][0]
    assert state["state"] == "stale" and "damaged" in state["detail"]
    process = routetune("tune", target, "--json", PREFECT_API_URL=prefect_url)
    assert "warning: " in process.stderr and "damaged" in process.stderr
    healed = answer(process)
    assert healed["counts"]["builds"] == first["counts"]["builds"] == 1
    assert answer(routetune("status", target, "--json", "--check"))["targets"][0]["state"] == "fresh"
    assert (
        answer(routetune("tune", target, "--force", "--json", PREFECT_API_URL=prefect_url))["counts"][
            "builds"
        ]
        == 0
    )


def finished(store_folder: Path) -> list[tuple[str, str]]:
    if not store_folder.exists():
        return []
    table = open_store(store_folder).records.read()
    return list(zip(table["run"].to_pylist(), table["route"].to_pylist(), strict=True))


def speeds(store_folder: Path) -> dict[str, float]:
    table = open_store(store_folder).records.read(columns=["route", "speed"])
    return dict(zip(table["route"].to_pylist(), table["speed"].to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("routes", "message"),
    [
        ("-graph_optimisation_level=[all]", "-graph_optimization_level"),
        ("-graph_optimization_level=[most]", "most"),
        ("", "routes"),
    ],
)
def test_a_bad_route_is_refused_before_anything_starts(
    small: Callable[..., Path], routetune: Any, routes: str, message: str
) -> None:
    process = routetune("tune", small(routes=routes), PREFECT_API_URL="http://127.0.0.1:9/api")
    assert process.returncode == 2, process.stderr
    assert message in process.stderr
    assert "Traceback" not in process.stderr
