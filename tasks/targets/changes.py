"""Changes: what a result is bound to, and what it costs when a field of that is no longer the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from routetune.tasks import canonical
from routetune.tasks.targets.gpu import UNKNOWN

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
    ("target", "quantization"): "rebuild",  # its inputs too: the model is calibrated on them
    ("target", "reference"): "retime",  # no build depends on the inputs
    ("target", "reference", "labels"): "recheck",
    ("target", "reference", "source"): "recheck",
    ("target", "accuracy"): "recheck",
    ("target", "accuracy", "metric"): "reselect",  # the losses of every metric are kept
    ("target", "accuracy", "tolerance"): "reselect",
    ("target", "accuracy", "outputs"): "reselect",  # metric, tolerance, weight, ignore; bounds are apart
    ("target", "timing"): "retime",
    ("target", "timing", "min_gain"): "reselect",
    ("target", "timing", "finalists"): "reselect",  # the duel is never answered from the store
    ("target", "timing", "loads"): "reselect",
    ("target", "timing", "exclusive"): "reselect",
    ("target", "search"): "search",
    ("target", "budget"): "search",  # where it grew; see _cost
}


#: Characters of a value in a sentence; a manifest that somebody edited may hold any number.
SHOWN = 1000


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
            found.append(Change(".".join(path), before, after, _cost(path, before, after)))
    return sorted(found, key=lambda change: (-_rank(change.cost), change.field))


def unlike(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """In which fields two environments differ, in words; "" where they do not."""
    changes = compare({"environment": one}, {"environment": other})
    return ", ".join(str(change).removeprefix("environment.") for change in changes)


def dearest(changes: Iterable[Change]) -> str | None:
    """The cost of all the changes together; CANNOT_TELL overrules every other; None where there is none."""
    return max((change.cost for change in changes), key=_rank, default=None)


def _rank(cost: str) -> int:
    return len(COSTS) if cost == CANNOT_TELL else COSTS.index(cost)


def _cost(path: tuple[str, ...], old: Any, new: Any) -> str:
    if path[:2] == ("target", "budget") and isinstance(old, (int, float)) and isinstance(new, (int, float)):
        return "reselect" if new < old else "search"  # a smaller one leaves nothing to look for
    for length in range(len(path), 0, -1):
        if path[:length] in _TABLE:
            return _TABLE[path[:length]]
    return "rebuild"  # a field that this version does not know: never a guess on the cheap side


def _differences(path: tuple[str, ...], old: Any, new: Any) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted(old.keys() | new.keys()):
            yield from _differences((*path, key), old.get(key), new.get(key))
    elif not (type(old) is type(new) is str and old == new) and canonical.dumps(old) != canonical.dumps(new):
        yield path, old, new


def _shown(value: Any) -> str:
    text = "(not set)" if value is None else value if isinstance(value, str) else canonical.dumps(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
