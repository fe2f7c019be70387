"""A tune whose store is in a bucket: beside the death of the server, its own, and on another host."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from routetune.data import folder
from routetune.tasks.store.sealed import unseal

from tests.buckets import SECRET, Server
from tests.quick import quick

pytestmark = pytest.mark.slow

URL = "s3://bucket/team"
SERVICE = """
import sys, numpy
from routetune.tasks.service import current_engine, has_moved, load_runner
published = current_engine("small", sys.argv[1])
runner = load_runner(published)
outputs = runner.infer({"x": numpy.zeros((8, 1, 8, 8), numpy.float32)})
print(published.manifest["generation"], *(array.shape for array in outputs.values()), has_moved(published))
runner.close()
"""


class Hosts:
    """Hosts that share a bucket, each with a cache of its own."""

    def __init__(self, home: Path, server: Server, prefect_url: str) -> None:
        self.home, self.server = home, server
        self.target = home / "small.toml"
        routes = "-graph_optimization_level=[disabled|basic|extended|all]"
        self.target.write_text(quick("small", "digits_cnn.onnx", routes, shapes={"x": "8x1x8x8"}))
        shutil.copy(folder() / "models/digits_cnn.onnx", home)
        self.bucket = server.bucket("bucket") / "team"
        self.variables = server.variables | {"ROUTETUNE_STORE": URL, "PREFECT_API_URL": prefect_url}

    def start(self, host: str, *arguments: str) -> subprocess.Popen[str]:
        runtime = self.home / host / "run"  # locks of devices are a host's own
        runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
        own = {"XDG_CACHE_HOME": str(self.home / host), "XDG_RUNTIME_DIR": str(runtime)}
        variables = os.environ | self.variables | own
        command = [sys.executable, "-m", "routetune.flows", *arguments]
        return subprocess.Popen(
            command, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def answer(self, process: subprocess.Popen[str], code: int = 0) -> tuple[dict[str, Any], str]:
        out, told = process.communicate(timeout=300)
        assert process.returncode == code, told
        return json.loads(out), told

    def call(self, host: str, *arguments: str, code: int = 0) -> dict[str, Any]:
        return self.answer(self.start(host, *arguments, "--json"), code)[0]

    def tune(self, host: str, *arguments: str) -> dict[str, Any]:
        return self.call(host, "tune", str(self.target), *arguments)

    def wait_for(self, objects: int, process: subprocess.Popen[str]) -> None:
        while len(list(self.bucket.rglob("entries/*/*/*"))) < objects:
            assert process.poll() is None, process.communicate()
            time.sleep(0.005)

    def pending(self, host: str) -> list[Path]:
        return list((self.home / host).glob("routetune/stores/*/outbox/*"))

    def check_every_object(self) -> None:
        """Whatever is in the bucket is whole, and has all that it names."""
        for path in self.bucket.rglob("blobs/*/*/*"):
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
        for path in self.bucket.rglob("entries/*/*/*"):
            for digest, size in unseal(path.read_bytes())["blobs"]:
                blob = self.bucket / f"blobs/{digest[:2]}/{digest[2:4]}/{digest}"
                assert blob.stat().st_size == size
        files = [path for path in self.bucket.rglob("*") if path.is_file()]
        assert not [path for path in files if SECRET.encode() in path.read_bytes()]


@pytest.fixture
def hosts(tmp_path: Path, prefect_url: str) -> Iterator[Hosts]:
    server = Server(tmp_path / "s3" / "data")
    yield Hosts(tmp_path, server, prefect_url)
    server.kill()


def test_another_host_builds_nothing_and_loads_what_was_published(hosts: Hosts) -> None:
    first = hosts.tune("one")
    assert (first["state"], first["counts"]["builds"]) == ("tuned", 4)
    assert hosts.pending("one") == []
    hosts.check_every_object()
    assert hosts.call("other", "status", str(hosts.target), "--check")["targets"][0]["state"] == "fresh"
    located = hosts.call("other", "path", "small")
    engine = Path(located["path"])
    assert engine.is_relative_to(hosts.home / "other")
    assert hashlib.sha256(engine.read_bytes()).hexdigest() == first["engine_digest"]
    assert hosts.call("other", "verify", str(hosts.target))["problems"] == []
    again = hosts.tune("other", "--force")
    assert again["counts"]["builds"] == 0
    assert hosts.call("third", "show", str(hosts.target))["generation"] == again["generation"]
    chosen = hosts.call("third", "publish", str(hosts.target), "--epsilon", "0.5", "--store", URL)
    assert chosen["counts"]["builds"] == 0
    assert hosts.call("other", "show", str(hosts.target))["generation"] == chosen["generation"]
    served = subprocess.run(
        [sys.executable, "-c", SERVICE, URL],
        env=os.environ | hosts.variables | {"XDG_CACHE_HOME": str(hosts.home / "service")},
        text=True,
        capture_output=True,
        timeout=120,
    )
    assert served.stdout == f"{chosen['generation']} (8, 10) False\n", served.stderr
    for path in hosts.home.rglob("*"):
        assert path.suffix == ".log" or not path.is_file() or SECRET.encode() not in path.read_bytes()
    answer, told = hosts.answer(hosts.start("third", "doctor", "--json"))
    [bucket] = [one for one in answer["checks"] if one["name"] == "bucket"]
    assert bucket["ok"] and "conditional writes" in bucket["found"], told


def test_two_hosts_tune_the_same_at_once(hosts: Hosts) -> None:
    both = [hosts.start(host, "tune", str(hosts.target), "--json") for host in ("one", "other")]
    answers = [hosts.answer(process)[0] for process in both]
    assert {answer["target"] for answer in answers} == {"small"}
    hosts.check_every_object()
    shown = hosts.call("third", "show", str(hosts.target))
    assert shown["state"] == "fresh"
    # What the others said is current is what is current, or is in the history of that.
    assert shown["generation"] == max(answer["generation"] for answer in answers)
    assert hosts.call("third", "verify", str(hosts.target))["problems"] == []
    assert {run["run"] for run in answers} <= {
        path.stem for path in (hosts.bucket / "runs").glob("*.json")
    } | {shown["run"]}


@pytest.mark.parametrize("objects", [4])
def test_the_server_dies_in_mid_write(hosts: Hosts, objects: int) -> None:
    process = hosts.start("one", "tune", str(hosts.target), "--json")
    hosts.wait_for(objects, process)
    hosts.server.freeze()
    time.sleep(1)  # by then something is on its way
    hosts.server.kill()
    first, told = hosts.answer(process)
    assert first["state"] == "tuned"
    assert told.count("going on with") == 1 and SECRET not in told
    assert hosts.pending("one")
    hosts.server.start()
    assert hosts.tune("one")["state"] == "fresh"
    assert hosts.pending("one") == []
    hosts.check_every_object()
    other = hosts.tune("other", "--force")
    assert other["counts"]["builds"] == 0
    assert hosts.call("third", "verify", str(hosts.target))["problems"] == []


@pytest.mark.parametrize("objects", [2])
def test_the_tune_dies_while_it_uploads(hosts: Hosts, objects: int) -> None:
    process = hosts.start("one", "tune", str(hosts.target), "--json")
    hosts.wait_for(objects, process)
    hosts.server.freeze()
    time.sleep(0.5)
    process.kill()
    process.communicate()
    hosts.server.kill()
    hosts.server.start()
    again = hosts.tune("one")
    assert again["state"] == "tuned" and again["counts"]["builds"] < 4
    assert hosts.pending("one") == []
    hosts.check_every_object()
    assert hosts.tune("other", "--force")["counts"]["builds"] == 0


def test_what_is_wrong_with_the_bucket_is_said_before_anything_is_built(hosts: Hosts) -> None:
    cases: dict[str, tuple[dict[str, str], str]] = {
        "s3://nowhere/team": ({}, "there is no such bucket"),
        "s3://user:pass@bucket/team": ({}, "may hold a bucket and a prefix, and nothing else"),
        "http://bucket/team": ({}, "begins with one of s3://"),
        "s3://": ({}, "names no bucket"),
    }
    for url, (variables, why) in cases.items():
        hosts.variables |= {"ROUTETUNE_STORE": url, **variables}
        _, told = hosts.answer(hosts.start("one", "tune", str(hosts.target), "--json"), code=2)
        assert why in told and "Traceback" not in told and "pass" not in told
