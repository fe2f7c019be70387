"""Workers of a Ray cluster: a real one on this host, whose actors are given cores of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from routetune.tasks.bench import Bench, open_bench
from routetune.tasks.errors import BadInput
from routetune.tasks.luggage import Luggage
from routetune.tasks.store import open_store
from routetune.tasks.store.locks import BusyDevice
from routetune.tasks.subject import Subject
from routetune.tasks.targets import processor
from routetune.tasks.targets.environment import Environment

from tests.flows.test_fleet import CORES, ONE, ROUTES, TWO, facts
from tests.flows.test_stages import tune_on
from tests.quick import quick
from tests.ray_node import ray_node

ray = pytest.importorskip("ray", reason="the extra [ray] is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(len(CORES) < 2, reason="two workers need a core each"),
]


@pytest.fixture(scope="module")
def cluster(own_machine: None) -> Iterator[None]:
    """A node that says that it has room for three workers, though there are two sets of cores."""
    with ray_node(str(processor.model()), 3):
        yield


@pytest.fixture
def target(tmp_path: Path) -> Callable[[str], Path]:
    """A target whose model has a sidecar, in a folder below its own."""

    def write(device: str) -> Path:
        weight = numpy_helper.from_array(np.arange(4096, dtype=np.float32), "w")
        graph = helper.make_graph(
            [helper.make_node("Add", ["x", "w"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4096])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4096])],
            [weight],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        (tmp_path / "weights").mkdir(exist_ok=True)
        (tmp_path / "weights/w").unlink(missing_ok=True)
        external = {"save_as_external_data": True, "location": "weights/w", "size_threshold": 0}
        onnx.save(model, tmp_path / "m.onnx", **external)
        path = tmp_path / "t.toml"
        told = {"search": {"prune": False}, "budget": {"trial_seconds": 30}, "engine": {"device": device}}
        path.write_text(quick("plain", "m.onnx", ROUTES, **told))
        return path

    return write


def names(bench: Bench) -> list[str]:
    return [device.rpartition(": ")[2] for device in bench.fleet.named]


def test_two_actors_find_what_one_worker_of_this_machine_finds(
    cluster: None, target: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    packed = Luggage.packed

    def noted(self: Luggage, *given: Any) -> Any:
        sent.append(packed(self, *given))
        return sent[-1]

    monkeypatch.setattr(Luggage, "packed", noted)
    with open_bench(target(ONE), open_store(tmp_path / "here")) as bench:
        _, here = tune_on(bench)
    with open_bench(target(TWO), open_store(tmp_path / "there"), ray=2) as bench:
        publication, there = tune_on(bench)
        assert sorted(names(bench)) == sorted(TWO.replace(",", " cpu:").split())
        assert not bench.fleet.out
    assert facts(here) == facts(there)
    told = json.dumps(sent)
    assert "/files/" in told and "/run/" in told and str(tmp_path) not in told, "no path of this machine went"
    assert {trial.device for trial in there.values()} == set(bench.fleet.named)
    assert len({load["on"] for load in publication.manifest["duel"]}) <= 1
    assert publication.engine.read_bytes(), "the engine came over and is what its digest says"
    assert open_store(tmp_path / "there").publications.verify("plain", bench.subject.key) == []


def test_the_command_line_on_a_cluster(
    cluster: None, target: Callable[[str], Path], routetune: Any, prefect_url: str
) -> None:
    address = ray.get_runtime_context().gcs_address
    variables = {"RAY_ADDRESS": address, "PREFECT_API_URL": prefect_url}
    process = routetune("tune", target(TWO), "--ray", "2", "--json", **variables)
    assert process.returncode == 0, process.stderr
    answer = json.loads(process.stdout)
    assert len(answer["devices"]) == 2 and sum(one["trials"] for one in answer["devices"]) == 8
    again = routetune("tune", target(TWO), "--json")
    assert json.loads(again.stdout)["state"] == "fresh", "where it was tuned makes no difference"


def test_an_actor_that_is_killed_is_replaced_and_no_route_is_blamed(
    cluster: None, target: Callable[[str], Path], tmp_path: Path
) -> None:
    store = open_store(tmp_path / "store")
    with open_bench(target(TWO), store, ray=2) as bench:
        _, second = [member.attempts.worker for member in bench.fleet.members]
        pid = ray.get(second._actor.__ray_call__.remote(lambda _: os.getpid()))
        killer = threading.Timer(0.5, os.kill, [pid, signal.SIGKILL])
        killer.start()
        _, trials = tune_on(bench)
        killer.join()
        bench.fleet.deal(
            lambda number: bench.step("routetune.tasks.engines.steps:versions", {"backend": "onnxruntime"}),
            range(8),
        )
        assert not bench.fleet.out and second._actor is not None
        assert ray.get(second._actor.__ray_call__.remote(lambda _: os.getpid())) != pid
    assert len(trials) == 8 and all(trial.outcome == "eligible" for trial in trials.values())
    assert not [entry for entry in store.entries if "failure" in entry.value]


def test_who_finds_no_free_device_is_left_out_by_name_and_the_others_work(
    cluster: None, target: Callable[[str], Path], tmp_path: Path
) -> None:
    with (
        pytest.warns(
            UserWarning,
            match=r"taken out of the run: refused: device cpu:\d+ is in use: .* \(tuning plain for",
        ),
        open_bench(target(TWO), open_store(tmp_path / "store"), ray=3) as bench,
    ):
        assert len(bench.fleet.members) == 2 and len(bench.fleet.out) == 1
        another = target(TWO).with_name("another.toml")
        another.write_text(target(TWO).read_text().replace('"plain"', '"another"'))
        with (
            pytest.raises(BusyDevice, match=r"'another': no worker .*(is in use|had 1 CPUs)"),
            open_bench(another, open_store(tmp_path / "other"), patience=3, ray=1),
        ):
            pass


def test_another_environment_is_refused_by_name_with_the_fields(
    cluster: None, target: Callable[[str], Path], tmp_path: Path
) -> None:
    def amend(subject: Subject) -> Subject:
        """As where the run is on a machine with another NumPy."""
        return replace(
            subject, environment=Environment(subject.environment.fields | {"version.numpy": "1.0"})
        )

    with (
        pytest.raises(
            BadInput, match=rf"no worker .*: cpu:{CORES[0]}.*version\.numpy: 1\.0 -> {np.__version__}"
        ),
        open_bench(target(TWO), open_store(tmp_path / "store"), amend=amend, ray=2),
    ):
        pass


def test_a_cluster_without_such_a_kind_is_refused_with_what_it_has(
    cluster: None, target: Callable[[str], Path], tmp_path: Path
) -> None:
    def amend(subject: Subject) -> Subject:
        return replace(subject, environment=Environment(subject.environment.fields | {"cpu.model": "Z80"}))

    with (
        pytest.raises(BadInput, match=r"'Z80', and the Ray cluster has no such resource \(it has .*CPU"),
        open_bench(target(TWO), open_store(tmp_path / "store"), amend=amend, ray=2),
    ):
        pass


def test_without_a_cluster_it_is_one_sentence(
    target: Callable[[str], Path], tmp_path: Path, prefect_url: str
) -> None:
    process = subprocess.run(
        [
            sys.executable,
            "-m",
            "routetune.flows",
            "tune",
            str(target(TWO)),
            "--ray",
            "2",
            "--store",
            str(tmp_path / "s"),
        ],
        env=os.environ | {"RAY_ADDRESS": "127.0.0.1:1", "PREFECT_API_URL": prefect_url},
        text=True,
        capture_output=True,
        timeout=200,
    )
    assert process.returncode == 2, process.stderr
    assert "no Ray cluster answers at '127.0.0.1:1'" in process.stderr and "Traceback" not in process.stderr
