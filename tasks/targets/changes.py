"""Changes: what a result is bound to, and what it costs when a field of that is no longer the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from routetune.tasks import canonical
from routetune.tasks.targets.custom import custom_metric
from routetune.tasks.targets.gpu import UNKNOWN
from routetune.tasks.targets.rules import scores_of
from routetune.tasks.targets.saved import saved_digest
from routetune.tasks.targets.sidecars import file_digest

if TYPE_CHECKING:
    from routetune.tasks.targets.environment import Environment
    from routetune.tasks.targets.model import ModelInfo
    from routetune.tasks.targets.schema import Target

#: What a change costs, from cheap to dear; each includes what stands before it, as far as that depends on it.
#: reselect: kept figures are judged anew. recheck: losses are computed anew from kept engines. retime: kept
#: engines are timed anew. search: more routes are tried. rebuild: engines are built anew.
COSTS = ("reselect", "recheck", "retime", "search", "rebuild")
#: A field of a GPU's environment is unknown: nothing may be reused, and nothing is worth rebuilding yet.
CANNOT_TELL = "cannot tell"

#: Cost by the longest matching beginning of a field. One table, for `status` and for the cache alike.
_TABLE: dict[tuple[str, ...], str] = {
    ("environment",): "rebuild",
    ("target",): "rebuild",
    ("target", "model"): "rebuild",
    ("target", "profiles"): "rebuild",
    ("target", "engine"): "rebuild",
    ("target", "reference"): "retime",  # no build depends on the inputs
    ("target", "reference", "labels"): "recheck",
    ("target", "reference", "source"): "recheck",
    ("target", "accuracy"): "recheck",
    ("target", "accuracy", "metric"): "reselect",  # the losses of every metric are kept
    ("target", "accuracy", "tolerance"): "reselect",
    ("target", "accuracy", "outputs"): "reselect",  # metric, tolerance, weight, ignore; bounds are apart
    ("target", "timing"): "retime",
    ("target", "timing", "min_gain"): "reselect",
    ("target", "search"): "search",
    ("target", "budget"): "search",
}


@dataclass(frozen=True, slots=True)
class Change:
    """One field that differs: `old` or `new` is None where the field is not there.

    Attributes:
        field: dotted name within the bound-to dict, such as "environment.driver".
        cost: one of COSTS, or CANNOT_TELL.
    """

    field: str
    old: Any
    new: Any
    cost: str

    def __str__(self) -> str:
        """ "environment.driver: 535.171.04 -> 535.161.07"; of long lists of words only the difference."""
        if all(isinstance(value, str) and value.count(" ") > 8 for value in (self.old, self.new)):
            before, after = set(self.old.split()), set(self.new.split())
            words = [f"-{word}" for word in sorted(before - after)]
            words += [f"+{word}" for word in sorted(after - before)]
            return f"{self.field}: {' '.join(words) or 'another order'}"
        return f"{self.field}: {_shown(self.old)} -> {_shown(self.new)}"


def bound_to(
    target: Target, model: ModelInfo, environment: Environment, inputs: Mapping[str, str | None]
) -> dict[str, Any]:
    """What results of the target are bound to, as one visible dict of plain JSON.

    `inputs` is what `inputs.inputs_digest` gives. Names and paths of files are not in it, their contents are.
    The device and the backend in use are the environment's.

    Raises:
        BadInput: a plugin cannot be read.
    """
    reference = target.reference
    return {
        "target": {
            "model": model.digest,
            "profiles": {str(index): profile.as_order() for index, profile in enumerate(model.profiles)},
            "reference": {
                "inputs": inputs["inputs"],
                "labels": inputs["labels"],
                "samples": reference.samples,
                "seed": reference.seed,
                "ranges": {name: list(ends) for name, ends in sorted(reference.ranges.items())},
                "source": saved_digest(reference) or reference.source,
            },
            "accuracy": _accuracy(target, model),
            "search": target.search.model_dump(mode="json"),
            "budget": target.budget.model_dump(mode="json"),
            "timing": {**target.timing.model_dump(mode="json"), "profile": target.timed_profile},
            "engine": {"plugins": [file_digest(plugin) for plugin in target.engine.plugins]},
        },
        "environment": dict(environment.fields),
    }


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


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Every field in which two bound-to dicts differ, the dearest first; empty means fresh.

    A field of a GPU's environment that is unknown today is a change even where it was unknown before, since
    equal ignorance is not equality.
    """
    today = new.get("environment", {})
    unknown = {name for name, value in today.items() if value == UNKNOWN and today.get("device") == "cuda"}
    earlier = old.get("environment", {})
    found = [Change(f"environment.{name}", earlier.get(name), UNKNOWN, CANNOT_TELL) for name in unknown]
    for path, before, after in _differences((), old, new):
        if not (path[0] == "environment" and path[-1] in unknown):
            found.append(Change(".".join(path), before, after, _cost(path)))
    return sorted(found, key=lambda change: (-_rank(change.cost), change.field))


def dearest(changes: Iterable[Change]) -> str | None:
    """The cost of all the changes together; CANNOT_TELL overrules every other; None where there is none."""
    return max((change.cost for change in changes), key=_rank, default=None)


def _rank(cost: str) -> int:
    return len(COSTS) if cost == CANNOT_TELL else COSTS.index(cost)


def _cost(path: tuple[str, ...]) -> str:
    for length in range(len(path), 0, -1):
        if path[:length] in _TABLE:
            return _TABLE[path[:length]]
    return "rebuild"  # a field that this version does not know: never a guess on the cheap side


def _differences(path: tuple[str, ...], old: Any, new: Any) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted(old.keys() | new.keys()):
            yield from _differences((*path, key), old.get(key), new.get(key))
    elif canonical.dumps(old) != canonical.dumps(new):
        yield path, old, new


def _shown(value: Any) -> str:
    return "(not set)" if value is None else value if isinstance(value, str) else canonical.dumps(value)
