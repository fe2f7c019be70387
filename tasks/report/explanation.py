"""What a run tells of itself beside its result: what the knobs did, and what it never tried."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from routetune.tasks.report.effects import Timed
    from routetune.tasks.routes.space import RouteSpace
    from routetune.tasks.trial import Trial

#: What a person is shown of a long list; `--json` has all of it.
SHOWN = 10


def explained(trials: Iterable[Trial], space: RouteSpace, confidence: float) -> dict[str, Any]:
    """Main effects of the values that were timed, and the values that were never tried; plain JSON."""
    from routetune.tasks.report.effects import main_effects

    trials = list(trials)
    return {
        "effects": [effect.to_json() for effect in main_effects(_timed(trials, space), confidence)],
        "never_tried": _never_tried(trials, space),
    }


def _timed(trials: Iterable[Trial], space: RouteSpace) -> Iterator[Timed]:
    """What was measured: no aliases, which have the figures of another route, and none with another value of
    what the expression fixes, which is no knob of this run."""
    from routetune.tasks.report.effects import Timed

    fixed = {term.knob.name for term in space.terms if not term.variable}
    for trial in trials:
        told = trial.route.as_dict()
        if trial.speed is not None and trial.alias_of is None and space.keeps(told):
            varied = {name: value for name, value in told.items() if name not in fixed}
            yield Timed(varied, trial.speed, trial.low, trial.high)


def _never_tried(trials: Iterable[Trial], space: RouteSpace) -> list[dict[str, Any]]:
    tried = {setting for trial in trials for setting in trial.route.settings}
    found = []
    for term in space.terms:
        name, default = term.knob.name, term.knob.default
        left = [value for value in term.values if value != default and (name, value) not in tried]
        if left and term.variable:
            found.append({"knob": name, "values": left})
    return found


def sentences(explanation: Mapping[str, Any]) -> list[str]:
    """An explanation for a person, without the effects, one thought a line."""
    lines = []
    for prior in explanation["priors"][:SHOWN]:
        lines.append(f"tried first: {prior['route']} ({prior_reason(prior)})")
    lines += _about_pruning(explanation["pruning"] or {})
    if untried := explanation["never_tried"]:
        values = [f"{one['knob']}={'|'.join(one['values'])}" for one in untried]
        lines.append(f"never tried: {_some(values)}")
    if following := explanation["next"]:
        lines.append(f"would be tried next: {_some([route or 'default route' for route in following], '; ')}")
    return lines


def prior_reason(prior: Mapping[str, Any]) -> str:
    """Why a prior is tried first, in a few words."""
    if prior["source"] == "import":
        return f"fast in {prior['origin']}"
    did = "won" if prior["source"] == "winner" else "was fast on"
    speed = "" if prior["speed"] is None else f", {float(prior['speed']):.3f}x there"
    return f"{did} {prior['origin']}{speed}, likeness {prior['likeness']:.2f}"


def _about_pruning(pruning: Mapping[str, Any]) -> Iterator[str]:
    if idle := pruning.get("idle"):
        yield f"tried last, since they do nothing on this model: {_some(idle)}"
    for name, beside in sorted((pruning.get("idle_beside") or {}).items())[:SHOWN]:
        yield f"tried last beside {_some(beside, ' or ')}, where it does nothing on this model: {name}"
    if inert := pruning.get("inert"):
        yield f"tried last beside others, since alone they make the same engine: {_some(inert)}"
    for one in pruning.get("blamed", ())[:SHOWN]:
        yield f"blamed: {one['settings']} {one['kind']}, in {one['routes']} of {one['routes']} routes"
    if put_off := pruning.get("put_off"):
        yield f"{put_off} routes were put off, {pruning['untried']} of them are untried"


def _some(texts: Sequence[str], mark: str = ", ") -> str:
    more = len(texts) - SHOWN
    return mark.join(texts[:SHOWN]) + (f"{mark}and {more} more" if more > 0 else "")
