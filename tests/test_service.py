"""Services: the engine they load, the runner with its options, and the example service run as a process."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from routetune.tasks.errors import BadInput
from routetune.tasks.service import current_engine, has_moved, load_runner, located
from routetune.tasks.status import freshness
from routetune.tasks.store import Store, open_store
from routetune.tasks.store.loader import Refused
from routetune.tasks.store.manifests import BadPublication

from tests.published import publish, write_target

ROOT = Path(__file__).parents[1]
DENORMALS = "-session.set_denormal_as_zero"


@pytest.fixture
def store(store_folder: Path) -> Store:
    return open_store(store_folder)


def test_a_runner_has_the_options_that_are_not_in_the_file(store: Store, tmp_path: Path) -> None:
    """Denormals count as zero only by an option: the bytes of both engines are the same."""
    tiny = {"x": np.full(4, 1e-39, np.float32)}
    found = {}
    for route in ({}, {DENORMALS: "1"}):
        publish(store, tmp_path, 0.0, route)
        runner = load_runner(current_engine("plus", store.root))
        try:
            found[len(route)] = float(runner.infer(tiny)["y"][0])
        finally:
            runner.close()
    assert found[0] > 0 and found[1] == 0


def test_a_service_notices_another_generation_and_a_lost_pointer(store: Store, tmp_path: Path) -> None:
    publish(store, tmp_path, 1.0)
    served = current_engine("plus", store.root)
    assert not has_moved(served)
    publish(store, tmp_path, 2.0)
    assert has_moved(served)
    store.publications.rollback("plus", served.manifest["environment_key"])
    assert not has_moved(served)
    (served.path.parents[2] / "current.json").write_bytes(b"")
    with pytest.raises(BadPublication, match=r"current\.json is damaged"):
        has_moved(served)


def test_where_the_engine_lies_and_what_is_stale(store: Store, tmp_path: Path, routetune: Any) -> None:
    published = publish(store, tmp_path, 1.0)
    target = tmp_path / "plus.toml"
    for what in (target, "plus"):
        process = routetune("path", what)
        assert process.stdout == f"{published.engine}\n" and not process.stderr
    found = json.loads(routetune("path", target, "--json").stdout)
    assert found["path"] == str(published.engine) and found["stale"] == []
    assert Path(found["manifest"]).name == "manifest.json"
    assert found["options"] == published.manifest["options"]

    write_target(tmp_path, 5.0)  # the model moved: what is published still is what there is, marked
    process = routetune("path", target)
    assert process.stdout == f"{published.engine}\n" and "is stale: target.model: " in process.stderr
    refused = routetune("path", target, "--strict", "--json")
    assert refused.returncode == 1 and "target.model" in json.loads(refused.stdout)["error"]
    assert not routetune("path", "plus", "--strict").returncode, "the store alone knows of no model"

    published.engine.chmod(0o600)
    published.engine.write_bytes(b"\0\0" + published.engine.read_bytes()[2:])
    process = routetune("path", target)
    assert process.returncode == 1 and not process.stdout
    assert f"engine {published.engine} was changed" in process.stderr
    assert published.reference.engine in process.stderr


def test_the_environment_is_graded_as_the_loader_does(store: Store, tmp_path: Path) -> None:
    publish(store, tmp_path, 1.0, **{"cpu.cores": 99})
    with pytest.warns(UserWarning, match=r"stale: cpu\.cores: 99 -> "):
        assert located(Path("plus"), store.root)["stale"]
    with pytest.raises(Refused, match=r"cpu\.cores"):
        located(Path("plus"), store.root, strict=True)
    publish(store, tmp_path, 1.0, **{"version.onnxruntime": "0.1"})
    with pytest.raises(Refused, match=r"version\.onnxruntime: 0\.1 -> "):
        located(tmp_path / "plus.toml", store.root)
    with pytest.raises(BadInput, match="'nothing' is not published"):
        located(Path("nothing"), store.root)


def test_an_edited_version_in_a_manifest_is_named_and_the_one_before_is_untouched(
    store: Store, tmp_path: Path
) -> None:
    """H56, as operations meet it: status, path, verify, roll back."""
    first, second = publish(store, tmp_path, 1.0), publish(store, tmp_path, 1.0, {DENORMALS: "1"})
    target, manifest = tmp_path / "plus.toml", second.engine.with_name("manifest.json")
    version = second.manifest["bound_to"]["environment"]["version.onnxruntime"].encode()
    manifest.chmod(0o600)
    manifest.write_bytes(manifest.read_bytes().replace(version, b"0.0.1"))
    state = freshness(target, store)
    assert state.state == "stale" and state.cost == "publish" and str(manifest) in state.detail
    with pytest.raises(BadPublication, match=f"manifest {manifest} was changed after it was published"):
        located(target, store.root)
    [problem] = store.publications.verify("plus", second.manifest["environment_key"])
    assert str(manifest) in problem
    assert store.publications.rollback("plus", second.manifest["environment_key"]) == first
    assert located(target, store.root)["path"] == str(first.engine)


@contextmanager
def served(store: Store, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The example, run as its page says; yields its address."""
    command = [sys.executable, "-X", "importtime", str(ROOT / "docs/examples/service.py"), "plus", *options]
    environment = os.environ | {"ROUTETUNE_STORE": str(store.root)}
    with subprocess.Popen(
        [*command, "--port", "0", "--poll", "0.05"],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=(store.root.parent / "stderr").open("w"),
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert "serving plus on port" in line, (store.root.parent / "stderr").read_text()[-500:]
            yield f"http://127.0.0.1:{line.split()[-1]}/", process
        finally:
            process.terminate()


def asked(address: str, x: Any) -> tuple[float, int]:
    """y of the service for x, and the generation that computed it."""
    buffer = io.BytesIO()
    np.savez(buffer, x=x)
    with urllib.request.urlopen(address, data=buffer.getvalue(), timeout=30) as answer:
        outputs = np.load(io.BytesIO(answer.read()))
        return float(outputs["y"][0]), int(answer.headers["X-Generation"])


def test_the_example_serves_each_generation_as_it_is_published(store: Store, tmp_path: Path) -> None:
    x = np.zeros(4, np.float32)
    publish(store, tmp_path, 1.0)
    with served(store) as (address, process):
        assert asked(address, x) == (1.0, 1)
        publish(store, tmp_path, 2.0)
        answers = set()
        deadline = time.monotonic() + 60
        while (2.0, 2) not in answers and time.monotonic() < deadline:
            answers.add(asked(address, x))
        # Every answer is a whole generation's, the old one's or the new one's.
        assert answers <= {(1.0, 1), (2.0, 2)} and (2.0, 2) in answers

        # A generation that is damaged by the time it is seen is named, and not served.
        process.send_signal(signal.SIGSTOP)
        third = publish(store, tmp_path, 3.0)
        third.engine.chmod(0o600)
        third.engine.write_bytes(b"?" + third.engine.read_bytes()[1:])
        process.send_signal(signal.SIGCONT)
        while "the engine in use stays" not in (tmp_path / "stderr").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert asked(address, x) == (2.0, 2)
        with pytest.raises(urllib.error.HTTPError, match="400"):
            asked(address, np.zeros(4, np.int64))
        told = json.loads(urllib.request.urlopen(address, timeout=30).read())
        assert told["target"] == "plus" and told["stale"] == []
        assert process.poll() is None
    imported = (tmp_path / "stderr").read_text()
    assert "onnxruntime" in imported and " prefect" not in imported
