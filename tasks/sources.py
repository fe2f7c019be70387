"""Where reference outputs come from: the model as written, the default engine, or files of the user's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from routetune.tasks.arrays import arrays_digest, save_arrays
from routetune.tasks.bench import Bench
from routetune.tasks.build import build
from routetune.tasks.engines.reference import RUNTIME, look_at
from routetune.tasks.engines.worker import StepFailed
from routetune.tasks.errors import BadInput, RoutetuneError
from routetune.tasks.routes.route import Route
from routetune.tasks.store.keys import code_digest
from routetune.tasks.subject import check_unchanged
from routetune.tasks.targets.inputs import InputSet
from routetune.tasks.targets.saved import saved_outputs
from routetune.tasks.trial import Outcome

MAKE = "routetune.tasks.engines.reference:make"
AGAIN = "routetune.tasks.engines.reference:again"

#: Ends of the reference run that say nothing of the model.
_NOBODYS = (Outcome.KILLED, Outcome.OUT_OF_MEMORY, Outcome.FLAKY)

#: One input set with the outputs it should give: "name", "role", the blobs "inputs" and "outputs", and the
#: outputs that are "unstable", "constant", "single", "empty" or "non_finite".
Reference = dict[str, Any]


def references_of(bench: Bench, sets: Sequence[InputSet]) -> list[Reference]:
    """The reference of every input set, in the same order; probes on which the model fails are left out.

    Raises:
        BadInput: the model does not run as written, or saved outputs do not fit it.
    """
    saved = _saved(bench, sets)
    computed = _computed(bench, [one for one in sets if one.name not in saved])
    found = saved | {one["name"]: one for one in computed}
    return [found[one.name] for one in sets if one.name in found]


def input_blob(bench: Bench, one: InputSet) -> str:
    """The digest of a set's inputs, as an arrays file in the store."""
    path = bench.folder / "inputs.npz"
    save_arrays(path, one.arrays)
    digest: str = bench.store.blobs.put_file(path, move=True)
    return digest


def label_blob(bench: Bench, one: InputSet) -> str | None:
    """The digest of a set's labels, as an arrays file in the store; None where it has none."""
    if one.labels is None:
        return None
    path = bench.folder / "labels.npz"
    save_arrays(path, {"labels": one.labels})
    digest: str = bench.store.blobs.put_file(path, move=True)
    return digest


def _saved(bench: Bench, sets: Sequence[InputSet]) -> dict[str, Reference]:
    """What the files of reference.source give, for the user's own input sets."""
    target, model = bench.subject.target, bench.subject.model
    if not target.reference.saved:
        return {}
    users = {one.name: one for one in sets if one.role == "user"}
    found = {}
    for name, outputs in saved_outputs(target, model, list(users.values())).items() if users else ():
        path = bench.folder / "outputs.npz"
        save_arrays(path, outputs)
        found[name] = {
            "name": name,
            "role": "user",
            "inputs": input_blob(bench, users[name]),
            "outputs": bench.store.blobs.put_file(path, move=True),
            "unstable": [],
            **look_at(outputs),
        }
    return found


def _computed(bench: Bench, sets: list[InputSet]) -> list[Reference]:
    if not sets:
        return []
    source, made_by = _source(bench)
    blobs = [input_blob(bench, one) for one in sets]
    key = bench.key(
        "reference",
        code_digest("routetune.tasks.engines.reference"),
        model=bench.subject.model.digest,
        inputs=[[one.name, one.role, arrays_digest(one.arrays)] for one in sets],
        runtime=made_by,
    )
    answer = bench.answer(key, lambda: _make(bench, source, sets, blobs))
    if "failure" in answer.value:
        failure = answer.value["failure"]
        kind = RoutetuneError if failure["outcome"] in _NOBODYS else BadInput
        where = f"target {bench.subject.target.name!r}: reference"
        raise kind(f"{where}: {failure['reason']}; no route can be judged without it")
    references: list[Reference] = answer.value["references"]
    return references


def _source(bench: Bench) -> tuple[dict[str, Any], dict[str, Any]]:
    """What computes outputs: for the worker, and as part of the key."""
    subject = bench.subject
    if subject.target.reference.source != "default-route":
        plugins = [str(path) for path in subject.target.engine.plugins]
        return {"model": str(subject.model.path), "plugins": plugins}, dict(RUNTIME)
    trial = build(bench, Route())
    if trial.engine is None:
        raise BadInput(
            f'target {subject.target.name!r}: reference.source = "default-route" needs the default route\'s '
            f'engine, which cannot be built: {trial.reason}; use source = "onnxruntime" or saved outputs'
        )
    source = {
        "backend": subject.backend,
        "engine": trial.engine,
        "path": bench.engine_path(trial.engine),
        "device": subject.device,
        "settings": subject.target.engine.as_settings(),
    }
    return source, {"engine": trial.engine["digest"], "options": trial.engine["options"]}


def _make(
    bench: Bench, source: dict[str, Any], sets: list[InputSet], blobs: list[str]
) -> tuple[dict[str, Any], list[str]]:
    orders = [
        {
            "name": one.name,
            "role": one.role,
            "inputs": str(bench.store.blobs.verified(blob)),
            "output": str(bench.folder / f"reference{at}.npz"),
        }
        for at, (one, blob) in enumerate(zip(sets, blobs, strict=True))
    ]
    needed = [one for one in orders if one["role"] != "probe"]
    try:
        report = _run(bench, source, orders)
    except StepFailed:
        # Probes are made up of the user's values: the model need not bear them, and can be judged without.
        if len(needed) in (0, len(orders)):
            raise
        report = _run(bench, source, needed)
    references = []
    for found in report:
        at = next(at for at, order in enumerate(orders) if order["name"] == found["name"])
        kept = {
            "inputs": blobs[at],
            "outputs": bench.store.blobs.put_file(bench.folder / f"reference{at}.npz"),
        }
        references.append(found | {"role": sets[at].role} | kept)
    return {"references": references}, [one[part] for one in references for part in ("inputs", "outputs")]


def _run(bench: Bench, source: dict[str, Any], orders: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Twice in one session, and once more in a process of its own: whatever differs cannot be a reference."""
    report: list[dict[str, Any]] = bench.step(MAKE, {"source": source, "sets": orders})
    bench.fleet.restart()
    later = bench.step(AGAIN, {"source": source, "sets": orders})
    check_unchanged(bench.subject)
    for one, again in zip(report, later, strict=True):
        one["unstable"] += [name for name in again["unstable"] if name not in one["unstable"]]
    return report
