"""Stage: the finalists duel with the control on fresh samples, and one route is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from routetune.tasks.bench import Bench
from routetune.tasks.doubts import problem_with_fresh_inputs
from routetune.tasks.engines.worker import StepFailed
from routetune.tasks.errors import NoEligibleRoute, RoutetuneError
from routetune.tasks.judging import problem_of
from routetune.tasks.report import progress
from routetune.tasks.report.summary import trial_summary
from routetune.tasks.stage import stage
from routetune.tasks.store.manifests import Publication
from routetune.tasks.trial import Trial
from routetune.tasks.verdicts.duel import duel_figures, enough, log_ratios, quietest
from routetune.tasks.verdicts.rounds import PATIENCE
from routetune.tasks.verdicts.selection import Decision, DuelResult, decide, finalists, loads_needed

STEP = "routetune.tasks.verdicts.steps:duel"
#: The control's name in a duel; no route can have it.
CONTROL = "(control)"
#: Wild loads that the intervals of a duel can leave out on either side: one must not cost a winner its win.
SPARE = 1


@dataclass(frozen=True, slots=True)
class Selection:
    """What was chosen, and all that the choice rests on.

    Attributes:
        winner: the trial whose engine is published.
        decision: how it was chosen.
        loads: the loads of the duel as plain JSON (`duel.Load`), dropped ones included; in "samples" an
            engine is called by its route's string, or "(control)".
        dropped: finalists that were taken out on the way, route string -> reason.
        kept: what is published already and stays as it is; then `winner` is its engine.
    """

    winner: Trial
    decision: Decision
    loads: list[dict[str, Any]]
    dropped: dict[str, str] = field(default_factory=dict)
    kept: Publication | None = None


@stage("select winner", of="trial")
def select_winner(bench: Bench, trials: list[Trial]) -> Selection:
    """Choose among the trials of the run.

    Raises:
        NoEligibleRoute: no route is both runnable and accurate enough.
    """
    progress.tell(progress.Snapshot("duel of the finalists", done=len(trials)))
    control = _control(bench, trials)
    contenders = contenders_of(bench, control, trials)
    dropped: dict[str, str] = {}
    loads = _duel(bench, control, contenders, dropped)
    while True:
        left = [trial for trial in contenders if str(trial.route) not in dropped]
        decision = _decide(bench, control, left, loads)
        winner = next((t for t in left if str(t.route) == decision.winner), control)
        problem = _recheck(bench, winner)
        if problem is None:
            return Selection(winner, _remarked(decision, loads), loads, dropped)
        if winner is control:
            raise RoutetuneError(f"the control's engine no longer passes its own check: {problem}; run again")
        dropped[str(winner.route)] = problem


def _control(bench: Bench, trials: list[Trial]) -> Trial:
    if bench.control is None or not any(trial.eligible for trial in trials):
        bench.judge_deaths(trials)
        raise NoEligibleRoute(
            f"target {bench.subject.target.name!r}: none of the {len(trials)} routes tried is eligible; "
            + _common_reasons(trials),
            {"target": bench.subject.target.name, "excluded": [trial_summary(trial) for trial in trials]},
        )
    return bench.control


def contenders_of(bench: Bench, control: Trial, trials: list[Trial]) -> list[Trial]:
    """The finalists; beside an eligible default only those that may still clear the gain asked for."""
    timing = bench.subject.target.timing
    at_least = 1 + timing.min_gain if _default_eligible(control) else 0.0
    found = finalists(trials, timing.finalists, at_least)
    return [trial for trial in found if trial.route != control.route]


def _remarked(decision: Decision, loads: list[dict[str, Any]]) -> Decision:
    """The decision, its reason ending with what was wrong with the machine during the duel."""
    remarks = duel_figures(loads)["remarks"]
    return replace(decision, reason="; ".join([decision.reason, *remarks]))


def _common_reasons(trials: list[Trial]) -> str:
    counts: dict[str, int] = {}
    for trial in trials:
        counts[trial.reason] = counts.get(trial.reason, 0) + 1
    worst = sorted(counts.items(), key=lambda item: -item[1])[:3]
    return "; ".join(f"{count}x {reason}" for reason, count in worst)


def _decide(bench: Bench, control: Trial, left: list[Trial], loads: list[dict[str, Any]]) -> Decision:
    timing = bench.subject.target.timing
    duels = [
        DuelResult(str(trial.route), len(trial.route), log_ratios(loads, str(trial.route), CONTROL))
        for trial in left
    ]
    if _stands_in(control):
        count = sum(not load["dropped"] for load in loads)
        duels.append(DuelResult(str(control.route), len(control.route), [0.0] * max(count, 1)))
    return decide(
        duels,
        min_gain=timing.min_gain,
        confidence=timing.confidence,
        default_eligible=_default_eligible(control),
    )


def _default_eligible(control: Trial) -> bool:
    return control.eligible and control.route.is_default


def _stands_in(control: Trial) -> bool:
    """Whether the control replaces a default route that does not run, and so may win like the others."""
    return control.eligible and not control.route.is_default


def _duel(
    bench: Bench, control: Trial, contenders: list[Trial], dropped: dict[str, str]
) -> list[dict[str, Any]]:
    """The loads of the duel; a finalist that fails in it is dropped, and the others start over."""
    timing = bench.subject.target.timing
    while left := [trial for trial in contenders if str(trial.route) not in dropped]:
        rivals = len(left) + _stands_in(control)
        count = max(timing.loads, loads_needed(rivals, timing.confidence, SPARE))
        try:
            return duel(bench, _named(control, left), count)
        except StepFailed as failed:
            if not _drop_failing(bench, control, left, dropped):
                raise NoEligibleRoute(
                    f"the duel failed though each finalist runs alone: {failed}"
                ) from failed
    return []


def duel(bench: Bench, duellists: Mapping[str, Trial], count: int) -> list[dict[str, Any]]:
    """`count` loads that count, and up to a third as many again that others disturbed; all on one device.

    Args:
        duellists: by the names that they shall have in the samples.

    Raises:
        StepFailed: one of them does not run.
    """
    loads: list[dict[str, Any]] = []
    while not enough(loads, count, repeats=count // 3):
        load = _load(bench, duellists, len(loads))
        if loads and load["on"] != loads[0]["on"]:
            loads.clear()  # the device was taken out, and loads of two are not of one duel
        loads.append(load)
    return quietest(loads, count)


def _named(control: Trial, contenders: list[Trial]) -> dict[str, Trial]:
    return {str(trial.route): trial for trial in contenders} | {CONTROL: control}


def _load(bench: Bench, duellists: Mapping[str, Trial], number: int) -> dict[str, Any]:
    timing = bench.subject.target.timing
    engines = {name: trial.engine for name, trial in duellists.items()}
    order = {
        "backend": bench.subject.backend,
        "engines": {name: (engine, bench.engine_path(engine)) for name, engine in engines.items() if engine},
        "device": bench.subject.device,
        "settings": bench.subject.target.run_settings(),
        "inputs": str(bench.store.blobs.verified(bench.timing_inputs)),
        "load": number,
        "duelling": {"seconds": timing.seconds, "streams": timing.streams},
    }
    load: Mapping[str, Any] = bench.step(STEP, order, measuring=PATIENCE * timing.seconds)
    return {**load, "on": bench.fleet.did}


def _drop_failing(bench: Bench, control: Trial, left: list[Trial], dropped: dict[str, str]) -> bool:
    """Find who fails beside the control alone; says whether anyone was dropped."""
    before = len(dropped)
    for trial in left:
        try:
            _load(bench, _named(control, [trial]), 0)
        except StepFailed as failed:
            dropped[str(trial.route)] = f"{failed.outcome}: {failed.reason}"
    return len(dropped) > before


def _recheck(bench: Bench, winner: Trial) -> str | None:
    """Check the winner's stored bytes once more in a fresh worker; the problem, or None.

    An engine that passes only in the process that built it must not reach a service.
    """
    if winner.engine is None or not winner.eligible:
        return winner.reason or "it has no engine"
    bench.fleet.restart()
    problem = problem_of(bench, winner.engine) or problem_with_fresh_inputs(bench, winner)
    return f"when checked again before publishing: {problem}" if problem else None
