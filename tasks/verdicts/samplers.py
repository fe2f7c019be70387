"""What is timed, and how one engine gives way to the next within a process.

A sampler turns calls into samples: a latency one times each call by itself, a throughput one keeps several
inferences in flight and times how fast they complete.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, cast

from routetune.tasks.errors import RoutetuneError

Call = Callable[[], None]
Clock = Callable[[], int]

#: After a switch a sampler runs for this long before anything counts: a thread pool slept, caches are cold.
#: A call of 0.2 ms took 2.0, 1.2, 1.1, 1.1, 1.1, 1.0 times its time at first, one of 2.5 ms 1.09 and 1.02.
WARM_SECONDS = 0.002
#: Calls longer than this are not warmed up: what the first milliseconds cost does not show in them.
LONG_SECONDS = 0.02
#: How long to wait for the threads of an idle engine to rest. ONNX Runtime's spin for about 0.12 s.
REST_SECONDS = 0.25
#: Times of the device's own that are taken at once, of inferences that are not long.
_PROBES = 5
#: Inferences of each stream that one throughput sample holds at the least.
_EACH = 4


class BadClock(RoutetuneError):
    """The clock stood still, ran backwards or gave no number; what it measured is refused."""


def checked_nanoseconds(duration: float) -> int:
    """A duration that can be one.

    Raises:
        BadClock: it is zero, negative or not a finite number.
    """
    if not (1 <= duration < math.inf):
        raise BadClock(f"a call was timed at {duration} ns: the clock is broken, the measurement is refused")
    return int(duration)


class Sampler(Protocol):
    """One engine, ready to be timed.

    Attributes:
        least: inferences of the shortest sample.
    """

    least: int

    def sample(self, calls: int) -> list[int]:
        """Run `calls` inferences now; their samples in nanoseconds per inference."""
        ...


class Serial:
    """One inference after the other: a sample is the latency of one.

    Attributes:
        least: see `Sampler`.
        device_ns: runs one more and gives the device's own time, see `Runner`; None where nothing tells.
    """

    def __init__(self, call: Call, clock: Clock = time.perf_counter_ns) -> None:
        self._call, self._clock = call, clock
        self.least = 1
        self.device_ns: Callable[[], int] | None = getattr(call, "device_ns", None)

    def sample(self, calls: int) -> list[int]:
        clock, call = self._clock, self._call
        durations = []
        for _ in range(calls):
            start = clock()
            call()
            durations.append(clock() - start)
        return [checked_nanoseconds(duration) for duration in durations]


class Streams:
    """Several inferences in flight, each stream with a thread and a prepared call of its own.

    A sample is the time from one completed inference to the next, on average over a chunk: its inverse is
    the throughput. All streams are in flight from the first moment that counts to the last.

    The first calls of the threads come one after the other: ONNX Runtime captures a CUDA graph anew for each
    thread, and a capture fails when another thread asks the device for anything new meanwhile.
    """

    def __init__(self, calls: Sequence[Call], clock: Clock = time.perf_counter_ns) -> None:
        self.streams = len(calls)
        self.least = (_EACH + 1) * self.streams
        self._clock = clock
        self._gate = threading.Barrier(len(calls) + 1)
        self._ends: list[int] = []
        self._wanted = 0
        self._closed = False
        self._error: BaseException | None = None
        self._begun = threading.Semaphore(0)
        self._threads = [threading.Thread(target=self._stream, args=[call], daemon=True) for call in calls]
        for thread in self._threads:
            thread.start()
            self._begun.acquire()

    def sample(self, calls: int) -> list[int]:
        """One sample, over `calls` inferences or a few of each stream, whichever is more.

        Raises:
            Exception: the first that an inference raised.
        """
        counted = max(calls, _EACH * self.streams)
        # The first of each stream only fill the pipe: they started together and all end at about one time.
        self._ends, self._wanted = [], counted + self.streams
        self._gate.wait()
        self._gate.wait()
        if self._error is not None:
            raise self._error
        ends = sorted(self._ends)[: self._wanted]
        return [checked_nanoseconds((ends[-1] - ends[self.streams - 1]) / counted)]

    def close(self) -> None:
        """End the threads; safe to call again."""
        if not self._closed:
            self._closed = True
            self._gate.wait()
            for thread in self._threads:
                thread.join()

    def __enter__(self) -> Streams:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stream(self, call: Call) -> None:
        clock = self._clock
        try:
            call()
        except BaseException as error:
            self._error = error
        self._begun.release()
        while True:
            self._gate.wait()
            if self._closed:
                return
            ends, wanted = self._ends, self._wanted
            try:
                # Until the last wanted one has ended, so that no stream idles before.
                while len(ends) < wanted and self._error is None:
                    call()
                    ends.append(clock())
            except BaseException as error:
                self._error = error
            self._gate.wait()


def as_sampler(call: Call | Sampler, clock: Clock) -> Sampler:
    """A sampler as it is; a plain call as one that is timed by itself."""
    return cast(Sampler, call) if hasattr(call, "sample") else Serial(call, clock)


class Turns:
    """Engines of one process taking turns, each starting its turn on a quiet and warm machine.

    The thread pool of an engine goes on spinning after its last call, and takes the cores from the next
    one's: on two cores, 2-thread engines ran at half their speed for the first 0.12 s. So a turn starts when
    the other threads of this process rest; then the engine runs for a moment before anything counts.
    """

    def __init__(self, clock: Clock = time.perf_counter_ns, rest: Callable[[], None] | None = None) -> None:
        self._clock = clock
        self._rest = rest or rested
        self._last: Sampler | None = None
        self._warm: dict[int, int] = {}
        self.resting = 0.0

    def sample(self, sampler: Sampler, calls: int) -> list[int]:
        """Samples of `sampler`, after what a switch takes if another one was last."""
        self.switch(sampler)
        return sampler.sample(calls)

    def switch(self, sampler: Sampler) -> None:
        """Make `sampler` the next, ready to count; `resting` is then the seconds waited for the others."""
        if sampler is self._last:
            return
        start = self._clock()
        self._rest()
        self.resting = (self._clock() - start) / 1e9
        self._last = sampler
        if calls := self._warm.get(id(sampler), 1):
            found = sampler.sample(calls)
            self._warm.setdefault(id(sampler), _warm_calls(min(found)))

    def device_sample(self, sampler: Sampler) -> list[int]:
        """What the device itself took for a few inferences more, in nanoseconds; empty where nothing tells.

        Warm ones: where the device waits for the host, its time is the host's, and that was slower by a third
        (0.23 ms for 0.16) in the first call after a pause.
        """
        probe: Callable[[], int] | None = getattr(sampler, "device_ns", None)
        if probe is None:
            return []
        self.switch(sampler)
        calls = self._warm.get(id(sampler), 1)
        if calls:
            sampler.sample(calls)
        return [probe() for _ in range(_PROBES if calls else 1)]

    def learn(self, sampler: Sampler, nanoseconds: float) -> None:
        """How long an inference takes, which decides how many make a warm-up."""
        self._warm[id(sampler)] = _warm_calls(nanoseconds)


def _warm_calls(nanoseconds: float) -> int:
    each = nanoseconds / 1e9
    return 0 if each > LONG_SECONDS else math.ceil(WARM_SECONDS / each)


def rested(limit: float = REST_SECONDS) -> None:
    """Wait until no other thread of this process wants a core, but not for ever.

    By asking, not by sleeping, so that this core stays fast; twice, since a thread may be caught between two
    naps. Where the system does not tell, it returns at once.
    """
    deadline = time.perf_counter() + limit
    calm = 0
    while calm < 2 and time.perf_counter() < deadline:
        calm = 0 if _others_run() else calm + 1


def _others_run() -> bool:
    own = str(threading.get_native_id())
    try:
        threads = os.listdir("/proc/self/task")  # noqa: PTH208 - names are all that is needed, and quickly
    except OSError:
        return False
    return any(thread != own and _state(thread) == b"R" for thread in threads)


def _state(thread: str) -> bytes:
    """proc(5): the letter after the command's closing bracket; R is running or waiting for a core."""
    try:
        line = Path(f"/proc/self/task/{thread}/stat").read_bytes()
    except OSError:  # it ended
        return b""
    return line[line.rindex(b")") + 2 :][:1]
