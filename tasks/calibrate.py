"""Stage: the ranges by which the model is quantised, found once on the reference inputs."""

from __future__ import annotations

from typing import Any

from routetune.tasks.bench import Bench
from routetune.tasks.report import progress
from routetune.tasks.stage import stage
from routetune.tasks.store.keys import code_digest
from routetune.tasks.subject import check_unchanged
from routetune.tasks.targets.places import names_places

CALIBRATE = "routetune.tasks.engines.calibration:calibrate"


@stage("calibrate", of="input set")
def calibrate(bench: Bench, references: list[dict[str, Any]]) -> dict[str, Any]:
    """Calibrate the model on the inputs of the references, and note it on the bench.

    They are the user's own inputs where there are any, else the drawn ones.

    Returns: the blobs "prepared" and "ranges", as `engines.calibration` makes them; or {"failure"}, of which
        each route with a place then dies, and no other.
    """
    progress.tell(progress.Snapshot("calibration"))
    # Without places there is nothing to find ranges for: the model is only prepared.
    sets = _chosen(references) if bench.subject.model.places else []
    answer = bench.answer(_key(bench, sets), lambda: _make(bench, sets))
    bench.calibration = answer.value
    return bench.calibration


def is_needed(bench: Bench) -> bool:
    """Whether a route of the target's can ask for a rewritten model."""
    return names_places(bench.subject.target.search.routes)


def calibration_of(bench: Bench) -> dict[str, Any]:
    """The run's calibration; made now where nothing asked for it before."""
    if bench.calibration is None:
        calibrate.fn(bench, bench.references)  # type: ignore[attr-defined]
    assert bench.calibration is not None
    return bench.calibration


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
    files = {name: bench.folder / f"calibration.{name}" for name in ("prepared", "ranges")}
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
