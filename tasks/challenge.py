"""Stage: the winner meets the engine that is published, which stays unless it is beaten."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from routetune.tasks.accuracy import check, verdict
from routetune.tasks.bench import Bench
from routetune.tasks.engines.worker import StepFailed
from routetune.tasks.errors import RoutetuneError
from routetune.tasks.judging import problem_of
from routetune.tasks.routes.route import Route
from routetune.tasks.routes.tuning_log import parse_tokens
from routetune.tasks.select import CONTROL, PUBLISHED, Selection, duel, loads_of
from routetune.tasks.stage import stage
from routetune.tasks.store.manifests import Publication, check_engine
from routetune.tasks.targets.changes import Change, compare
from routetune.tasks.trial import Trial
from routetune.tasks.verdicts.duel import log_ratios
from routetune.tasks.verdicts.intervals import estimate
from routetune.tasks.verdicts.selection import Decision

#: The kind of decision by which it stays.
KEPT = "kept"


@dataclass(frozen=True, slots=True)
class Meeting:
    """How the published engine fared against the winner.

    Attributes:
        why: a clause on the one of the two that loses.
        loads: of the duel; empty where the published engine did not run.
    """

    stays: bool
    why: str
    loads: list[dict[str, Any]] = field(default_factory=list)


@stage("challenge what is published", of="winner")
def challenge_published(bench: Bench, selection: Selection) -> Selection:
    """The selection, or one that keeps what is published, where its winner does not beat that.

    Only what was published for this environment, model and rule can be kept: a run that was forced, or one
    whose search or budget moved, must not replace a better engine by a worse one that it happened to find.
    """
    publication = _standing(bench)
    if publication is None:
        return selection
    incumbent = trial_of(bench, publication.manifest)
    if _is_same(incumbent, selection.winner):
        return _kept(bench, publication, replace(selection, decision=_same(publication, selection.decision)))
    assert bench.control is not None
    if selection.decision.kind == "winner" and _is_same(incumbent, bench.control):
        return selection  # it has just been beaten, as the control
    if problem := _problem(bench, incumbent):
        return _remarked(selection, f"{_label(publication)} could not be kept: {problem}")
    incumbent = verdict(bench, check(bench, incumbent))
    met = _meet(bench, selection.winner, incumbent)
    if not met.stays:
        return _remarked(selection, f"{_label(publication)} {met.why}")
    return _kept(bench, publication, _defended(bench, selection, incumbent, met, publication))


def kept_because(selection: Selection) -> str:
    """Why what was published stays; "" where it does not."""
    kept = selection.kept is not None or selection.decision.kind == KEPT
    return selection.decision.reason if kept else ""


def trial_of(bench: Bench, manifest: dict[str, Any]) -> Trial:
    """The engine of a publication as a trial that nothing is known of; its bytes are in the store afterwards.

    One of this run with the same bytes and options is taken as it is, under the name that was published.
    """
    engine = {name: manifest["engine"][name] for name in ("digest", "size")}
    engine |= {name: manifest[name] for name in ("identity", "options")}
    route = Route(tuple(parse_tokens(manifest["route"]).items()))
    for trial in bench.trials.values():
        if trial.alias_of is None and trial.engine == engine:
            return replace(trial, route=route)
    return Trial(route, engine=engine)


def _standing(bench: Bench) -> Publication | None:
    """What is published and may be kept, its bytes found right and put where engines are loaded from."""
    store, subject = bench.store, bench.subject
    try:
        store.publications.refresh(subject.target.name, at_once=True)
        current = store.publications.current(subject.target.name, subject.key)
        bench.met = 0 if current is None else current.reference.generation
        if current is None or not all(_may_move(change) for change in _changes(bench, current)):
            return None
        if not bench.space.permits(dict(parse_tokens(current.manifest["route"]))):
            return None  # the search moved so that its route is forbidden
        check_engine(store.root, current.engine, current.reference.engine)
    except RoutetuneError:  # damaged: then there is nothing to keep
        return None
    store.blobs.put_file(current.engine)
    return current


def _changes(bench: Bench, publication: Publication) -> list[Change]:
    return compare(publication.manifest["bound_to"], bench.subject.bound_to)


def _may_move(change: Change) -> bool:
    """Whether a better engine stays beside a change: it is of what is tried, and not of what is good."""
    return change.cost == "search" or change.field.startswith("target.budget.")


def _is_same(one: Trial, other: Trial) -> bool:
    """Whether two engines do the same, be it in other bytes."""
    a, b = one.engine, other.engine
    if a is None or b is None or a["options"] != b["options"]:
        return False
    return bool(a["digest"] == b["digest"] or (a["identity"] and a["identity"] == b["identity"]))


def _problem(bench: Bench, incumbent: Trial) -> str:
    """Why the published engine may not stay: it is judged as a winner is, in a fresh worker."""
    assert incumbent.engine is not None
    bench.fleet.restart()
    return problem_of(bench, incumbent.engine)


def _meet(bench: Bench, winner: Trial, incumbent: Trial) -> Meeting:
    """The duel of the two; where they do not run together, the published one must run without the winner."""
    assert bench.control is not None
    name = CONTROL if winner is bench.control else str(winner.route)
    two = {CONTROL: bench.control, PUBLISHED: incumbent}
    count = loads_of(bench.subject.target.timing, 1)
    try:
        loads = duel(bench, two | {name: winner}, count)
    except StepFailed as failed:
        try:
            why = f"{winner.route.label} cannot be measured beside it ({failed})"
            return Meeting(True, why, duel(bench, two, count))
        except StepFailed as own:
            return Meeting(False, f"could not be kept: it failed in a duel: {own}")
    found = estimate(log_ratios(loads, name, PUBLISHED), bench.subject.target.timing.confidence)
    if found.low > 1:
        return Meeting(False, f"is beaten: the winner is {found} as fast", loads)
    return Meeting(True, f"{winner.route.label} is {found} as fast, which does not beat it", loads)


def _defended(
    bench: Bench,
    selection: Selection,
    incumbent: Trial,
    met: Meeting,
    publication: Publication,
) -> Selection:
    """The selection that the published engine has won."""
    route, beaten = str(incumbent.route), selection.winner
    speed = estimate(log_ratios(met.loads, PUBLISHED, CONTROL), bench.subject.target.timing.confidence)
    decision = Decision(
        route,
        KEPT,
        f"{_label(publication)} stays: {met.why}",
        speed,
        [],
        selection.decision.explanations | {str(beaten.route): met.why},
    )
    # Under the name of its route, as in any other duel; that of another build of the same route gives way.
    renamed = [{**load, "samples": _renamed(load["samples"], route)} for load in met.loads]
    return replace(selection, winner=incumbent, decision=decision, loads=renamed)


def _renamed(samples: dict[str, Any], route: str) -> dict[str, Any]:
    rest = {name: times for name, times in samples.items() if name not in (PUBLISHED, route)}
    return rest | {route: samples[PUBLISHED]}


def _same(publication: Publication, decision: Decision) -> Decision:
    return replace(decision, reason=f"{_label(publication)} stays, it won again: {decision.reason}")


def _kept(bench: Bench, publication: Publication, selection: Selection) -> Selection:
    """Without a new generation where the manifest still says what is so; else with one of the same engine."""
    kept = None if _changes(bench, publication) else publication
    decision = replace(selection.decision, kind=KEPT)
    return replace(selection, decision=decision, kept=kept)


def _remarked(selection: Selection, remark: str) -> Selection:
    decision = replace(selection.decision, reason=f"{selection.decision.reason}; {remark}")
    return replace(selection, decision=decision)


def _label(publication: Publication) -> str:
    route = publication.manifest["route"] or "the default route"
    return f"the published engine (generation {publication.reference.generation}, {route})"
