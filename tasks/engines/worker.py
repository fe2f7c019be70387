"""One long-lived child process per device, in which every build and every measurement happens.

A native library that hangs, crashes or eats the memory takes the child with it and nothing else: the
parent kills the whole process group at the deadline, names what happened and starts afresh.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil
from routetune.tasks.engines import wire
from routetune.tasks.engines.memory import lacks_memory
from routetune.tasks.errors import EnvironmentBroken
from routetune.tasks.targets.environment import worker_variables
from routetune.tasks.trial import Outcome

#: How often a waiting parent looks at the child's memory, seconds.
WATCH_SECONDS = 0.1
#: A worker is replaced after this many steps, or when it has grown by this many bytes since its first, in
#: main memory or on the GPU (there a neighbour's growth counts too, and costs a start).
RECYCLE_STEPS = 1000
RECYCLE_GROWTH = 4 * 2**30
#: Loading the interpreter and the libraries on a busy machine is not the route's time.
START_SECONDS = 60.0
#: An answer that has begun may take this long, also when it began just before the deadline of its step.
ANSWER_SECONDS = 10.0


class Cancelled(Exception):
    """The run ends for a reason of its own: a step that was under way says nothing."""


class StepFailed(Exception):
    """A step gave no result.

    Attributes:
        outcome: FAILED when the step said no or the process left quietly; CRASHED, KILLED, OUT_OF_MEMORY or
            TIMED_OUT when it was ended.
        error: name of the exception class when the step said no, else "".
        fresh: whether this was the first step of a new process, so that nothing before it can be to blame.
    """

    def __init__(self, outcome: Outcome, reason: str, *, error: str = "", fresh: bool = False) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.reason = reason
        self.error = error
        self.fresh = fresh


@dataclass(slots=True)
class _Process:
    popen: subprocess.Popen[bytes]
    pidfd: int
    request: int
    reply: int
    steps: int = 0
    first_rss: int = 0
    first_device: int = 0

    def close(self) -> None:
        for fd in (self.request, self.reply, self.pidfd):
            os.close(fd)


class Worker:
    """Runs steps (functions of ours, named "module:function") in a child process, one at a time.

    Args:
        folder: where the child works; also the default place of its log.
        variables: environment variables of the child beyond the whitelisted ones of this process.
        memory_limit: bytes of resident memory of the child; a step over it is ended.
        cores: the processor cores that the child and all that it starts may run on; None: as this process.

    Attributes:
        started: how many processes it has taken so far.
        worked: seconds that steps took inside them, those cut short left out.
    """

    def __init__(
        self,
        folder: Path,
        variables: Mapping[str, str] | None = None,
        memory_limit: int | None = None,
        cores: Iterable[int] | None = None,
    ) -> None:
        self.folder = folder
        self.variables = dict(variables or {})
        self.memory_limit = memory_limit or int(psutil.virtual_memory().available * 0.9)
        self.cores = ",".join(map(str, sorted(cores or ())))
        self.started = 0
        self.worked = 0.0
        self._process: _Process | None = None
        self._cancelled = False

    def call(self, step: str, arguments: dict[str, Any], seconds: float, log: Path | None = None) -> Any:
        """Run one step and return its result (plain JSON).

        Raises:
            StepFailed: the step said no, or the process ended or was ended; the next call starts afresh.
        """
        process = self._ready()
        fresh = process.steps == 0
        kills_before = _oom_kills()
        process.steps += 1
        log = log or self.folder / "worker.log"
        try:
            wire.send(process.request, {"step": step, "arguments": arguments, "log": str(log)})
            reply = self._await(process, seconds)
        except wire.Closed:
            raise self._post_mortem(process, kills_before, fresh) from None
        except StepFailed as failed:
            failed.fresh = fresh
            raise
        except BaseException:  # an interrupt leaves a reply in the pipe that the next call must not read
            self.close()
            raise
        self.worked += reply["seconds"]
        self._recycle(process, reply.get("device_bytes", 0))
        if "error" in reply:
            raise _said_no(reply, fresh)
        return reply["result"]

    def restart(self) -> None:
        """Make sure that the next step runs in a new process."""
        if self._process is not None and self._process.steps:
            self.close()

    def cancel(self) -> None:
        """From another thread: make a call that is under way, and every later one, raise `Cancelled` soon."""
        self._cancelled = True

    def close(self) -> None:
        """End the child and everything it started; safe to call again."""
        process, self._process = self._process, None
        if process is not None:
            _kill_group(process.popen)
            process.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ready(self) -> _Process:
        self._stop_if_cancelled()
        if self._process is None:
            self.started += 1
            started = _spawner().submit(_spawn, self.folder, self._variables(), self.cores)
            self._process = started.result()
            self._greet(self._process)
        return self._process

    def _greet(self, process: _Process) -> None:
        """Wait for the interpreter, so that its start on a busy machine is not taken from a step's time."""
        try:
            self._await(process, START_SECONDS)
        except (wire.Closed, StepFailed) as error:
            self.close()
            said = (self.folder / "worker.log").read_text(errors="replace").strip()[-2000:]
            raise EnvironmentBroken(f"the worker process did not start: {error}\n{said}") from error

    def _variables(self) -> dict[str, str]:
        return worker_variables() | self.variables

    def _await(self, process: _Process, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while True:
            self._stop_if_cancelled()
            ready = wire.readable([process.reply, process.pidfd], WATCH_SECONDS)
            if process.reply in ready:
                return self._answer(process, seconds)
            if process.pidfd in ready:
                raise wire.Closed("the process ended")
            used = _resident(process.popen.pid)
            if used > self.memory_limit:
                self.close()
                reason = f"used {_gib(used)} of memory, over the worker's limit of {_gib(self.memory_limit)}"
                raise StepFailed(Outcome.OUT_OF_MEMORY, reason)
            if time.monotonic() > deadline:
                self.close()
                raise StepFailed(Outcome.TIMED_OUT, f"did not end within {seconds:g} s")

    def _stop_if_cancelled(self) -> None:
        if self._cancelled:
            self.close()
            raise Cancelled("the step was given up, since the run ends")

    def _answer(self, process: _Process, seconds: float) -> dict[str, Any]:
        try:
            return wire.receive(process.reply, time.monotonic() + ANSWER_SECONDS)
        except wire.Late as late:
            self.close()
            reason = f"did not end within {seconds:g} s: its answer broke off ({late})"
            raise StepFailed(Outcome.TIMED_OUT, reason) from None

    def _post_mortem(self, process: _Process, kills_before: int, fresh: bool) -> StepFailed:
        """Name how the child ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.popen.wait(timeout=5)
        code = process.popen.poll()
        self.close()
        if code is None:
            return StepFailed(Outcome.CRASHED, "closed its pipe and went on running", fresh=fresh)
        if code >= 0:
            reason = f"the process ended with exit code {code} and no result"
            return StepFailed(Outcome.FAILED, reason, fresh=fresh)
        name = signal.Signals(-code).name
        if -code != signal.SIGKILL:
            return StepFailed(Outcome.CRASHED, f"crashed ({name})", fresh=fresh)
        if _oom_kills() > kills_before:
            return StepFailed(Outcome.OUT_OF_MEMORY, "killed by the kernel: out of memory", fresh=fresh)
        return StepFailed(Outcome.KILLED, f"killed ({name}) by somebody else", fresh=fresh)

    def _recycle(self, process: _Process, on_device: int) -> None:
        resident = _resident(process.popen.pid)
        process.first_rss = process.first_rss or resident
        process.first_device = process.first_device or on_device
        growth = max(resident - process.first_rss, on_device - process.first_device)
        if process.steps >= RECYCLE_STEPS or growth > RECYCLE_GROWTH:
            self.close()


def _said_no(reply: Mapping[str, Any], fresh: bool) -> StepFailed:
    memory = reply["error"] == "MemoryError" or lacks_memory(str(reply["message"]))
    late = reply["error"] == "TimeoutError"  # a backend that watches the time itself
    outcome = Outcome.OUT_OF_MEMORY if memory else Outcome.TIMED_OUT if late else Outcome.FAILED
    return StepFailed(outcome, str(reply["message"]), error=str(reply["error"]), fresh=fresh)


@lru_cache(maxsize=1)
def _spawner() -> ThreadPoolExecutor:
    # PR_SET_PDEATHSIG fires when the thread that started the child ends, and Prefect runs flows and tasks
    # in threads that come and go; this one lives as long as the process.
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="routetune-spawner")


def _spawn(folder: Path, variables: dict[str, str], cores: str = "") -> _Process:
    folder.mkdir(parents=True, exist_ok=True)
    child_reads, request = os.pipe()
    reply, child_writes = os.pipe()
    command = [sys.executable, "-P", "-m", "routetune.tasks.engines.child"]
    try:
        with (folder / "worker.log").open("ab") as log:
            popen = subprocess.Popen(
                [*command, str(child_reads), str(child_writes), str(os.getpid()), cores],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=variables,
                pass_fds=(child_reads, child_writes),
                process_group=0,
            )
    except BaseException:
        os.close(request)
        os.close(reply)
        raise
    finally:
        os.close(child_reads)
        os.close(child_writes)
    _live.add(popen)
    return _Process(popen, os.pidfd_open(popen.pid), request, reply)


_live: set[subprocess.Popen[bytes]] = set()


@atexit.register
def _end_all() -> None:
    for popen in tuple(_live):
        _kill_group(popen)


def _kill_group(popen: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the child, its group, and descendants that left the group."""
    _live.discard(popen)
    descendants: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        descendants = psutil.Process(popen.pid).children(recursive=True)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(popen.pid, signal.SIGKILL)
    for process in descendants:
        with contextlib.suppress(psutil.Error):
            process.kill()
    popen.wait()


def _resident(pid: int) -> int:
    """Bytes of resident memory of a process; 0 when it is gone."""
    # Not psutil, nor the children too: this runs ten times a second beside a measurement.
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _oom_kills() -> int:
    """How often the kernel has killed for memory since boot, or 0 where it does not say."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
