"""What results of a target are bound to: one visible dict, kept in manifests and compared in `changes`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from routetune.tasks import canonical
from routetune.tasks.targets import fusions
from routetune.tasks.targets.custom import custom_metric
from routetune.tasks.targets.memo import Memo, no_memo
from routetune.tasks.targets.places import names_fusing, names_places
from routetune.tasks.targets.rules import scores_of
from routetune.tasks.targets.saved import saved_digest
from routetune.tasks.targets.sidecars import file_digest

if TYPE_CHECKING:
    from routetune.tasks.targets.environment import Environment
    from routetune.tasks.targets.model import ModelInfo
    from routetune.tasks.targets.schema import Target


def bound_to(
    target: Target,
    model: ModelInfo,
    environment: Environment,
    inputs: Mapping[str, str | None],
    memo: Memo = no_memo,
) -> dict[str, Any]:
    """What results of the target are bound to, as one visible dict of plain JSON.

    `inputs` is what `inputs.inputs_digest` gives. Names and paths of files are not in it, their contents are.
    The device and the backend in use are the environment's.

    Raises:
        BadInput: a plugin cannot be read.
    """
    return {
        "target": {
            "model": model.digest,
            "profiles": {str(index): profile.as_order() for index, profile in enumerate(model.profiles)},
            "reference": {
                "inputs": inputs["inputs"],
                "labels": inputs["labels"],
                **_drawn(target),
                "source": saved_digest(target.reference, memo) or target.reference.source,
            },
            "accuracy": _accuracy(target, model),
            "search": target.search.model_dump(mode="json"),
            "budget": target.budget.model_dump(mode="json"),
            "timing": {**target.timing.model_dump(mode="json"), "profile": target.timed_profile},
            "engine": {
                "plugins": [memo("bytes", path, partial(_plugin, path)) for path in target.engine.plugins],
                **target.engine.limits(),
            },
            **_quantization(target, model, str(environment.fields.get("backend")), inputs["inputs"]),
        },
        "environment": dict(environment.fields),
    }


def _drawn(target: Target) -> dict[str, Any]:
    """What seeded inputs are drawn by."""
    reference = target.reference
    return {
        "samples": reference.samples,
        "seed": reference.seed,
        "ranges": {name: list(ends) for name, ends in sorted(reference.ranges.items())},
    }


def _plugin(path: Path) -> tuple[str, list[Path]]:
    return file_digest(path), [path]


def _quantization(target: Target, model: ModelInfo, backend: str, inputs: str | None) -> dict[str, Any]:
    """How the model is rewritten, where a route may ask for that; its inputs then shape engines too."""
    if not names_places(target.search.routes):
        return {}
    bound = target.quantization.model_dump(mode="json")
    bound["calibrated_on"] = _drawn(target) if inputs is None else inputs
    fuses = names_fusing(target.search.routes) and fusions.has_attention(model, backend)
    if fuses and (version := fusions.version()):
        bound["fusions"] = version
    return {"quantization": bound}


def _accuracy(target: Target, model: ModelInfo) -> dict[str, Any]:
    """The rule, and apart from it what the comparison depends on: only that asks for the engines again.

    What a target does not use is left out.
    """
    accuracy = target.accuracy
    ranked = "topk" in (accuracy.metric, *(own.metric for own in accuracy.outputs.values()))
    outputs: dict[str, Any] = {}
    bounds: dict[str, Any] = {}
    for name, own in sorted(accuracy.outputs.items()):
        tolerance = None if own.tolerance is None else canonical.number(own.tolerance)
        outputs[name] = {
            "metric": own.metric,
            "tolerance": tolerance,
            "weight": own.weight,
            "ignore": own.ignore,
        }
        given = {"atol": own.atol, "rtol": own.rtol, "k": own.k if ranked else None}
        if kept := {key: value for key, value in given.items() if value is not None}:
            bounds[name] = kept
    task = _task(target, model)
    return {
        "metric": accuracy.metric,
        "tolerance": canonical.number(accuracy.tolerance),
        "atol": accuracy.atol,
        "rtol": accuracy.rtol,
        **({"k": accuracy.k} if ranked else {}),
        **({"outputs": outputs} if outputs else {}),
        **({"bounds": bounds} if bounds else {}),
        **({"task": task} if task else {}),
    }


def _task(target: Target, model: ModelInfo) -> dict[str, Any] | None:
    """What a metric of whole input sets is made of; None where outputs are compared one by one."""
    accuracy = target.accuracy
    if accuracy.metric == "accuracy_drop":
        return {"scores": scores_of(target, model.outputs), "k": accuracy.k}
    custom = custom_metric(target)
    return None if custom is None else {"metric": custom.name, "source": custom.digest}
