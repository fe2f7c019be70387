"""A store that cannot be written to is named before anything is built or any server is asked.

Root may write anywhere that is not mounted read-only, so it is mounted so, seen by the command alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from routetune.tasks.store import open_store

from tests.published import publish, write_target

MOUNTED = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'


@pytest.mark.parametrize("part", ["", "publications"])
def test_a_read_only_store_is_found_before_any_build(store_folder: Path, tmp_path: Path, part: str) -> None:
    probe = ["unshare", "-m", "sh", "-c", MOUNTED, "sh", str(tmp_path), "true"]
    if subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("this process may not mount anything")
    store = open_store(store_folder)
    published = publish(store, tmp_path, 1.0)
    write_target(tmp_path, 2.0)  # stale, so that there is something to do
    before = sorted(store.root.rglob("*"))
    place = store.root / part

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "routetune.flows", *arguments]
        nothing_there = {"PREFECT_API_URL": "http://127.0.0.1:9/api", "ROUTETUNE_STORE": str(store.root)}
        return subprocess.run(
            ["unshare", "-m", "sh", "-c", MOUNTED, "sh", str(place), *command],
            env=os.environ | nothing_there,
            capture_output=True,
            text=True,
        )

    tuned = run("tune", str(tmp_path / "plus.toml"))
    assert tuned.returncode == 1, tuned.stderr
    assert f"store {store.root} cannot be written to, so nothing was started" in tuned.stderr
    assert f"{place}/" in tuned.stderr and "Traceback" not in tuned.stderr
    assert sorted(store.root.rglob("*")) == before
    if not part:  # who only looks is not stopped
        assert run("path", "plus").stdout == f"{published.engine}\n"
