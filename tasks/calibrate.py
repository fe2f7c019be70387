"""Stage: the model that all placements are made from, and the ranges by which it is quantised."""

from __future__ import annotations

from typing import Any

from routetune.tasks.bench import Bench
from routetune.tasks.engines.places import Placement
from routetune.tasks.report import progress
from routetune.tasks.stage import stage
from routetune.tasks.store.keys import code_digest
from routetune.tasks.subject import check_unchanged
from routetune.tasks.targets.places import names_places

CALIBRATE = "routetune.tasks.engines.calibration:calibrate"


@stage("calibrate", of="input set")
def calibrate(bench: Bench, references: list[dict[str, Any]]) -> dict[str, Any]:
    """Prepare the model, and find its ranges on the inputs of the references where a route can ask for Q/DQ.

    They are the user's own inputs where there are any, else the drawn ones.

    Returns: the blobs "prepared" and "ranges", as `engines.calibration` makes them; or {"failure"}, of which
        each route that needs it then dies, and no other.
    """
    progress.tell(progress.Snapshot("calibration"))
    return _calibrated(bench, references, _asks_for_ranges(bench))


def is_needed(bench: Bench) -> bool:
    """Whether a route of the target's can ask for a rewritten model."""
    return names_places(bench.subject.target.search.routes)


def calibration_of(bench: Bench, placement: Placement) -> dict[str, Any]:
    """What a placement is made from; made now where nothing asked for it before.

    One without Q/DQ needs no ranges, so it does not fail where none can be found.
    """
    found = _calibrated(bench, bench.references, bool(placement.nodes) or _asks_for_ranges(bench))
    if "failure" in found and not placement.nodes:
        return _calibrated(bench, bench.references, ranges=False)
    return found


def _asks_for_ranges(bench: Bench) -> bool:
    """Whether a route of the target's can put Q/DQ around a node."""
    places = {place.name for place in bench.subject.model.places}
    return any(term.knob.name in places for term in bench.space.terms)


def _calibrated(bench: Bench, references: list[dict[str, Any]], ranges: bool) -> dict[str, Any]:
    if ranges not in bench.calibrations:
        sets = _chosen(references) if ranges else []
        bench.calibrations[ranges] = bench.answer(_key(bench, sets), lambda: _make(bench, sets)).value
    return bench.calibrations[ranges]


def _chosen(references: list[dict[str, Any]]) -> list[dict[str, Any]]:
    judged = [one for one in references if one["role"] != "probe"]
    return [one for one in judged if one["role"] == "user"] or judged


def _key(bench: Bench, sets: list[dict[str, Any]]) -> dict[str, Any]:
    quantization = bench.subject.target.quantization
    return bench.key(
        "calibrate",
        code_digest("routetune.tasks.engines.calibration"),
        model=bench.subject.model.digest,
        inputs=[one["inputs"] for one in sets],
        method=quantization.method(),
        per_channel=quantization.settings(bench.subject.backend)["per_channel"],
    )


def _make(bench: Bench, sets: list[dict[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    quantization = bench.subject.target.quantization
    own = f"calibration-{bench.fleet.number}-{len(sets)}"  # two devices may make both kinds at once
    files = {name: bench.folder / f"{own}.{name}" for name in ("prepared", "ranges")}
    order = {
        "model": str(bench.subject.model.path),
        **{name: str(file) for name, file in files.items()},
        "inputs": [str(bench.store.blobs.verified(one["inputs"])) for one in sets],
        "method": quantization.method(),
        "per_channel": quantization.settings(bench.subject.backend)["per_channel"],
        "plugins": [str(path) for path in bench.subject.target.engine.plugins],
    }
    bench.step(CALIBRATE, order)
    check_unchanged(bench.subject)
    blobs = {name: bench.store.blobs.put_file(file, move=True) for name, file in files.items()}
    return blobs, list(blobs.values())
