"""The worker: every way in which a step can end is named, and the next step runs all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper
from routetune.tasks.arrays import save_arrays
from routetune.tasks.engines.attempts import Attempts
from routetune.tasks.engines.worker import RECYCLE_GROWTH, StepFailed, Worker
from routetune.tasks.errors import EnvironmentBroken
from routetune.tasks.trial import Outcome

FAULTS = Path(__file__).parents[1] / "faults"
BUILD = "routetune.tasks.engines.steps:build"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
    )
    path = tmp_path / "add.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    with Worker(tmp_path / "worker", {"PYTHONPATH": str(FAULTS)}, memory_limit=2 * 2**30) as worker:
        yield worker


@pytest.fixture
def build(worker: Worker, model: Path, tmp_path: Path) -> Any:
    def call(fault: str = "none", seconds: float = 30.0, by: Any = worker.call) -> Any:
        route = {} if fault == "none" else {"+fault": fault}
        order = {"model": str(model), "route": route, "output": str(tmp_path / "engine.onnx")}
        arguments = {"backend": "faulty_backend:FaultyBackend", "order": order}
        return by(BUILD, arguments, seconds, tmp_path / "step.log")

    return call


@pytest.mark.parametrize(
    ("fault", "outcome", "reason"),
    [
        ("segfault", Outcome.CRASHED, "SIGSEGV"),
        ("always", Outcome.CRASHED, "SIGABRT"),
        ("exit", Outcome.FAILED, "exit code 0 and no result"),
        ("empty", Outcome.FAILED, "empty engine"),
        ("sigkill", Outcome.KILLED, "SIGKILL"),
        ("memory", Outcome.OUT_OF_MEMORY, "limit"),
    ],
)
def test_each_end_is_named_and_the_next_step_runs(
    build: Any, fault: str, outcome: Outcome, reason: str
) -> None:
    """D25, D26, D27."""
    with pytest.raises(StepFailed) as failed:
        build(fault)
    assert failed.value.outcome is outcome
    assert reason in failed.value.reason
    assert build()["size"] > 0


@pytest.mark.parametrize(("wanted", "outcome"), [(1 << 48, Outcome.OUT_OF_MEMORY), (1 << 60, Outcome.FAILED)])
def test_memory_that_no_machine_has_is_not_lacking(
    worker: Worker, tmp_path: Path, wanted: int, outcome: Outcome
) -> None:
    """What a machine could have may be there one day; more says that the engine computes nonsense."""
    fill = helper.make_tensor("value", TensorProto.UINT8, [1], [1])
    graph = helper.make_graph(
        [
            helper.make_node("ConstantOfShape", ["size"], ["full"], value=fill),
            helper.make_node("Shape", ["full"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("size", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [1])],
    )
    model, inputs = tmp_path / "full.onnx", tmp_path / "size.npz"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), model)
    save_arrays(inputs, {"size": np.array([wanted])})
    one = {"name": "one", "role": "opt", "inputs": str(inputs), "output": str(tmp_path / "y.npz")}
    arguments = {"source": {"model": str(model), "plugins": []}, "sets": [one]}
    with pytest.raises(StepFailed, match=f"allocate memory for requested buffer of size {wanted}") as failed:
        worker.call("routetune.tasks.engines.reference:make", arguments, 30)
    assert failed.value.outcome is outcome


def test_the_whole_group_is_gone_at_the_deadline(build: Any, worker: Worker, tmp_path: Path) -> None:
    """D28: a build that ignores SIGTERM and has a grandchild that does, too."""
    build()
    started = time.monotonic()
    with pytest.raises(StepFailed) as failed:
        build("stubborn", seconds=2.0)
    took = time.monotonic() - started
    assert failed.value.outcome is Outcome.TIMED_OUT
    assert took < 10, f"a limit of 2 s took {took:.1f} s"
    pids = [int(pid) for pid in (tmp_path / "engine.pid").read_text().split()]
    deadline = time.monotonic() + 5
    while any(_runs(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_runs(pid) for pid in pids)
    assert build()["size"] > 0


def test_a_warm_worker_serves_many_steps_and_a_python_error_does_not_end_it(
    build: Any, worker: Worker
) -> None:
    build()
    with pytest.raises(StepFailed) as failed:
        worker.call(BUILD, {"backend": "onnxruntime", "order": {}}, 10)
    assert failed.value.error == "KeyError"
    build()
    assert worker.started == 1


def test_output_of_native_code_goes_to_the_log_of_its_step(
    worker: Worker, model: Path, tmp_path: Path
) -> None:
    with pytest.raises(StepFailed):
        worker.call("routetune.tasks.nothing:here", {}, 10, tmp_path / "mine.log")
    assert "No module named" in (tmp_path / "mine.log").read_text()


def test_steps_are_ours_alone(worker: Worker) -> None:
    with pytest.raises(StepFailed, match="not one of ours"):
        worker.call("os:system", {"command": "true"}, 10)


def test_attempts_tell_a_flake_from_a_crash(build: Any, worker: Worker) -> None:
    attempts = Attempts(worker)
    build()
    with pytest.raises(StepFailed) as flaky:
        build("once", by=attempts.call)
    assert flaky.value.outcome is Outcome.FLAKY
    with pytest.raises(StepFailed) as crash:
        build("always", by=attempts.call)
    assert crash.value.outcome is Outcome.CRASHED and crash.value.fresh


def test_retries_of_a_killed_step_are_bounded(build: Any, worker: Worker) -> None:
    """D27."""
    build()
    before = worker.started
    with pytest.raises(StepFailed) as killed:
        build("sigkill", by=Attempts(worker).call)
    assert killed.value.outcome is Outcome.KILLED
    assert worker.started - before == 1


def test_a_broken_machine_is_not_blamed_on_routes(build: Any, worker: Worker) -> None:
    attempts = Attempts(worker)
    attempts.canary = lambda: build("always")
    for _ in range(2):
        with pytest.raises(StepFailed):
            build("always", by=attempts.call)
    with pytest.raises(EnvironmentBroken, match="no route is blamed"):
        build("always", by=attempts.call)
    attempts.canary = lambda: build("none")
    for _ in range(4):
        with pytest.raises(StepFailed):
            build("always", by=attempts.call)


def test_an_answer_that_breaks_off_is_not_waited_for(
    worker: Worker, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("routetune.tasks.engines.worker.ANSWER_SECONDS", 0.3)
    with pytest.raises(StepFailed, match="answer broke off") as failed:
        build("half")
    assert failed.value.outcome is Outcome.TIMED_OUT
    assert build()["size"]


def test_the_child_dies_with_its_parent(model: Path, tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import sys, threading, time
        from pathlib import Path
        from routetune.tasks.engines.worker import Worker
        worker = Worker(Path(sys.argv[1]))
        # From a thread that ends at once: the child must outlive it, and only it.
        def start():
            try:
                worker.call("os:nothing", {}, 30)
            except Exception:
                pass
        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
        print(worker._process.popen.pid, flush=True)
        time.sleep(600)
    """)
    command = [sys.executable, "-c", script, str(tmp_path / "w")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        time.sleep(0.3)
        assert _runs(child)
        os.kill(parent.pid, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while _runs(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(child)


def test_a_worker_is_replaced_when_it_leaves_memory_behind_on_the_gpu(worker: Worker, build: Any) -> None:
    """The process is real; what the GPU would tell after its steps is not."""
    build()
    process = worker._process
    assert process is not None and process.first_device == 0  # a step on the CPU tells of no GPU
    for on_device in (1 << 30, RECYCLE_GROWTH, 0):
        worker._recycle(process, on_device)
        assert worker._process is process
    worker._recycle(process, (1 << 30) + RECYCLE_GROWTH + 1)
    assert worker._process is None
    build()
    assert worker.started == 2


def test_arrays_survive_the_way_to_the_worker(tmp_path: Path) -> None:
    import ml_dtypes
    from routetune.tasks.arrays import arrays_digest, load_arrays, save_arrays

    arrays = {
        "file": np.array(3.0, np.float32),
        "a/b: c": np.arange(6).reshape(2, 3)[:, ::2],
        "half": np.array([1.5, np.nan], ml_dtypes.bfloat16),
        "four": np.array([1, -2], ml_dtypes.int4),
        "none": np.zeros((0, 3), np.bool_),
    }
    save_arrays(tmp_path / "a.npz", arrays)
    back = load_arrays(tmp_path / "a.npz")
    assert list(back) == list(arrays)
    assert arrays_digest(back) == arrays_digest(arrays)
    save_arrays(tmp_path / "b.npz", back)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
