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
from routetune.tasks.store.keys import code_digest

REWRITE = "routetune.tasks.engines.qdq:rewrite"


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

    A placement is rewritten at most once while the store knows it: its digest is kept, its bytes are not, so
    that a model of many places fills no disk. `model_of` writes them again for a build.
    """
    rest, placement = split(route, bench.subject.model)
    if placement is None:
        return Source(bench.subject.model.digest, rest)
    if failure := calibration_of(bench).get("failure"):
        return Source("", rest, placement, failure)
    key = _key(bench, placement)
    value = bench.answer(key, lambda: ({"model": _write(bench, placement)}, [])).value
    if "failure" in value:
        return Source("", rest, placement, value["failure"])
    return Source(value["model"]["digest"], rest, placement)


def model_of(bench: Bench, source: Source) -> Path:
    """The file to build from; `discard` takes it away again where it is a rewritten one."""
    if source.placement is None:
        return bench.subject.model.path
    path = _path(bench, source.placement)
    if not path.exists():
        found = _write(bench, source.placement)["digest"]
        if found != source.digest:
            raise OSError(f"rewriting the model gave {found} this time and {source.digest} before; run again")
    return path


def discard(bench: Bench, source: Source) -> None:
    """Free the room of a rewritten model once its route is built."""
    if source.placement is not None:
        _path(bench, source.placement).unlink(missing_ok=True)


def _key(bench: Bench, placement: Placement) -> dict[str, Any]:
    calibration = calibration_of(bench)
    return bench.key(
        "rewrite",
        code_digest("routetune.tasks.engines.qdq"),
        prepared=calibration["prepared"],
        ranges=calibration["ranges"],
        placement=placement.as_order(),
        settings=_settings(bench),
    )


def _write(bench: Bench, placement: Placement) -> dict[str, Any]:
    calibration = calibration_of(bench)
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


def _path(bench: Bench, placement: Placement) -> Path:
    """One for each thread: two routes of one placement may be built at the same time."""
    name = f"rewritten-{canonical.digest(placement.as_order())[:16]}-{bench.fleet.number}.onnx"
    return bench.folder / name
