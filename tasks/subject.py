"""What is tuned and where: a target, its model, and today's environment. Cheap enough for `status`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from routetune.tasks.engines.base import Backend, default_device, open_backend
from routetune.tasks.engines.places import place_knobs
from routetune.tasks.errors import BadInput, RoutetuneError
from routetune.tasks.reading import Look, look
from routetune.tasks.routes.knob import KnobDatabase
from routetune.tasks.routes.space import open_space
from routetune.tasks.targets.binding import bound_to
from routetune.tasks.targets.devices import devices_of, in_worker, plain, refuse_unlike
from routetune.tasks.targets.environment import Environment, observe
from routetune.tasks.targets.inputs import input_sets, inputs_digest
from routetune.tasks.targets.judging import Accuracy
from routetune.tasks.targets.memo import Memo, no_memo
from routetune.tasks.targets.model import ModelInfo, inspect_model
from routetune.tasks.targets.rules import check_accuracy_rules
from routetune.tasks.targets.schema import Target, load_target


@dataclass(frozen=True, slots=True)
class Subject:
    """One target as it stands now.

    Attributes:
        target: the validated target file.
        model: the model behind it, checked at intake.
        backend: the backend's name, "auto" resolved.
        device: what the backend calls it in a worker: "cpu" or "cuda:N". With several GPUs each worker sees
            one alone, as "cuda:0".
        devices: where the workers of a run are, as the target names them: "cpu", "cpu:0-3", "cuda:N".
        environment: what a result is bound to besides the target.
        bound_to: the visible dict of all the above, as manifests keep it.
        seen: what the file system said of the files that results depend on before they were read, by path.
    """

    target: Target
    model: ModelInfo
    backend: str
    device: str
    devices: tuple[str, ...]
    environment: Environment
    bound_to: dict[str, Any]
    seen: dict[Path, Look]

    @property
    def key(self) -> str:
        """The environment's key: with the target's name it addresses a publication."""
        return self.environment.key


def open_subject(path: Path | str, memo: Memo = no_memo) -> Subject:
    """Read and check everything that can be checked before a build.

    With a `memo` files that nobody wrote to since are not read again: for looks, not for builds.

    Raises:
        BadInput: the target, its model or its inputs cannot be used; the message names what to change.
    """
    target = load_target(Path(path))
    backend, devices = backend_and_devices(target)
    # First of all, since a host without the device may hold neither the model nor its inputs.
    environment = _one_environment(target, backend, devices)
    seen = {path: look(path) for path in _given(target)}
    model = inspect_model(target, memo)
    _refuse_too_large(target, model, backend)
    seen |= zip(model.files, model.seen, strict=True)
    bound = bound_to(target, model, environment, inputs_digest(target, memo), memo)
    return Subject(target, model, backend, in_worker(devices), devices, environment, bound, seen)


def _refuse_too_large(target: Target, model: ModelInfo, backend: str) -> None:
    """Raise BadInput where no engine of the model can be kept, whatever its route: every build would fail."""
    largest = getattr(open_backend(backend), "largest_engine", None)
    if largest is not None and model.kept_bytes > largest:
        raise BadInput(
            f"{target.path}: every engine of model {model.path} would hold at least {model.kept_bytes} bytes "
            f"of weights, but an engine of backend {backend} is one file of at most {largest}. Store the "
            "weights in fewer bits (float16, or 8-bit with DequantizeLinear) or split the model, and tune "
            "that; or tune it with another backend"
        )


def judged_by(subject: Subject, tolerance: float, metric: str | None = None) -> Subject:
    """The subject with another ε, and perhaps another metric, than its target file has.

    What it is bound to says so: a publication made by it is not fresh beside the file, and `status` names
    the field.

    Raises:
        BadInput: the metric does not exist, or the model cannot be judged by it.
    """
    target = subject.target
    stated = target.accuracy.model_dump() | {"tolerance": tolerance}
    try:
        accuracy = Accuracy.model_validate(stated | ({"metric": metric} if metric else {}))
    except ValueError as error:
        raise BadInput(f"target {target.name!r}: metric {metric!r} cannot be used: {error}") from error
    amended = target.model_copy(update={"accuracy": accuracy})
    check_accuracy_rules(amended, subject.model.outputs)
    bound = bound_to(amended, subject.model, subject.environment, inputs_digest(amended))
    return replace(subject, target=amended, bound_to=bound)


def check_unchanged(subject: Subject) -> None:
    """Make sure that what was just built or run is still what the digests were taken of.

    Raises:
        RoutetuneError: a file of it changed meanwhile.
    """
    # Not the digest: files that were swapped for one build and put back have the right one again.
    moved = next((path for path, seen in subject.seen.items() if look(path) != seen), None)
    if moved is None:
        return
    raise RoutetuneError(
        f"target {subject.target.name!r}: {moved} was written while it was being tuned; nothing made since "
        "was kept. Tune again once it is complete"
    )


def _given(target: Target) -> list[Path]:
    """The files beside the model and its sidecars that results depend on."""
    return [*(target.reference.inputs or ()), *target.reference.saved, *target.engine.plugins]


def resolve(target: Target) -> tuple[str, str]:
    """The backend that the target means on this machine, and the first of its devices."""
    backend, devices = backend_and_devices(target)
    return backend, devices[0]


def backend_and_devices(target: Target) -> tuple[str, tuple[str, ...]]:
    """The backend and every device that the target means on this machine."""
    device, backend = target.engine.device, target.backend
    if backend == "auto":
        on_cpu = plain(device) == "cpu"
        backend = "tensorrt" if not on_cpu and can_tune_tensorrt() else "onnxruntime"
    return backend, devices_of(default_device(backend) if device == "auto" else device)


def _one_environment(target: Target, backend: str, devices: tuple[str, ...]) -> Environment:
    """The environment of all the devices; one that cannot be told is left to who refuses that.

    Raises:
        BadInput: they differ.
    """
    first = today(backend, devices[0])
    if not first.cannot_tell:
        found = {device: today(backend, device).fields for device in devices}
        refuse_unlike(f'{target.path}: engine.device = "{target.engine.device}"', found)
    return first


@lru_cache(maxsize=1)
def can_tune_tensorrt() -> bool:
    """Whether TensorRT can be imported, has compiler knobs, and a GPU is there; asked from cheap to dear."""
    from routetune.tasks.engines import cuda
    from routetune.tasks.engines.tensorrt.library import tensorrt_found

    if not (tensorrt_found() and cuda.present()):
        return False
    try:
        database = open_backend("tensorrt").knobs(default_device("tensorrt"))
    except BadInput as reason:
        warnings.warn(f"tuning on ONNX Runtime instead: {reason}", stacklevel=2)
        return False
    if "-" in database.notes:
        warnings.warn(f"tuning on ONNX Runtime instead: {database.notes['-']}", stacklevel=2)
        return False
    return True


def knobs_of(subject: Subject) -> KnobDatabase:
    """Every knob that a route of the subject may hold: the backend's, and the places of the model."""
    return target_knobs(subject.target, subject.model, subject.backend, subject.device)


def target_knobs(target: Target, model: ModelInfo, backend: str, device: str) -> KnobDatabase:
    """As `knobs_of`, without an environment.

    Raises:
        BadInput: the backend cannot do what [quantization] asks for.
    """
    if problem := target.quantization.problem_with(backend):
        raise BadInput(f"{target.path}: quantization: {problem}")
    device = plain(device)
    return open_backend(backend).knobs(device).merged(place_knobs(model, backend, device))


def check_inputs(subject: Subject) -> None:
    """Check what only a tune needs: the input sets and the routes.

    Raises:
        BadInput: an input does not fit the model, or a route expression is refused.
    """
    search = subject.target.search
    open_space(search.routes, knobs_of(subject), search.exclude)
    input_sets(subject.target, subject.model)


@lru_cache(maxsize=64)
def today(backend: str, device: str) -> Environment:
    """The environment of this process; it does not change while we run, and asking a library costs 0.2 s."""
    opened: Backend = open_backend(backend)
    return observe(backend, device, opened.versions(plain(device)))
