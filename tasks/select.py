"""Stage: the finalists duel with the control on fresh samples, and one route is chosen."""

from __future__ import annotations

from dataclasses import dataclass, field

from routetune.tasks.bench import Bench
from routetune.tasks.doubts import problem_with_fresh_inputs
from routetune.tasks.engines.worker import StepFailed
from routetune.tasks.errors import NoEligibleRoute
from routetune.tasks.judging import problem_of
from routetune.tasks.report import progress
from routetune.tasks.stage import stage
from routetune.tasks.trial import Trial
from routetune.tasks.verdicts.duel import log_ratios
from routetune.tasks.verdicts.selection import Decision, DuelResult, decide, finalists, loads_needed

STEP = "routetune.tasks.verdicts.steps:duel"
#: The control's name in a duel; no route can have it.
CONTROL = "(control)"


@dataclass(frozen=True, slots=True)
class Selection:
    """What was chosen, and all that the choice rests on.

    Attributes:
        winner: the trial whose engine is published.
        decision: how it was chosen.
        loads: raw samples of the duel, one dict per load: route string (or "(control)") -> nanoseconds.
        dropped: finalists that were taken out on the way, route string -> reason.
    """

    winner: Trial
    decision: Decision
    loads: list[dict[str, list[int]]]
    dropped: dict[str, str] = field(default_factory=dict)


@stage("select winner", of="trial")
def select_winner(bench: Bench, trials: list[Trial]) -> Selection:
    """Choose among the trials of the run.

    Raises:
        NoEligibleRoute: no route is both runnable and accurate enough.
    """
    progress.tell(progress.Snapshot("duel of the finalists", done=len(trials)))
    control = _control(bench, trials)
    contenders = finalists(trials, bench.subject.target.timing.finalists)
    dropped: dict[str, str] = {}
    contenders = [trial for trial in contenders if trial.route != control.route]
    loads = _duel(bench, control, contenders, dropped)
    while True:
        left = [trial for trial in contenders if str(trial.route) not in dropped]
        decision = _decide(bench, control, left, loads)
        winner = next((t for t in left if str(t.route) == decision.winner), control)
        problem = _recheck(bench, winner)
        if problem is None:
            return Selection(winner, decision, loads, dropped)
        if winner is control:
            raise NoEligibleRoute(f"the default route's engine no longer passes its own check: {problem}")
        dropped[str(winner.route)] = problem


def _control(bench: Bench, trials: list[Trial]) -> Trial:
    if bench.control is None or not any(trial.eligible for trial in trials):
        raise NoEligibleRoute(
            f"target {bench.subject.target.name!r}: none of the {len(trials)} routes tried is eligible; "
            + _common_reasons(trials)
        )
    return bench.control


def _common_reasons(trials: list[Trial]) -> str:
    counts: dict[str, int] = {}
    for trial in trials:
        counts[trial.reason] = counts.get(trial.reason, 0) + 1
    worst = sorted(counts.items(), key=lambda item: -item[1])[:3]
    return "; ".join(f"{count}x {reason}" for reason, count in worst)


def _decide(bench: Bench, control: Trial, left: list[Trial], loads: list[dict[str, list[int]]]) -> Decision:
    timing = bench.subject.target.timing
    duels = [
        DuelResult(str(trial.route), len(trial.route), log_ratios(loads, str(trial.route), CONTROL))
        for trial in left
    ]
    if _stands_in(control):
        duels.append(DuelResult(str(control.route), len(control.route), [0.0] * max(len(loads), 1)))
    return decide(
        duels,
        min_gain=timing.min_gain,
        confidence=timing.confidence,
        default_eligible=control.eligible and control.route.is_default,
    )


def _stands_in(control: Trial) -> bool:
    """Whether the control replaces a default route that does not run, and so may win like the others."""
    return control.eligible and not control.route.is_default


def _duel(
    bench: Bench, control: Trial, contenders: list[Trial], dropped: dict[str, str]
) -> list[dict[str, list[int]]]:
    """The loads of the duel; a finalist that fails in it is dropped, and the others start over."""
    timing = bench.subject.target.timing
    while left := [trial for trial in contenders if str(trial.route) not in dropped]:
        rivals = len(left) + _stands_in(control)
        count = max(timing.loads, loads_needed(rivals, timing.confidence))
        try:
            return [_load(bench, control, left, number) for number in range(count)]
        except StepFailed as failed:
            if not _drop_failing(bench, control, left, dropped):
                raise NoEligibleRoute(
                    f"the duel failed though each finalist runs alone: {failed}"
                ) from failed
    return []


def _load(bench: Bench, control: Trial, contenders: list[Trial], number: int) -> dict[str, list[int]]:
    engines = {str(trial.route): trial.engine for trial in contenders} | {CONTROL: control.engine}
    order = {
        "backend": bench.subject.backend,
        "engines": {name: (engine, bench.engine_path(engine)) for name, engine in engines.items() if engine},
        "device": bench.subject.device,
        "settings": bench.subject.target.engine.as_settings(),
        "inputs": str(bench.store.blobs.verified(bench.timing_inputs)),
        "load": number,
        "duelling": {"seconds": bench.subject.target.timing.seconds},
    }
    samples: dict[str, list[int]] = bench.step(STEP, order)["samples"]
    return samples


def _drop_failing(bench: Bench, control: Trial, left: list[Trial], dropped: dict[str, str]) -> bool:
    """Find who fails beside the control alone; says whether anyone was dropped."""
    before = len(dropped)
    for trial in left:
        try:
            _load(bench, control, [trial], 0)
        except StepFailed as failed:
            dropped[str(trial.route)] = f"{failed.outcome}: {failed.reason}"
    return len(dropped) > before


def _recheck(bench: Bench, winner: Trial) -> str | None:
    """Check the winner's stored bytes once more in a fresh worker; the problem, or None.

    An engine that passes only in the process that built it must not reach a service.
    """
    if winner.engine is None or not winner.eligible:
        return winner.reason or "it has no engine"
    bench.attempts.worker.restart()
    problem = problem_of(bench, winner.engine) or problem_with_fresh_inputs(bench, winner)
    return f"when checked again before publishing: {problem}" if problem else None
