"""The CUDA harness of every backend that runs on an NVIDIA GPU: device, stream, events, graphs, buffers.

A thin layer over cuda-bindings, which is imported at the first call. Errors are exceptions; one that leaves
the device's context unusable ends the process, since nothing that ran in it afterwards would mean anything.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
from routetune.tasks.errors import BadInput

Array = np.ndarray[Any, Any]

#: Errors after which every further call of the process fails (CUDA Runtime API, "cudaError": "the only way to
#: recover is to restart the process").
STICKY = frozenset(
    {
        "cudaErrorAssert",
        "cudaErrorECCUncorrectable",
        "cudaErrorHardwareStackError",
        "cudaErrorIllegalAddress",
        "cudaErrorIllegalInstruction",
        "cudaErrorInvalidAddressSpace",
        "cudaErrorInvalidPc",
        "cudaErrorLaunchFailure",
        "cudaErrorLaunchTimeout",
        "cudaErrorMisalignedAddress",
        "cudaErrorNvlinkUncorrectable",
        "cudaErrorTensorMemoryLeak",
        "cudaErrorUnknown",
    }
)


class CudaError(RuntimeError):
    """A CUDA call failed; the message has CUDA's name for it and what was being done."""


@cache
def runtime() -> Any:
    """The module `cuda.bindings.runtime`.

    Raises:
        BadInput: cuda-bindings is not installed.
    """
    try:
        from cuda.bindings import runtime as module
    except ImportError as error:
        raise BadInput(
            f"cuda-bindings cannot be imported ({error}); install it: pip install cuda-bindings"
        ) from error
    return module


def check(result: Sequence[Any], doing: str) -> Any:
    """The value of a call's (error, value...) tuple.

    Raises:
        CudaError, MemoryError: the call failed. A sticky error does not return: it ends the process.
    """
    error, *values = result
    name = str(error.name)
    if name == "cudaSuccess":
        return values[0] if len(values) == 1 else tuple(values)
    if name in STICKY:
        die(f"{name} while {doing}")
    if name == "cudaErrorMemoryAllocation":
        raise MemoryError(f"the GPU has no memory left while {doing} ({name})")
    raise CudaError(f"{name} while {doing}")


def die(reason: str) -> NoReturn:
    """End this process as a crash: the CUDA context is lost, and with it every result from here on."""
    print(f"the CUDA context of this process is lost: {reason}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os.abort()


def number_of(device: str) -> int:
    """The N of "cuda:N". Raises BadInput for anything else."""
    kind, _, number = device.partition(":")
    if kind != "cuda" or not number.isascii() or not number.isdecimal():
        raise BadInput(f"device {device!r} is no CUDA device; expected 'cuda:N', such as 'cuda:0'")
    return int(number)


def use(device: str) -> None:
    """Make `device` the one that this process works on.

    Raises:
        BadInput: there is no such device, or no driver.
    """
    number = number_of(device)
    cuda = runtime()
    error, count = cuda.cudaGetDeviceCount()
    if error.name != "cudaSuccess":
        raise BadInput(f"device {device!r} cannot be used: CUDA says {error.name}; is the driver installed?")
    if number >= count:
        raise BadInput(f"device {device!r} does not exist; this machine has {count} CUDA device(s)")
    check(cuda.cudaSetDevice(number), f"choosing {device}")


def present() -> bool:
    """Whether NVML sees a GPU that is not hidden. Makes no CUDA context, so it costs a process nothing."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1"):
        return False
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            return int(pynvml.nvmlDeviceGetCount()) > 0
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # no library, no driver, no permission: no GPU that could be used
        return False


def free_memory() -> tuple[int, int]:
    """Bytes free and in all on the device in use."""
    free, total = check(runtime().cudaMemGetInfo(), "asking for free memory")
    return int(free), int(total)


def used_memory() -> int:
    """Bytes in use on the device by whomever; 0 where this process has nothing to do with CUDA."""
    if not runtime.cache_info().currsize:
        return 0
    error, free, total = runtime().cudaMemGetInfo()
    return int(total - free) if error.name == "cudaSuccess" else 0


class Buffer:
    """Device memory; freed by `close`, or when it is no longer referred to."""

    def __init__(self, size: int) -> None:
        self.size = size
        # Address 0 would mean "not set" to the libraries, and an empty tensor still has an address.
        self.address: int = int(check(runtime().cudaMalloc(max(size, 1)), f"allocating {size} bytes"))

    def upload(self, array: Array, stream: Stream) -> None:
        """Copy a contiguous array to the beginning of the buffer."""
        if array.nbytes > self.size:
            raise ValueError(f"an array of {array.nbytes} bytes does not fit a buffer of {self.size}")
        _copy(self.address, array.ctypes.data, array.nbytes, "cudaMemcpyHostToDevice", stream)

    def download(self, array: Array, stream: Stream) -> None:
        """Fill a contiguous array from the beginning of the buffer; done when the stream is."""
        if array.nbytes > self.size:
            raise ValueError(f"{array.nbytes} bytes were asked of a buffer of {self.size}")
        download(self.address, array, stream)

    def close(self) -> None:
        address, self.address = self.address, 0
        if address:
            check(runtime().cudaFree(address), "freeing memory")

    def __del__(self) -> None:
        if getattr(self, "address", 0) and not sys.is_finalizing():
            self.close()


def download(address: int, array: Array, stream: Stream) -> None:
    """Fill a contiguous array from memory of the device; done when the stream is."""
    _copy(array.ctypes.data, address, array.nbytes, "cudaMemcpyDeviceToHost", stream)


def _copy(to: int, source: int, size: int, kind: str, stream: Stream) -> None:
    if size:
        cuda = runtime()
        direction = getattr(cuda.cudaMemcpyKind, kind)
        check(cuda.cudaMemcpyAsync(to, source, size, direction, stream.handle), f"copying {size} bytes")


class Stream:
    """A stream of its own, independent of the default stream."""

    def __init__(self) -> None:
        cuda = runtime()
        self._stream = check(cuda.cudaStreamCreateWithFlags(cuda.cudaStreamNonBlocking), "making a stream")
        self.handle = int(self._stream)

    def synchronize(self) -> None:
        """Wait until everything in the stream is done; errors of what ran there show here."""
        check(runtime().cudaStreamSynchronize(self._stream), "waiting for the stream")

    def capture(self, work: Callable[[], None]) -> Graph:
        """A graph of what `work` puts into this stream; nothing of it runs."""
        cuda = runtime()
        mode = cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        check(cuda.cudaStreamBeginCapture(self._stream, mode), "beginning a capture")
        try:
            work()
        finally:
            ended = cuda.cudaStreamEndCapture(
                self._stream
            )  # also after an error, or the stream stays unusable
        return Graph(check(ended, "ending a capture"))

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            check(runtime().cudaStreamDestroy(stream), "ending a stream")

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Graph:
    """A captured piece of work that is launched as a whole."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._ready = check(runtime().cudaGraphInstantiate(graph, 0), "instantiating a graph")

    def launch(self, stream: Stream) -> None:
        check(runtime().cudaGraphLaunch(self._ready, stream.handle), "launching a graph")

    def close(self) -> None:
        graph, self._graph = self._graph, None
        if graph is not None:
            check(runtime().cudaGraphExecDestroy(self._ready), "ending a graph")
            check(runtime().cudaGraphDestroy(graph), "ending a graph")


class Event:
    """A mark in a stream; the time between two of them is the device's own."""

    def __init__(self) -> None:
        self._event = check(runtime().cudaEventCreate(), "making an event")

    def record(self, stream: Stream) -> None:
        check(runtime().cudaEventRecord(self._event, stream.handle), "recording an event")

    def milliseconds_since(self, earlier: Event) -> float:
        """Time from `earlier` to this event, after waiting for this one."""
        cuda = runtime()
        check(cuda.cudaEventSynchronize(self._event), "waiting for an event")
        return float(check(cuda.cudaEventElapsedTime(earlier._event, self._event), "reading an event"))

    def close(self) -> None:
        event, self._event = self._event, None
        if event is not None:
            check(runtime().cudaEventDestroy(event), "ending an event")


class Inference:
    """A prepared inference on a stream: a call puts it there and waits for the end.

    What is between two of its events is the device's own time. That is taken in runs of its own: recording an
    event costs the host some 2 microseconds, which must not be in the time by which engines are ranked.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._marks: tuple[Event, Event] | None = None

    def enqueue(self) -> None:
        """Put one inference into the stream."""
        raise NotImplementedError

    def __call__(self) -> None:
        self.enqueue()
        self.stream.synchronize()

    def device_ns(self) -> int:
        """Run once more; the nanoseconds that the device took, waits for the host within the run included."""
        self._marks = self._marks or (Event(), Event())
        begin, end = self._marks
        begin.record(self.stream)
        self.enqueue()
        end.record(self.stream)
        return round(end.milliseconds_since(begin) * 1e6)

    def close(self) -> None:
        marks, self._marks = self._marks, None
        for mark in marks or ():
            mark.close()
