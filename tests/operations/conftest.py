"""One server on SQLite for all of these tests, PostgreSQL for those that ask; each has a site of its own."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.operations.site import Server, Site, free_port, serving

RESULTS = Path(__file__).parents[1] / "benchmarks/results/operations.json"
COMMAND = "ROUTETUNE_WRITE_FIGURES=1 pytest -m slow tests/operations"


@pytest.fixture(scope="session")
def server(own_machine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture
def site(server: Server, tmp_path: Path) -> Site:
    return Site(tmp_path, server)


@pytest.fixture(scope="session")
def figures() -> Iterator[dict[str, Any]]:
    """What was measured on the way; written where the benchmarks' results are, when COMMAND asks for it."""
    found: dict[str, Any] = {}
    yield found
    if found and os.environ.get("ROUTETUNE_WRITE_FIGURES"):
        from importlib.metadata import version

        found |= {"command": COMMAND, "cores": os.cpu_count(), "prefect": version("prefect")}
        found["python"] = platform.python_version()
        found["load"] = round(os.getloadavg()[0], 2)
        RESULTS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


@pytest.fixture
def postgresql() -> Iterator[str]:
    """A PostgreSQL server of the test's own; the URL that Prefect takes."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs:
        pytest.skip("PostgreSQL is not installed (/usr/lib/postgresql/*/bin/initdb)")
    # PostgreSQL refuses to run as root, and pytest's folders are closed to everybody else.
    before = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
    port = str(free_port())

    def call(program: str, *arguments: str) -> None:
        command = [*before, str(programs[-1].with_name(program)), *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd="/", timeout=120)

    with tempfile.TemporaryDirectory() as folder:
        if before:
            shutil.chown(folder, "postgres")
        data, log = f"{folder}/data", f"{folder}/log"
        call("initdb", "-D", data, "-U", "prefect", "--auth=trust", "--no-sync", "-E", "UTF8")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
        call("pg_ctl", "-D", data, "-l", log, "-w", "-o", options, "start")
        try:
            call("createdb", "-h", "127.0.0.1", "-p", port, "-U", "prefect", "prefect")
            yield f"postgresql+asyncpg://prefect@127.0.0.1:{port}/prefect"
        finally:
            call("pg_ctl", "-D", data, "-m", "immediate", "stop")
