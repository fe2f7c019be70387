"""Stages of reproducing: the published engine is measured again, and the old and the new verdict compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from routetune.tasks.bench import Bench
from routetune.tasks.build import build
from routetune.tasks.canonical import number, to_float
from routetune.tasks.challenge import trial_of
from routetune.tasks.engines.worker import StepFailed
from routetune.tasks.report import progress
from routetune.tasks.routes.route import Route
from routetune.tasks.routes.tuning_log import parse_tokens
from routetune.tasks.select import CONTROL, PUBLISHED, duel, loads_of
from routetune.tasks.stage import stage
from routetune.tasks.store.loader import Published, load_current
from routetune.tasks.targets.changes import compare
from routetune.tasks.trial import Trial
from routetune.tasks.verdicts.duel import duel_figures, log_ratios
from routetune.tasks.verdicts.intervals import Estimate, estimate


@dataclass(frozen=True, slots=True)
class Duel:
    """What the engine's second duel gave.

    Attributes:
        speed: of the engine against its control; None where there was none.
        loads: as in `select.Selection`.
        problem: why there was no duel, or "".
    """

    speed: Estimate | None = None
    loads: tuple[dict[str, Any], ...] = ()
    problem: str = ""


def recall(bench: Bench) -> tuple[Published, Trial]:
    """What is published for the target here, and its stored bytes as a trial that nothing is known of.

    Raises:
        BadInput: nothing is published.
        Refused: it was made for another kind of device or version.
        BadPublication: it was changed.
    """
    subject, store = bench.subject, bench.store
    published = load_current(store.root, subject.target.name, today=subject.environment.fields)
    store.blobs.put_file(published.path)
    return published, trial_of(bench, published.manifest)


@stage("duel again", of="engine")
def duel_again(bench: Bench, given: tuple[Published, Trial]) -> Duel:
    """The engine against the control that it was published with, in a fresh worker.

    The control is taken from the store where that has it, and built otherwise.
    """
    published, trial = given
    progress.tell(progress.Snapshot("duel with the control"))
    control = published.manifest["control"]
    if control is None or control == str(trial.route):
        return Duel(problem="its engine is its own control, so there is nothing to measure it against")
    beside = _control(bench, Route(tuple(parse_tokens(control).items())))
    if beside.engine is None:
        return Duel(problem=f"the control, {beside.route.label}, can no longer be built: {beside.reason}")
    bench.fleet.restart()
    timing = bench.subject.target.timing
    try:
        loads = duel(bench, {CONTROL: beside, PUBLISHED: trial}, loads_of(timing, 1))
    except StepFailed as failed:
        return Duel(problem=f"the duel with {beside.route.label} failed: {failed}")
    speed = estimate(log_ratios(loads, PUBLISHED, CONTROL), timing.confidence)
    return Duel(speed, tuple(loads))


def comparison(bench: Bench, published: Published, trial: Trial, again: Duel) -> dict[str, Any]:
    """Old and new figures, and whether the verdict still holds; plain JSON, see docs/publications.md."""
    manifest = published.manifest
    accuracy, speed = _accuracy(manifest, trial), _speed(bench, manifest, again)
    moved = compare({"target": manifest["bound_to"]["target"]}, {"target": bench.subject.bound_to["target"]})
    return {
        "target": manifest["target"],
        "generation": manifest["generation"],
        "engine": str(published.path),
        "engine_digest": manifest["engine"]["digest"],
        "route": manifest["route"],
        "control": manifest["control"],
        "holds": accuracy["holds"] and speed["holds"],
        "accuracy": accuracy,
        "speed": speed,
        "remarks": duel_figures(again.loads)["remarks"],
        "stale": [*(published.stale or ()), *map(str, moved)],
    }


def _control(bench: Bench, route: Route) -> Trial:
    before, bench.refresh = bench.refresh, False
    try:
        return build(bench, route)
    finally:
        bench.refresh = before


def _accuracy(manifest: dict[str, Any], trial: Trial) -> dict[str, Any]:
    old = {name: manifest["accuracy"][name] for name in ("metric", "tolerance", "loss", "verdict")}
    new = {"loss": None if trial.loss is None else number(trial.loss), "verdict": trial.reason}
    return {"holds": trial.accepted is True, "old": old, "new": new, "reason": trial.reason}


def _speed(bench: Bench, manifest: dict[str, Any], again: Duel) -> dict[str, Any]:
    """A speed holds that reaches the old interval, or else still clears what a winner needs."""
    old, found = manifest["speed"], again.speed
    if found is None:
        own = manifest["control"] in (None, manifest["route"])
        return {"holds": own, "old": old, "new": None, "reason": again.problem}
    needs = 1 + bench.subject.target.timing.min_gain
    low = to_float(old["low"])
    if found.high >= low:
        holds, reason = True, f"{found} reaches the published interval"
    elif found.low > 1 and found.low >= needs:
        holds, reason = True, f"{found} is below the published interval, but clears 1 + min_gain = {needs:g}"
    else:
        holds = False
        reason = f"{found} is below the published interval, and does not clear 1 + min_gain = {needs:g}"
    new = {
        "ratio": number(found.ratio),
        "low": number(found.low),
        "high": number(found.high),
        "loads": found.n,
    }
    return {"holds": holds, "old": old, "new": new, "reason": reason}
