"""The CUDA harness: what can be told without a GPU, and on one (marker gpu) the rest."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from routetune.tasks.engines import cuda
from routetune.tasks.errors import BadInput

cuda_bindings = pytest.importorskip("cuda.bindings.runtime", reason="cuda-bindings is not installed")


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:", "cuda:x", "cuda:-1", "abacus"])
def test_what_is_no_cuda_device_is_refused(device: str) -> None:
    with pytest.raises(BadInput, match="no CUDA device"):
        cuda.use(device)


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadInput, match=r"cuda:4711.*(does not exist|is the driver installed)"):
        cuda.use("cuda:4711")


def test_errors_have_cuda_s_names() -> None:
    errors = cuda_bindings.cudaError_t
    assert cuda.check((errors.cudaSuccess, 7), "counting") == 7
    assert cuda.check((errors.cudaSuccess,), "doing") == ()
    with pytest.raises(cuda.CudaError, match="cudaErrorInvalidValue while copying"):
        cuda.check((errors.cudaErrorInvalidValue,), "copying")
    with pytest.raises(MemoryError, match="no memory left while allocating"):
        cuda.check((errors.cudaErrorMemoryAllocation,), "allocating")
    assert {error.name for error in errors} >= cuda.STICKY


def test_a_sticky_error_ends_the_process() -> None:
    script = (
        "from cuda.bindings.runtime import cudaError_t\n"
        "from routetune.tasks.engines import cuda\n"
        "cuda.check((cudaError_t.cudaErrorIllegalAddress,), 'running')\n"
    )
    process = subprocess.run([sys.executable, "-c", script], text=True, capture_output=True, timeout=60)
    assert process.returncode == -signal.SIGABRT
    assert "cudaErrorIllegalAddress while running" in process.stderr


@pytest.mark.gpu
def test_buffers_go_to_the_device_and_back() -> None:
    cuda.use("cuda:0")
    with cuda.Stream() as stream:
        for shape in ((0,), (1,), (3, 5), (1 << 20,)):
            array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
            buffer, back = cuda.Buffer(array.nbytes), np.zeros_like(array)
            buffer.upload(array, stream)
            buffer.download(back, stream)
            stream.synchronize()
            assert np.array_equal(array, back)
            with pytest.raises(ValueError, match="fit"):
                buffer.upload(np.zeros(array.size + 1, np.float32), stream)
            buffer.close()
            buffer.close()
            assert buffer.address == 0


@pytest.mark.gpu
def test_a_buffer_frees_its_memory() -> None:
    cuda.use("cuda:0")
    cuda.Buffer(1).close()  # the first allocation makes the context
    before, total = cuda.free_memory()
    kept = cuda.Buffer(1 << 30)
    assert before - cuda.free_memory()[0] >= 1 << 30
    del kept
    assert before - cuda.free_memory()[0] < 1 << 26
    with pytest.raises(MemoryError):
        cuda.Buffer(2 * total)
    assert cuda.present()


@pytest.mark.gpu
def test_a_graph_does_the_same_again_and_events_measure_it() -> None:
    cuda.use("cuda:0")
    array = np.arange(1 << 24, dtype=np.int32)
    one, back = cuda.Buffer(array.nbytes), np.zeros_like(array)
    pinned = cuda.runtime()
    with cuda.Stream() as stream:
        one.upload(array, stream)
        two = cuda.Buffer(array.nbytes)
        kind = pinned.cudaMemcpyKind.cudaMemcpyDeviceToDevice

        def copy() -> None:
            arguments = (two.address, one.address, array.nbytes, kind, stream.handle)
            cuda.check(pinned.cudaMemcpyAsync(*arguments), "copying")

        stream.synchronize()
        graph = stream.capture(copy)
        two.download(back, stream)
        stream.synchronize()
        assert not np.array_equal(array, back)  # a capture runs nothing
        begin, end = cuda.Event(), cuda.Event()
        begin.record(stream)
        started = time.perf_counter()
        for _ in range(20):
            graph.launch(stream)
        end.record(stream)
        took = end.milliseconds_since(begin)
        assert 0 < took <= 1000 * (time.perf_counter() - started) + 1
        two.download(back, stream)
        stream.synchronize()
        assert np.array_equal(array, back)
        for thing in (graph, begin, end, one, two):
            thing.close()


@pytest.mark.gpu
def test_a_failed_capture_leaves_the_stream_usable() -> None:
    cuda.use("cuda:0")
    with cuda.Stream() as stream:
        with pytest.raises(cuda.CudaError):
            stream.capture(stream.synchronize)  # not allowed while capturing
        stream.capture(lambda: None).close()
        stream.synchronize()


TRAP = """
from cuda.bindings import driver
from routetune.tasks.engines import cuda

cuda.use("cuda:0")
stream = cuda.Stream()
lines = [".version 7.0", ".target sm_70", ".address_size 64", ".visible .entry k()", "{ trap; ret; }"]
error, module = driver.cuModuleLoadData("\\n".join(lines).encode() + bytes(1))
error, kernel = driver.cuModuleGetFunction(module, b"k")
driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream.handle, 0, 0)
stream.synchronize()
print("went on")
"""


@pytest.mark.gpu
def test_a_real_sticky_error_ends_the_process_at_the_next_wait() -> None:
    """A kernel that traps: whatever runs in its context afterwards would fail or mean nothing."""
    process = subprocess.run([sys.executable, "-c", TRAP], text=True, capture_output=True, timeout=60)
    assert process.returncode == -signal.SIGABRT, process.stderr
    assert "cudaErrorLaunchFailure while waiting for the stream" in process.stderr


@pytest.mark.gpu
def test_memory_in_use_is_told_once_there_is_a_context() -> None:
    cuda.use("cuda:0")
    before = cuda.used_memory()
    held = cuda.Buffer(1 << 30)
    assert cuda.used_memory() - before >= 1 << 30
    held.close()


def test_hidden_gpus_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert not cuda.present()
