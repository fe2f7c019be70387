"""An outpost: a device of this node that works for a run on another machine, in a process of a cluster.

It knows nothing of the cluster. Files come and go as bytes with their SHA-256; all else is plain JSON.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
from routetune.tasks.devices import MEMORY_SHARE, device_name
from routetune.tasks.engines.worker import StepFailed, Worker
from routetune.tasks.errors import RoutetuneError
from routetune.tasks.store.files import hash_file, write_atomically
from routetune.tasks.store.keys import code_digest
from routetune.tasks.store.locks import BusyDevice, device_lock
from routetune.tasks.subject import today
from routetune.tasks.targets import fusions
from routetune.tasks.targets.changes import unlike
from routetune.tasks.targets.devices import cores_of
from routetune.tasks.targets.environment import keyed_variables

#: What steps do: where this code differs, a result from here would be filed under the code of there.
STEPS = (
    "routetune.tasks.engines.steps",
    "routetune.tasks.engines.reference",
    "routetune.tasks.engines.calibration",
    "routetune.tasks.engines.qdq",
    "routetune.tasks.verdicts.checks",
    "routetune.tasks.verdicts.steps",
)
#: Bytes of files that are kept for later steps; the ones not used for longest go first.
ROOM = 16 * 2**30
#: Bytes of a step's log that travel.
LOG = 1 << 20


class Outpost:
    """One device of this node, locked, and a worker on it.

    Every answer is plain JSON, or bytes: what goes wrong with a step is data here, and an exception there.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        name = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="routetune-"))
        self._folder = Path(name)
        for part in ("files", "run", "caches"):
            (self._folder / part).mkdir()
        self._worker: Worker | None = None

    def open(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Take a device for a run.

        Args:
            order: "backend"; "devices", of which the first that is free is taken; "environment", the fields
                of the run's; "variables", the keyed ones of the run; "code", see `code`; "fusions", what
                fuses attention, "" where nothing may; "files", path -> SHA-256 of what must be the same here;
                "slots", workers of this node; "what", for who finds it locked.

        Returns: {"device", "folder"}; or {"device", "refused": why}, with "busy" where that passes.
        """
        node = platform.node()
        try:
            _take_variables(order["variables"])
            device = self._locked(order["devices"], order["what"])
            named = f"{node}: {device_name(device)}"
            if problem := _problem(order, device):
                return {"device": named, "refused": problem}
        except (RoutetuneError, OSError) as error:
            return {"device": node, "refused": str(error), "busy": isinstance(error, BusyDevice)}
        limit = int(psutil.virtual_memory().available * MEMORY_SHARE / order["slots"])
        self._worker = Worker(self._folder / "worker", None, limit, cores_of(device))
        self._stack.enter_context(self._worker)
        return {"device": named, "folder": str(self._folder)}

    def missing(self, wanted: Mapping[str, Sequence[str]]) -> list[str]:
        """Those bundles, id -> names of files, that are not here whole; the others are kept for a while."""
        absent = []
        for bundle, names in wanted.items():
            files = [self._folder / "files" / bundle / name for name in names]
            if all(file.exists() for file in files):
                os.utime(self._folder / "files" / bundle)
            else:
                absent.append(bundle)
        return absent

    def put(self, place: str, digest: str, content: bytes) -> None:
        """Write a file of a bundle, "files/<id>/<name>", or one of the run, "run/<name>".

        Raises:
            ValueError: the bytes are not those of the digest, or the place is not ours.
        """
        if hashlib.sha256(content).hexdigest() != digest:
            raise ValueError(f"the bytes that came for {place} do not have SHA-256 {digest}")
        path = self._inside(place)
        write_atomically(path, content)

    def call(
        self, step: str, arguments: dict[str, Any], seconds: float, named: Mapping[str, str | None]
    ) -> dict[str, Any]:
        """Run a step.

        Args:
            named: the files of the run that the step names -> their SHA-256 there, None where there is none.

        Returns: "result", or "failed": the fields of StepFailed; "files": name -> bytes of each named file
            that is not what it was; "log": what the step printed.
        """
        assert self._worker is not None
        for name, digest in named.items():
            if digest is None:
                self._inside(f"run/{name}").unlink(missing_ok=True)
        log = self._folder / "step.log"
        log.unlink(missing_ok=True)
        try:
            answer: dict[str, Any] = {"result": self._worker.call(step, arguments, seconds, log)}
        except StepFailed as failed:
            told = {"outcome": failed.outcome.value, "reason": failed.reason}
            answer = {"failed": told | {"error": failed.error, "fresh": failed.fresh}}
        except RoutetuneError as broken:
            answer = {"broken": str(broken)}
        return answer | {"files": self._changed(named), "log": _head(log)}

    def restart(self) -> None:
        """Have the next step done in a new process."""
        if self._worker is not None:
            self._worker.restart()

    def close(self) -> None:
        """End the worker, free the device, and delete what came."""
        self._stack.close()

    def _locked(self, devices: Sequence[str], what: str) -> str:
        """The first device that is free; it stays locked as long as this process lives.

        Raises:
            BusyDevice: none is.
        """
        taken = []
        for device in devices:
            try:
                self._stack.enter_context(device_lock(device_name(device), wait=False, what=what))
            except BusyDevice as busy:
                taken.append(str(busy))
            else:
                return device
        raise BusyDevice("; ".join(taken))

    def _changed(self, named: Mapping[str, str | None]) -> dict[str, bytes]:
        """The named files that the step wrote; a copy of each stays, since an engine is wanted again."""
        found = {}
        for name, before in named.items():
            path = self._inside(f"run/{name}")
            if not path.exists() or (digest := hash_file(path)) == before:
                continue
            kept = self._folder / "files" / digest / digest
            kept.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, kept)
            found[name] = path.read_bytes()
        self._make_room()
        return found

    def _make_room(self) -> None:
        bundles = sorted((self._folder / "files").iterdir(), key=lambda one: one.stat().st_mtime)
        sizes = {one: sum(file.stat().st_size for file in one.rglob("*")) for one in bundles}
        over = sum(sizes.values()) - ROOM
        for bundle in bundles:
            if over <= 0:
                break
            shutil.rmtree(bundle)
            over -= sizes[bundle]

    def _inside(self, place: str) -> Path:
        path = Path(os.path.normpath(self._folder / place))
        if not any(self._folder / part in path.parents for part in ("files", "run")):
            raise ValueError(f"{place!r} is no place for a file")
        return path


def code(backend: str) -> dict[str, str]:
    """What steps are made of here: module -> digest of its code with all that it imports.

    Raises:
        BadInput: a backend of the user's own has no source here.
    """
    module, own, _ = backend.partition(":")
    return {name: code_digest(name) for name in (*STEPS, *([module] if own else []))}


def _problem(order: Mapping[str, Any], device: str) -> str:
    """Why a device must not time for a run; "" where it may."""
    today.cache_clear()
    here = today(order["backend"], device).fields
    if how := unlike(order["environment"], here):
        return f"its environment is not that of the run ({how})"
    for module, digest in code(order["backend"]).items():
        if digest != order["code"][module]:
            return f"the code of {module} is another there: install the same version on each node"
    wanted, found = order["fusions"], fusions.version()
    if wanted and found != wanted:
        return f"what fuses attention is {found or 'not installed'} there, and {wanted} where the run is"
    for path, digest in order["files"].items():
        try:
            found = hash_file(Path(path))
        except OSError as error:
            return (
                f"{path} cannot be read there ({error.strerror}); it must be at the same place on each node"
            )
        if found != digest:
            return f"{path} has SHA-256 {found} there, and {digest} where the run is"
    return ""


def _take_variables(variables: Mapping[str, str]) -> None:
    """Have the keyed variables of the run, and no others: a cluster sets some, such as OMP_NUM_THREADS."""
    for name in keyed_variables(os.environ, on_gpu=True):
        del os.environ[name]
    os.environ.update(variables)


def _head(log: Path) -> bytes:
    if not log.exists():
        return b""
    with log.open("rb") as file:
        return file.read(LOG)
