"""Fixtures shared by all tests: a machine of their own, a store, a Prefect server, the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def own_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the tests away from the user's store, device locks and Prefect database."""
    patch = pytest.MonkeyPatch()
    home = tmp_path_factory.mktemp("machine")
    for name, folder in {
        "XDG_RUNTIME_DIR": "run",
        "PREFECT_HOME": "prefect",
        "ROUTETUNE_STORE": "store",
    }.items():
        (home / folder).mkdir(mode=0o700)
        patch.setenv(name, str(home / folder))
    for name in ("PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_PROFILE"):
        patch.delenv(name, raising=False)
    # Some images set it; the hundreds of child processes would each compile all of our code again.
    patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    patch.setenv("DO_NOT_TRACK", "1")
    patch.setenv("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    patch.setenv("PREFECT_SERVER_LOGGING_LEVEL", "CRITICAL")
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def no_gpu_unless_asked_for(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of the CPU mean the CPU on a machine with a GPU, too, where a target's device is left open."""
    if not {"gpu", "tensorrt"} & {mark.name for mark in request.node.iter_markers()}:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def store_folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture(scope="session")
def prefect_url(own_machine: None) -> Iterator[str]:
    """A real Prefect server for the session; flows in this process and in child processes use it."""
    from prefect.settings import PREFECT_API_URL
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=90):
        yield str(PREFECT_API_URL.value())


@pytest.fixture(scope="session")
def bucket_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real S3-compatible server for the session; a test takes a bucket of its own, and kills no server."""
    from tests.buckets import Server

    server = Server(tmp_path_factory.mktemp("s3") / "data")
    yield server
    server.kill()


Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def routetune(store_folder: Path) -> Command:
    """Run the command line in a process of its own, as a user does; returns the finished process."""

    def call(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"ROUTETUNE_STORE": str(store_folder)} | variables
        command = [sys.executable, "-m", "routetune.flows", *map(str, arguments)]
        return subprocess.run(command, env=environment, text=True, capture_output=True, timeout=300)

    return call


def answer_of(process: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The one JSON object on stdout."""
    answer: dict[str, Any] = json.loads(process.stdout)
    return answer
