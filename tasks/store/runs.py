"""Runs: one tuning of one target in one environment, from its start to how it ended."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from routetune.tasks.canonical import digest
from routetune.tasks.errors import BadInput, RoutetuneError
from routetune.tasks.store import names
from routetune.tasks.store.files import Damaged, put_away
from routetune.tasks.store.locks import Busy, Lock, acquire, is_held
from routetune.tasks.store.mirror import Mirror, write_shared
from routetune.tasks.store.sealed import is_sealed, read_sealed, seal

SCHEMA = 1
RUNNING, FINISHED, FAILED, INTERRUPTED = "running", "finished", "failed", "interrupted"
#: A killed run leaves "running" behind; both are gone on with by the next run of the same bound-to.
UNFINISHED = (RUNNING, INTERRUPTED)
_FILE = re.compile(rf"runs/{names.RUN}\.json")
#: Seconds to wait for a lock that should be free, since somebody may just look at it.
_LOOK = 0.2


class RunInProgress(RoutetuneError):
    """Another process is tuning the same target in the same environment right now."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What is on the disk about a run.

    Attributes:
        id: sorts by the time of its start.
        target: name of the target.
        bound_to: everything the run's results depend on, as a visible dict.
        starts: {"at", "pid"} of each process that worked on it; more than one when it was gone on with.
        status: "running" (also after a kill), "finished", "failed" or "interrupted".
        reason: why it failed or was interrupted.
        ended_at: ISO time in UTC, or None.
        summary: plain JSON of whoever finished it.
    """

    id: str
    target: str
    bound_to: dict[str, Any]
    starts: list[dict[str, Any]]
    status: str = RUNNING
    reason: str = ""
    ended_at: str | None = None
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def unfinished(self) -> bool:
        return self.status in UNFINISHED

    @property
    def device_seconds(self) -> float:
        """Seconds for which the process that ended it had the device; 0 where none did, as after a kill.

        A run is opened when the device is locked, and ends before that is given back.
        """
        if self.ended_at is None:
            return 0.0
        return (datetime.fromisoformat(self.ended_at) - self.started_at).total_seconds()

    @property
    def started_at(self) -> datetime:
        """When the last process began to work on it."""
        return datetime.fromisoformat(str(self.starts[-1]["at"]))


class Run:
    """A run that this process works on; a context manager that records how it ended.

    Leaving it on an exception records "failed" with its message, or "interrupted" for one that is no
    Exception (Ctrl-C); leaving it otherwise records "finished", unless `finish` was called before.
    """

    def __init__(self, runs: Runs, record: RunRecord, lock: Lock) -> None:
        self._runs = runs
        self._lock = lock
        self.record = record

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def is_continued(self) -> bool:
        """Whether an earlier process worked on this run, so that it may have records already."""
        return len(self.record.starts) > 1

    def finish(self, status: str, summary: Mapping[str, Any] | None = None, reason: str = "") -> None:
        """Record how the run ended, and let others tune the target.

        Args:
            status: "finished", "failed" or "interrupted".
            summary: plain JSON.
            reason: why it failed or was interrupted.
        """
        if status not in (FINISHED, FAILED, INTERRUPTED):
            raise ValueError(f"a run ends as {FINISHED}, {FAILED} or {INTERRUPTED}, not as {status!r}")
        if self.record.status != RUNNING:
            raise ValueError(f"run {self.id} has already ended as {self.record.status!r}")
        self.record = replace(
            self.record, status=status, reason=reason, ended_at=_now(), summary=dict(summary or {})
        )
        try:
            self._runs.write(self.record)
        finally:
            self._lock.release()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.record.status != RUNNING:
            return
        if error is None:
            self.finish(FINISHED)
        else:
            reason = str(error) or type(error).__name__
            self.finish(FAILED if isinstance(error, Exception) else INTERRUPTED, reason=reason)


class Runs:
    """The runs under `root`, the folder of the store.

    A mirror offers the runs that came to an end, since those never change again, and fetches those of others.
    """

    def __init__(self, root: Path, mirror: Mirror | None = None) -> None:
        self.root = root
        self.mirror = mirror
        self.folder = root / "runs"
        self._pulled = False

    def open(self, target: str, bound_to: Mapping[str, Any], timeout: float | None = 0.0) -> Run:
        """Start a run, or go on with the latest unfinished one of the same target and bound-to.

        The run is held until it is finished or this process ends, however it ends.

        Args:
            bound_to: everything the results depend on; plain JSON.
            timeout: seconds to wait for another process that is tuning the same; None waits for ever.

        Raises:
            RunInProgress: another process is tuning the same.
        """
        lock = self._hold(names.target(target), bound_to, timeout)
        try:
            mine = None
            for record in self.list(target):
                if not record.unfinished:
                    continue
                if digest(record.bound_to) == digest(bound_to):
                    mine = record
                else:
                    self._mark_if_dead(record)
            start = {"at": _now(), "pid": os.getpid()}
            if mine is None:
                mine = RunRecord(self._new_id(), target, dict(bound_to), [start])
            else:
                mine = replace(
                    mine, starts=[*mine.starts, start], status=RUNNING, reason="", ended_at=None, summary={}
                )
            self.write(mine)
        except BaseException:
            lock.release()
            raise
        return Run(self, mine, lock)

    def list(self, target: str | None = None) -> list[RunRecord]:
        """Runs, oldest first, of one target or all. Damaged ones are set aside with a warning.

        Raises:
            BadInput: a newer routetune wrote one.
        """
        self._pull()
        found = [self._read(path) for path in sorted(self.folder.glob("*.json"))]
        records = [record for record in found if record and target in (None, record.target)]
        return sorted(records, key=lambda record: (str(record.starts[0]["at"]), record.id))

    def live(self) -> tuple[RunRecord, ...]:
        """The runs that a process works on right now. Raises as `list`."""
        running = (record for record in self.list() if record.status == RUNNING)
        return tuple(record for record in running if is_held(self._lock(record.target, record.bound_to)))

    @contextmanager
    def left(self, run: str) -> Iterator[bool]:
        """Whether nobody works on a run, or it is none; if so, nobody begins to before the context ends."""
        record = self._read(self._path(run)) if names.is_run(run) else None
        if record is None:
            yield True
            return
        try:
            lock = self._hold(record.target, record.bound_to, 0.0)
        except RunInProgress:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def get(self, run: str) -> RunRecord:
        """One run. Raises BadInput when there is no such run, or it is damaged."""
        if not self._path(run).exists():
            self._pull()
        record = self._read(self._path(run))
        if record is None:
            raise BadInput(f"there is no run {run!r} in the store {self.root}")
        return record

    def write(self, record: RunRecord) -> None:
        """Put a run on the disk; readers see the earlier state or this one."""
        raw = seal({"schema": SCHEMA, **asdict(record)}, indent=2)
        write_shared(None if record.unfinished else self.mirror, self._path(record.id), raw)

    def _pull(self) -> None:
        """Once for each opened store: a run of another host that ends meanwhile is the next one's to see."""
        if self.mirror is not None and not self._pulled:
            self._pulled = True
            self.mirror.pull("runs", _FILE, is_sealed)

    def _path(self, run: str) -> Path:
        return self.folder / f"{names.run(run)}.json"

    def _new_id(self) -> str:
        while True:
            name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.urandom(4).hex()}"
            if not self._path(name).exists():
                return name

    def _hold(self, target: str, bound_to: Mapping[str, Any], timeout: float | None) -> Lock:
        # The lock is on what is tuned, not on the run's id: so two processes cannot start two runs of it.
        # Who only looks whether it is held has it for a moment, and must not be taken for a run.
        patience = None if timeout is None else max(timeout, _LOOK)
        try:
            return acquire(self._lock(target, bound_to), f"tuning {target}", patience)
        except Busy as busy:
            raise RunInProgress(f"target {target!r} is being tuned right now: {busy}") from None

    def _lock(self, target: str, bound_to: Mapping[str, Any]) -> Path:
        name = digest({"run": [target, dict(bound_to)]})
        return self.root / "locks" / f"{name}.lock"

    def _mark_if_dead(self, record: RunRecord) -> None:
        """A killed run of an earlier state of the target will never be gone on with: say how it ended."""
        if record.status != RUNNING:
            return
        try:
            lock = self._hold(record.target, record.bound_to, 0.0)
        except RunInProgress:
            return
        try:
            self.write(replace(record, status=INTERRUPTED, reason="its process was killed", ended_at=_now()))
        finally:
            lock.release()

    def _read(self, path: Path) -> RunRecord | None:
        try:
            content = read_sealed(path, SCHEMA, "run")
            content.pop("schema")
            record = RunRecord(**content)
            _check_parts(record)
            if record.id != path.stem or not record.starts:
                raise Damaged("it is not the run that its name says")
            return record
        except FileNotFoundError:
            return None
        except (Damaged, TypeError) as damage:
            put_away(self.root, path, "run", damage)
            return None


def _check_parts(record: RunRecord) -> None:
    """Raise Damaged where a part is not what `write` writes."""
    bound: Any = record.bound_to
    parts = [bound.get(name, {}) for name in ("target", "environment")] if isinstance(bound, dict) else []
    dicts: list[Any] = [bound, record.summary, *parts]
    starts: Any = record.starts
    if not all(isinstance(text, str) for text in (record.id, record.target, record.status, record.reason)):
        raise Damaged("its words are none")
    if not isinstance(starts, list) or not all(isinstance(part, dict) for part in [*dicts, *starts]):
        raise Damaged("its parts are not tables")
    try:
        for start in starts:
            datetime.fromisoformat(start.get("at", ""))
        _ = record.device_seconds if starts else None  # the difference of both times
    except (TypeError, ValueError) as error:
        raise Damaged(f"it does not say when it was started or ended: {error}") from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
