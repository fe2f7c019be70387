"""Priors: routes that earlier experience says to try first. They order the search and never answer it.

Winners of this very target come first, of whatever environment or generation; then what was fast on like
targets, the more alike the earlier; then what other tools found. Each is built, checked and timed here like
any other route.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from routetune.tasks.canonical import number
from routetune.tasks.errors import BadInput
from routetune.tasks.routes.route import Route, spell
from routetune.tasks.routes.space import RouteSpace
from routetune.tasks.store import Store
from routetune.tasks.store.runs import FINISHED, RunRecord
from routetune.tasks.subject import Subject
from routetune.tasks.targets.environment import Environment
from routetune.tasks.targets.likeness import Likeness, likeness, traits_of
from routetune.tasks.trial import Outcome

#: Routes that are tried ahead of the search.
MAX_PRIORS = 10
#: Runs of other targets whose records are read, the most alike ones; of one target in one environment few.
MAX_RUNS = 40
MAX_RUNS_OF_ONE = 2
#: Routes that one run may bring forward; each counts this much less than the one before it.
MAX_OF_A_RUN = 3
FALLING = 0.8
#: Below this likeness a run has nothing to say.
MIN_LIKENESS = 0.1
_COLUMNS = ("route", "route_id", "outcome", "speed", "low", "alias_of")


@dataclass(frozen=True, slots=True)
class Prior:
    """One route to be tried first, and why.

    Attributes:
        route: as it is spelt in today's space; `notes` say what was left out of it.
        source: "winner" (of this target), "run" (of a like one) or "import" (of another tool).
        origin: the target and environment, or the file, that it comes from.
        likeness: of that run to this one, None for an import.
        speed: beside the default route there; NaN where that is not known.
    """

    route: Route
    source: str
    origin: str
    likeness: Likeness | None = None
    speed: float = math.nan
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        alike = self.likeness
        return {
            "route": str(self.route),
            "source": self.source,
            "origin": self.origin,
            "likeness": None if alike is None else alike.total,
            "factors": None if alike is None else alike.to_json(),
            "speed": None if math.isnan(self.speed) else number(self.speed),
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class Found:
    """Priors in the order of trying; `dropped` has a sentence for each route that could not become one."""

    priors: tuple[Prior, ...]
    dropped: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A route as it was told elsewhere: knob -> value, by a library that may have had other knobs."""

    given: Mapping[str, str]
    source: str
    origin: str
    likeness: Likeness | None = None
    speed: float = math.nan
    weight: float = 0.0


def find_priors(
    store: Store, subject: Subject, space: RouteSpace, without: str = "", limit: int = MAX_PRIORS
) -> Found:
    """What experience says to try first for a subject: at most `limit` different routes of its space.

    The order depends on nothing but the store. A knob that today's database or this target's search does not
    have is left out of a route, with a note.

    Args:
        without: id of the run that asks; what it tried itself is no experience.
    """
    priors: dict[Route, Prior] = {}
    dropped: dict[str, None] = {}
    for candidate in _candidates(store, subject, _Scale(store, subject), without):
        route, notes = fit(space, candidate.given)
        if route is None:
            dropped[f"{spell(candidate.given)} ({candidate.origin}): {'; '.join(notes)}"] = None
        elif route not in priors:
            priors[route] = Prior(
                route, candidate.source, candidate.origin, candidate.likeness, candidate.speed, tuple(notes)
            )
        if len(priors) == limit:
            break
    return Found(tuple(priors.values()), tuple(dropped))


def fit(space: RouteSpace, given: Mapping[str, str]) -> tuple[Route | None, list[str]]:
    """The route of a space that is nearest to an assignment made elsewhere, and what was left out of it.

    None, with the reason last, where nothing is left that the search varies, or a rule excludes it.
    """
    terms = {term.knob.name: term for term in space.terms}
    assignment, notes = space.baseline(), []
    for name, value in given.items():
        if name not in space.database:
            notes.append(f"{name} is no knob of {space.database.version}")
        elif name not in terms:
            if value != space.database[name].default:
                notes.append(f"{name} is not searched here")
        elif value in (*terms[name].values, terms[name].knob.default) and terms[name].variable:
            assignment[name] = value
        elif value != assignment[name]:
            notes.append(f"{name}={value} is not among the values here")
    if assignment == space.baseline():
        return None, [*notes, "nothing is left that this search varies"]
    if not space.allows(assignment):
        return None, [*notes, "an exclude rule forbids it"]
    return space.route(assignment), notes


class _Scale:
    """Says how alike to a subject others are; reads what was kept of each model once."""

    def __init__(self, store: Store, subject: Subject) -> None:
        self._bound, self._own = subject.bound_to, traits_of(subject.model)
        self._kept = cache(store.traits.get)

    def __call__(self, bound: Mapping[str, Any]) -> Likeness:
        kept = None
        with suppress(BadInput):  # of a newer routetune
            kept = self._kept(bound.get("target", {}).get("model"))
        return likeness(self._bound, bound, self._own, kept)


def _candidates(store: Store, subject: Subject, scale: _Scale, without: str) -> Iterator[_Candidate]:
    yield from _winners(store, subject.target.name, scale)
    yield from _of_like_runs(store, scale, without)
    for source, trial in store.priors.promising(subject.target.name):
        yield _Candidate(trial.route, "import", source)


def _winners(store: Store, target: str, scale: _Scale) -> list[_Candidate]:
    """What won this target before: the most alike environment first, there the newest generation."""
    found = []
    for publication in store.publications.history(target):
        manifest = publication.manifest
        alike = scale(manifest["bound_to"])
        if alike.total and manifest["route"]:
            where = f"{_label(manifest['bound_to'])}, generation {publication.reference.generation}"
            speed = float(manifest["speed"]["ratio"]) if "speed" in manifest else math.nan
            given = parsed(manifest["route"])
            found.append(_Candidate(given, "winner", f"{target} on {where}", alike, speed))
    return sorted(found, key=lambda one: -one.likeness.total if one.likeness else 0.0)


def _of_like_runs(store: Store, scale: _Scale, without: str) -> list[_Candidate]:
    """Routes of the most alike runs, by likeness and by how well they did there."""
    found: list[_Candidate] = []
    for record, alike in _like_runs(store, scale, without):
        for rank, (route, speed) in enumerate(_best_of(store, record)[:MAX_OF_A_RUN]):
            origin = f"{record.target} on {_label(record.bound_to)}, run {record.id}"
            weight = alike.total * FALLING**rank
            found.append(_Candidate(parsed(route), "run", origin, alike, speed, weight))
    return sorted(found, key=lambda one: -one.weight)


def _like_runs(store: Store, scale: _Scale, without: str) -> list[tuple[RunRecord, Likeness]]:
    """The runs worth reading, the most alike first, of equals the newest."""
    ranked = []
    per_target: Counter[tuple[str, str, bool]] = Counter()
    for record in reversed(store.runs.list()):
        if record.id == without or "purpose" in record.bound_to:
            continue
        if (alike := scale(record.bound_to)).total < MIN_LIKENESS:
            continue
        # Those that came to no end may have nothing to say, and must not hide one that has.
        ended = record.status == FINISHED
        group = record.target, Environment(record.bound_to["environment"]).key, ended
        per_target[group] += 1
        if per_target[group] <= MAX_RUNS_OF_ONE:
            ranked.append((record, alike))
    return sorted(ranked, key=lambda pair: -pair[1].total)[:MAX_RUNS]


def _best_of(store: Store, record: RunRecord) -> list[tuple[str, float]]:
    """Routes of a run with their speeds: its winner, then those that were surely faster than its default.

    Where the default was not eligible, every eligible route is worth knowing. A run that the default won has
    nothing to bring forward.
    """
    won = record.summary.get("route")
    if won == "":
        return []
    try:
        rows = store.records.read(run=record.id, columns=_COLUMNS).to_pylist()
    except BadInput:  # a newer routetune wrote them: that must not keep this one from tuning
        return []
    eligible = {row["route"]: row for row in rows if row["outcome"] == Outcome.ELIGIBLE and row["speed"]}
    # What won is under the simplest name of its engine, which may be an alias's: then the other is no second.
    other = eligible[won]["alias_of"] if won in eligible else None
    good = [
        (route, float(row["speed"]))
        for route, row in eligible.items()
        if route and (route == won or not row["alias_of"]) and row["route_id"] != other
        if "" not in eligible or (row["low"] or 0.0) > 1
    ]
    return sorted(good, key=lambda pair: (pair[0] != won, -pair[1], pair[0]))


def _label(bound: Mapping[str, Any]) -> str:
    return Environment(bound["environment"]).label


def parsed(route: str) -> dict[str, str]:
    """Knob -> value of a route's canonical text, whatever library it is for."""
    pairs = (token.partition("=") for token in route.split())
    return {name: value for name, _, value in pairs}
