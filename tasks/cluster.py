"""Workers of a Ray cluster for one run: each an actor with one GPU, or some cores, of a node like this one.

Ray carries the calls, and pickles them on its way; what it brings is plain JSON and bytes.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from routetune.tasks.engines.attempts import Attempts
from routetune.tasks.engines.fleet import Fleet, Member
from routetune.tasks.engines.worker import START_SECONDS, Cancelled, StepFailed
from routetune.tasks.errors import BadInput, EnvironmentBroken
from routetune.tasks.luggage import Bundle, Luggage
from routetune.tasks.outpost import Outpost, code
from routetune.tasks.store.files import hash_file
from routetune.tasks.store.locks import BusyDevice
from routetune.tasks.subject import Subject
from routetune.tasks.targets.custom import custom_metric
from routetune.tasks.targets.devices import usable_cores
from routetune.tasks.targets.environment import keyed_variables
from routetune.tasks.trial import Outcome

#: A step's answer may come so much later than its own deadline before its node counts as hung.
GRACE = 60.0
#: A network that carries fewer bytes a second than this counts as hung, too.
SLOWEST = 5e6
#: How often a waiting thread looks whether the run is over, seconds.
_LOOK = 0.2


@dataclass
class Cluster:
    """What the workers of one run have in common.

    Attributes:
        ray: the module.
        order: as `Outpost.open` takes it.
        options: what Ray shall give each worker.
    """

    ray: Any
    luggage: Luggage
    order: dict[str, Any]
    options: dict[str, Any]

    def start(self, seconds: float, stop: Callable[[], None]) -> tuple[Any, dict[str, Any]]:
        """A new actor, and what it says of its device.

        Raises:
            EnvironmentBroken: no node had room for it in time, it may not time for this run, or it died.
        """
        actor = self.ray.remote(**self.options)(Outpost).remote()
        try:
            told = self.get(actor.open.remote(self.order), seconds, stop)
        except self.ray.exceptions.GetTimeoutError:
            self.ray.kill(actor)
            why = f"no node of the Ray cluster had {self.wanted} free within {seconds:g} s"
            raise EnvironmentBroken(why, {"busy": True}) from None
        except self.ray.exceptions.RayError as error:
            raise EnvironmentBroken(f"a worker of the Ray cluster did not start: {error}") from None
        if "refused" in told:
            self.ray.kill(actor)
            raise EnvironmentBroken(f"refused: {told['refused']}", told)
        return actor, told

    def get(self, reference: Any, seconds: float, stop: Callable[[], None]) -> Any:
        """The value of a reference; `stop` raises where nobody waits for it any more.

        Raises:
            GetTimeoutError: of Ray's, when it did not come in time.
            RayError: of Ray's, when the actor is gone.
        """
        left = seconds
        while True:
            stop()
            try:
                return self.ray.get(reference, timeout=min(_LOOK, left))
            except self.ray.exceptions.GetTimeoutError:
                left -= _LOOK
                if left <= 0:
                    raise

    @property
    def wanted(self) -> str:
        """What each worker takes, in words."""
        parts = [f"{self.options['num_cpus']} CPUs", f"{self.options['num_gpus']} GPUs"]
        return ", ".join(
            [*parts, *(f"{count} of {name!r}" for name, count in self.options["resources"].items())]
        )


@dataclass
class RayWorker:
    """A worker elsewhere, used like one of this machine's; one whose actor died is given another.

    Attributes:
        device: node and device, as records call it; known once the first actor has answered.
        patience: seconds to wait for room in the cluster.
        tell: called with the device, whenever that is another.
    """

    cluster: Cluster
    device: str = "a worker of the cluster"
    patience: float = START_SECONDS
    tell: Callable[[str], None] = field(default=lambda device: None)
    _actor: Any = None
    _there: str = ""
    _cancelled: bool = field(default=False)

    def call(self, step: str, arguments: dict[str, Any], seconds: float, log: Path | None = None) -> Any:
        """As `Worker.call`. An actor that is gone is KILLED: the step is tried again on a new one."""
        self.ready()
        errors = self.cluster.ray.exceptions
        try:
            answer = self._called(step, arguments, seconds)
        except errors.GetTimeoutError:
            self.close()
            raise StepFailed(
                Outcome.TIMED_OUT, f"{self.device} did not answer within {seconds:g} s"
            ) from None
        except errors.RayError as gone:
            self.close()
            why = str(gone).partition("\n")[0]
            raise StepFailed(
                Outcome.KILLED, f"the worker on {self.device} failed or is gone: {why}"
            ) from None
        if log is not None and answer["log"]:
            with log.open("ab") as file:
                file.write(answer["log"])
        if "broken" in answer:
            raise EnvironmentBroken(answer["broken"])
        if "failed" in answer:
            told = answer["failed"]
            outcome = Outcome(told["outcome"])
            raise StepFailed(outcome, told["reason"], error=told["error"], fresh=told["fresh"])
        return answer["result"]

    def ready(self) -> None:
        """Have an actor that is of the run's environment. Raises EnvironmentBroken where there is none."""
        self._stop()
        if self._actor is not None:
            return
        told: dict[str, Any] = {}
        try:
            self._actor, told = self.cluster.start(self.patience, self._stop)
            self._there = told["folder"]
        except EnvironmentBroken as broken:
            told = broken.details
            raise
        finally:
            self.device = told.get("device", self.device)
            self.tell(self.device)

    def restart(self) -> None:
        """Have the next step done in a new process; the actor stays."""
        if self._actor is not None:
            with suppress(self.cluster.ray.exceptions.RayError):
                self._get(self._actor.restart.remote())

    def cancel(self) -> None:
        """As `Worker.cancel`."""
        self._cancelled = True

    def close(self) -> None:
        """End the actor and its worker; its device is free at once."""
        actor, self._actor = self._actor, None
        if actor is not None:
            with suppress(self.cluster.ray.exceptions.RayError):
                # First of itself, so that it leaves no files; a hung one is killed all the same.
                self.cluster.ray.get(actor.close.remote(), timeout=2.0)
            self.cluster.ray.kill(actor)

    def _called(self, step: str, arguments: dict[str, Any], seconds: float) -> dict[str, Any]:
        luggage = self.cluster.luggage
        bundles: dict[str, Bundle] = {}
        names: set[str] = set()
        sent = luggage.packed(arguments, self._there, bundles, names)
        here = {name: luggage.run / name for name in sorted(names)}
        named = {name: hash_file(path) if path.exists() else None for name, path in here.items()}
        for missing in self._get(
            self._actor.missing.remote({one.id: [*one.files] for one in bundles.values()})
        ):
            for name, path in bundles[missing].files.items():
                self._put(f"files/{missing}/{name}", path)
        for name, path in here.items():
            if named[name] is not None:
                self._put(f"run/{name}", path)
        called = self._actor.call.remote(step, sent, seconds, named)
        answer: dict[str, Any] = self.cluster.get(called, seconds + GRACE, self._stop)
        for name, path in here.items():  # no other names: a node has no say in where files go
            if name in answer["files"]:
                path.write_bytes(answer["files"][name])
        return answer

    def _put(self, place: str, path: Path) -> None:
        content = path.read_bytes()
        sent = self._actor.put.remote(place, hashlib.sha256(content).hexdigest(), content)
        self._get(sent, len(content) / SLOWEST)

    def _get(self, reference: Any, more: float = 0.0) -> Any:
        return self.cluster.get(reference, GRACE + more, self._stop)

    def _stop(self) -> None:
        if self._cancelled:
            self.close()
            raise Cancelled("the step was given up, since the run ends")


@contextmanager
def cluster_fleet(
    subject: Subject, store: Path, folder: Path, count: int, patience: float | None = None
) -> Iterator[Fleet]:
    """`count` workers of the Ray cluster that RAY_ADDRESS names; ended at the end.

    Those that may not time for the run are taken out at once, with the reason.

    Args:
        folder: of the run.
        patience: seconds to wait for room in the cluster; a minute at most.

    Raises:
        BadInput: there is no Ray, no cluster, or it has no such resource; or every worker was refused.
        BusyDevice: there is no room for any.
    """
    cluster = _cluster(subject, Luggage(subject, store, folder))
    seconds = START_SECONDS if patience is None else min(patience, START_SECONDS)
    workers = [RayWorker(cluster, patience=seconds) for _ in range(count)]
    members = [Member(worker.device, at, Attempts(worker)) for at, worker in enumerate(workers)]
    for worker, member in zip(workers, members, strict=True):
        worker.tell = partial(setattr, member, "device")
    try:
        refused = _begin(workers)
        if len(refused) == count:
            told = "; ".join(f"{workers[number].device}: {why}" for number, why in refused.items())
            kind = BusyDevice if all(why.details.get("busy") for why in refused.values()) else BadInput
            raise kind(
                f"target {subject.target.name!r}: no worker of the Ray cluster may time for it: {told}"
            )
        fleet = Fleet(members)
        for number, why in refused.items():
            members[number].device += f", worker {number}"  # several may be of one node
            fleet.take_out(members[number], why)
        yield fleet
    finally:
        for worker in workers:
            worker.close()


def _begin(workers: Sequence[RayWorker]) -> dict[int, EnvironmentBroken]:
    """Start every worker at once; those that may not time for the run, by number, with the reason."""
    refused = {}
    with ThreadPoolExecutor(len(workers)) as threads:
        for number, begun in enumerate([threads.submit(worker.ready) for worker in workers]):
            try:
                begun.result()
            except EnvironmentBroken as broken:
                refused[number] = broken
    return refused


def _cluster(subject: Subject, luggage: Luggage) -> Cluster:
    fields, on_gpu = subject.environment.fields, subject.environment.is_gpu
    if subject.device not in ("cpu", "cuda:0"):
        raise BadInput(
            f'{subject.target.path}: engine.device = "{subject.device}" means nothing in a cluster, where '
            'each worker sees its own GPU alone: write "cuda:0"'
        )
    ray = _connect()
    kind = str(fields["gpu.name"] if on_gpu else fields["cpu.model"])
    has = ray.cluster_resources()
    if kind not in has:
        named = ", ".join(sorted(name for name in has if not name.startswith(("node:", "object_store"))))
        raise BadInput(
            f"target {subject.target.name!r} is tuned on {kind!r}, and the Ray cluster has no such resource "
            f"(it has {named}): start its nodes with --resources, as docs/operations.md shows"
        )
    custom = custom_metric(subject.target)
    files = [*subject.target.engine.plugins, *([custom.file] if custom else [])]
    gpus = [int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]]
    order = {
        "backend": subject.backend,
        "devices": ["cuda:0"] if on_gpu else list(subject.devices),
        "environment": dict(fields),
        "variables": keyed_variables(os.environ, on_gpu),
        "code": code(subject.backend),
        "fusions": subject.bound_to["target"].get("quantization", {}).get("fusions", ""),
        "files": {str(file): hash_file(file) for file in files},
        "slots": max([1, *gpus]) if on_gpu else len(subject.devices),
        "what": f"tuning {subject.target.name} for {platform.node()}",
    }
    cores = 1 if on_gpu else usable_cores(subject.devices[0]) or 1
    options = {"num_cpus": cores, "num_gpus": int(on_gpu), "resources": {kind: 1}}
    return Cluster(ray, luggage, order, options)


def _connect() -> Any:
    """Ray, connected: to the cluster of RAY_ADDRESS, to one that runs here, or as this process already is.

    Raises:
        BadInput: there is no Ray, or no cluster.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise BadInput(f"workers of a cluster need Ray ({error}): pip install 'routetune[ray]'") from None
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS", "auto")
        host, colon, port = address.rpartition(":")
        try:
            if colon and port.isdecimal() and "/" not in host:  # Ray itself would try for minutes
                socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, ValueError, RuntimeError) as error:
            raise BadInput(
                f"no Ray cluster answers at {address!r} ({error}): start one with 'ray start --head', or "
                "name it in RAY_ADDRESS"
            ) from None
    return ray
