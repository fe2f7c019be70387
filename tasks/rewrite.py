"""The model that a route is built from: as written, or rewritten where the route's places say so."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from routetune.tasks import canonical
from routetune.tasks.bench import Bench
from routetune.tasks.calibrate import calibration_of
from routetune.tasks.engines.places import Placement, split
from routetune.tasks.routes.route import Route
from routetune.tasks.store.files import hash_file, mark_used
from routetune.tasks.store.keys import code_digest
from routetune.tasks.targets import fusions

REWRITE = "routetune.tasks.engines.qdq:rewrite"
#: Bytes of rewritten models that each device keeps beside the one being written: as large as one may be.
ROOM = 2**31


@dataclass(frozen=True, slots=True)
class Source:
    """What a backend builds one route from.

    Attributes:
        digest: of the model; part of the build's key. "" where there is none.
        route: what is left for the backend, without places.
        placement: what the model is rewritten by, or None.
        failure: why the model could not be rewritten, as entries keep it.
    """

    digest: str
    route: Route
    placement: Placement | None = None
    failure: dict[str, Any] | None = None


def source_of(bench: Bench, route: Route) -> Source:
    """Find out which model a route is built from.

    The store keeps the digest of a placement's model. Of the bytes only those used last are kept, and not
    beyond the run, so that a model of many places fills no disk; `model_of` writes them again for a build.
    """
    rest, placement = split(route, bench.subject.model)
    if placement is None:
        return Source(bench.subject.model.digest, rest)
    if failure := calibration_of(bench, placement).get("failure"):
        return Source("", rest, placement, failure)
    key = _key(bench, placement)
    value = bench.answer(key, lambda: ({"model": _write(bench, placement)}, [])).value
    if "failure" in value:
        return Source("", rest, placement, value["failure"])
    return Source(value["model"]["digest"], rest, placement)


def model_of(bench: Bench, source: Source) -> Path:
    """The file to build from: the model as written, or a rewritten one, which stays while there is ROOM."""
    if source.placement is None:
        return bench.subject.model.path
    path = _path(bench, source.placement)
    # What a process left that died while it wrote, or one of an earlier day, has the name and not the bytes.
    if path.exists() and hash_file(path) == source.digest:
        mark_used(path)
        return path
    found = _write(bench, source.placement)["digest"]
    if found != source.digest:
        raise OSError(f"rewriting the model gave {found} this time and {source.digest} before; run again")
    return path


def _key(bench: Bench, placement: Placement) -> dict[str, Any]:
    calibration = calibration_of(bench, placement)
    return bench.key(
        "rewrite",
        code_digest("routetune.tasks.engines.qdq"),
        prepared=calibration["prepared"],
        ranges=calibration["ranges"],
        placement=placement.as_order(),
        settings=_settings(bench),
        **({"fusions": fusions.version()} if placement.fused else {}),
    )


def _write(bench: Bench, placement: Placement) -> dict[str, Any]:
    _make_room(bench)
    calibration = calibration_of(bench, placement)
    files = {name: str(bench.store.blobs.verified(calibration[name])) for name in ("prepared", "ranges")}
    order = {
        "placement": placement.as_order(),
        "settings": _settings(bench),
        "output": str(_path(bench, placement)),
    }
    found: dict[str, Any] = bench.step(REWRITE, files | order)
    return found


def _settings(bench: Bench) -> dict[str, Any]:
    return bench.subject.target.quantization.settings(bench.subject.backend)


def _make_room(bench: Bench) -> None:
    """Delete the rewritten models that this thread used longest ago, down to ROOM."""
    files = bench.folder.glob(f"rewritten-*-{bench.fleet.number}.onnx*")
    room = ROOM
    for file in sorted(files, key=lambda one: one.stat().st_mtime_ns, reverse=True):
        room -= file.stat().st_size
        if room < 0:
            file.unlink()


def _path(bench: Bench, placement: Placement) -> Path:
    """One for each thread: two routes of one placement may be built at the same time."""
    name = f"rewritten-{canonical.digest(placement.as_order())[:16]}-{bench.fleet.number}.onnx"
    return bench.folder / name
