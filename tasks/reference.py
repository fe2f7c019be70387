"""Stage: the outputs that define accuracy, made by the model as it was written."""

from __future__ import annotations

import warnings
from typing import Any

from routetune.tasks.arrays import arrays_digest, save_arrays
from routetune.tasks.bench import Bench
from routetune.tasks.engines.reference import RUNTIME
from routetune.tasks.errors import BadInput
from routetune.tasks.report import progress
from routetune.tasks.stage import stage
from routetune.tasks.store.keys import code_digest
from routetune.tasks.subject import check_unchanged
from routetune.tasks.targets.inputs import InputSet, timing_set

STEP = "routetune.tasks.engines.reference:make"


@stage("make references", of="input set")
def make_references(bench: Bench, sets: list[InputSet]) -> list[dict[str, Any]]:
    """Reference outputs of every input set; they and the timing inputs are noted on the bench.

    Returns: one dict per set: "name", "role", and the blobs of its "inputs" and "outputs".

    Raises:
        BadInput: the model does not run as written, or its outputs cannot serve as a reference.
    """
    progress.tell(progress.Snapshot("reference outputs"))
    blobs = [_input_blob(bench, one) for one in sets]
    key = bench.key(
        "reference",
        code_digest("routetune.tasks.engines.reference"),
        model=bench.subject.model.digest,
        inputs=[[one.name, arrays_digest(one.arrays)] for one in sets],
        plugins=bench.subject.bound_to["target"]["engine"]["plugins"],
        runtime=RUNTIME,
    )
    answer = bench.answer(key, lambda: _make(bench, sets, blobs))
    _refuse_bad(bench, answer.value)
    bench.references = answer.value["references"]
    bench.timing_inputs = _input_blob(bench, timing_set(bench.subject.target, bench.subject.model, sets))
    return bench.references


def _input_blob(bench: Bench, one: InputSet) -> str:
    path = bench.folder / "inputs.npz"
    save_arrays(path, one.arrays)
    digest: str = bench.store.blobs.put_file(path, move=True)
    return digest


def _make(bench: Bench, sets: list[InputSet], blobs: list[str]) -> tuple[dict[str, Any], list[str]]:
    files = [bench.folder / f"reference{i}.npz" for i in range(len(sets))]
    orders = [
        {"name": one.name, "inputs": str(bench.store.blobs.verified(blob)), "output": str(file)}
        for one, blob, file in zip(sets, blobs, files, strict=True)
    ]
    plugins = [str(path) for path in bench.subject.target.engine.plugins]
    model = str(bench.subject.model.path)
    report = bench.step(STEP, {"model": model, "sets": orders, "plugins": plugins})
    check_unchanged(bench.subject)
    references = []
    for one, found, blob, file in zip(sets, report, blobs, files, strict=True):
        outputs = bench.store.blobs.put_file(file, move=True)
        references.append(found | {"role": one.role, "inputs": blob, "outputs": outputs})
    return {"references": references}, [one[part] for one in references for part in ("inputs", "outputs")]


def _refuse_bad(bench: Bench, value: dict[str, Any]) -> None:
    """A reference that is broken or proves nothing is the reference's fault, never a route's."""
    where = f"target {bench.subject.target.name!r}: reference"
    if "failure" in value:
        raise BadInput(f"{where}: {value['failure']['reason']}; no route can be judged without it")
    for one in value["references"]:
        for kind, meaning in (("non_finite", "is not finite"), ("unstable", "differs between two runs")):
            if one[kind]:
                names = ", ".join(map(repr, one[kind]))
                raise BadInput(
                    f"{where}: output {names} {meaning} on input set {one['name']!r}, when the model runs "
                    "as written and unoptimised; give other inputs, or mend the model"
                )
        if one["constant"]:
            names = ", ".join(map(repr, one["constant"]))
            warnings.warn(
                f"{where}: output {names} has one single value on input set {one['name']!r}: "
                "comparing it proves little",
                stacklevel=2,
            )
