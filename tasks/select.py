"""Stage: the finalists duel with the control on fresh samples, and one route is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from routetune.tasks.bench import Bench
from routetune.tasks.build import kept_engine
from routetune.tasks.doubts import problem_with_fresh_inputs
from routetune.tasks.engines.worker import StepFailed
from routetune.tasks.errors import NoEligibleRoute, RoutetuneError
from routetune.tasks.judging import problem_of
from routetune.tasks.report import progress
from routetune.tasks.report.summary import trial_summary
from routetune.tasks.stage import stage
from routetune.tasks.store.manifests import Publication
from routetune.tasks.targets.schema import Timing
from routetune.tasks.trial import Trial
from routetune.tasks.verdicts.duel import duel_figures, enough, log_ratios, quietest
from routetune.tasks.verdicts.rounds import PATIENCE
from routetune.tasks.verdicts.selection import (
    Decision,
    DuelResult,
    decide,
    finalists,
    loads_needed,
    plainest,
    simplicity,
)

STEP = "routetune.tasks.verdicts.steps:duel"
#: Names in a duel that no route can have: the control's, and the published engine's.
CONTROL, PUBLISHED = "(control)", "(published)"
#: So many times the finalists may fail before the machine is blamed.
DROPPED = 2
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


@dataclass(frozen=True, slots=True)
class Contest:
    """A duel.

    Attributes:
        loads: as in `Selection`.
        fought: who took part, by their routes' strings.
        left_out: finalists that could not run beside so many others.
    """

    loads: list[dict[str, Any]] = field(default_factory=list)
    fought: Mapping[str, Trial] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()

    def covers(self, contenders: list[Trial]) -> bool:
        """Whether it can decide among them: nobody else could have taken part, and somebody did."""
        names = {str(trial.route) for trial in contenders}
        return not names or bool(names & self.fought.keys() and names <= self.fought.keys() | self.left_out)


@stage("select winner", of="trial")
def select_winner(bench: Bench, trials: list[Trial]) -> Selection:
    """Choose among the trials of the run.

    Raises:
        NoEligibleRoute: no route is both runnable and accurate enough.
    """
    progress.tell(progress.Snapshot("duel of the finalists", done=len(trials)))
    control = _control(bench, trials)
    trials = plainest(trials, control.route)
    dropped: dict[str, str] = {}
    contest = Contest()
    while True:
        left = contenders_of(bench, control, [one for one in trials if str(one.route) not in dropped])
        if not contest.covers(left):  # at first, and where one that was dropped makes room for others
            _refuse_many(bench, dropped)
            contest = _duel(bench, control, left, dropped)
            continue
        left = [contest.fought[name] for trial in left if (name := str(trial.route)) in contest.fought]
        decision = _decide(bench, control, left, contest, dropped)
        winner = next((t for t in left if str(t.route) == decision.winner), control)
        problem = _recheck(bench, winner)
        if problem is None:
            return Selection(winner, _remarked(decision, contest.loads), contest.loads, dropped)
        if winner is control:
            raise RoutetuneError(f"the control's engine no longer passes its own check: {problem}; run again")
        dropped[str(winner.route)] = problem


def _refuse_many(bench: Bench, dropped: Mapping[str, str]) -> None:
    """Raise RoutetuneError where more finalists were dropped than can be those routes' own fault."""
    if len(dropped) > DROPPED * bench.subject.target.timing.finalists:
        reasons = "; ".join(f"{route}: {reason}" for route, reason in [*dropped.items()][-3:])
        raise RoutetuneError(
            f"target {bench.subject.target.name!r}: {len(dropped)} finalists failed one after the other, "
            f"which ran before: something is wrong with the machine ({reasons}); run again"
        )


def _control(bench: Bench, trials: list[Trial]) -> Trial:
    """What the others are measured against.

    A default that the target forbids goes by the name of a route with its engine that it permits, if there is
    one, and so may win.

    Raises:
        NoEligibleRoute: none may win.
    """
    control = bench.control
    if control is None or not any(map(bench.may_win, trials)):
        bench.judge_deaths(trials)
        forbidden = any(trial.eligible for trial in trials)
        which = f"{len(trials)} routes tried"
        which += " but the default route, which the target does not permit," * forbidden
        raise NoEligibleRoute(
            f"target {bench.subject.target.name!r}: none of the {which} is eligible; "
            + _common_reasons([trial for trial in trials if not trial.eligible]),
            {"target": bench.subject.target.name, "excluded": [trial_summary(trial) for trial in trials]},
        )
    if control.eligible and not bench.may_win(control):
        names = [trial.route for trial in trials if trial.eligible and trial.alias_of == control.route.id]
        if names:
            bench.control = control = replace(control, route=min(names, key=simplicity))
    return control


def contenders_of(bench: Bench, control: Trial, trials: list[Trial]) -> list[Trial]:
    """The finalists; beside an eligible default only those that may still clear the gain asked for."""
    timing = bench.subject.target.timing
    at_least = 1 + timing.min_gain if _default_may_win(bench, control) else 0.0
    found = finalists(trials, timing.finalists + _stands_in(control), at_least)
    return [trial for trial in found if trial.route != control.route][: timing.finalists]


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


def _decide(
    bench: Bench, control: Trial, left: list[Trial], contest: Contest, dropped: Mapping[str, str]
) -> Decision:
    timing = bench.subject.target.timing
    duels = [
        DuelResult(str(trial.route), len(trial.route), log_ratios(contest.loads, str(trial.route), CONTROL))
        for trial in left
    ]
    if _stands_in(control):
        count = sum(not load["dropped"] for load in contest.loads)
        duels.append(DuelResult(str(control.route), len(control.route), [0.0] * max(count, 1)))
    may_win = _default_may_win(bench, control)
    forbidden = control.eligible and not bench.space.permits({})
    why = "is not one that the target permits" if forbidden else "is not eligible"
    if not duels and not may_win:
        reasons = "; ".join(f"{route}: {reason}" for route, reason in dropped.items())
        raise NoEligibleRoute(
            f"target {bench.subject.target.name!r}: every route that could have won was dropped ({reasons}), "
            f"and the default route {why}",
            {"target": bench.subject.target.name, "dropped": dict(dropped)},
        )
    found = decide(
        duels,
        min_gain=timing.min_gain,
        confidence=timing.confidence,
        barred="" if may_win else why,
    )
    absent = f"not in the duel: no more than {len(contest.fought)} finalists ran beside each other"
    return replace(found, explanations=found.explanations | dict.fromkeys(sorted(contest.left_out), absent))


def _default_may_win(bench: Bench, control: Trial) -> bool:
    return control.route.is_default and bench.may_win(control)


def _stands_in(control: Trial) -> bool:
    """Whether the control replaces a default route that does not run, and so may win like the others."""
    return control.eligible and not control.route.is_default


def _duel(bench: Bench, control: Trial, contenders: list[Trial], dropped: dict[str, str]) -> Contest:
    """The duel of as many contenders, best first, as run beside each other.

    One that fails alone, too, is dropped; then there is no contest, as others may have come within reach.
    """
    timing, before = bench.subject.target.timing, len(dropped)
    left = [whole for trial in contenders if (whole := _whole(bench, trial, dropped))]
    while left and len(dropped) == before:
        count = loads_of(timing, len(left) + _stands_in(control))
        try:
            loads = duel(bench, _named(control, left), count)
        except StepFailed as failed:
            if not _drop_failing(bench, control, left, dropped) and len(left) == 1:
                dropped[str(left[0].route)] = f"in the duel, though it ran once: {failed.reason}"
            left = left[: len(left) // 2]
        else:
            fought = {str(trial.route): trial for trial in left}
            return Contest(loads, fought, frozenset(str(trial.route) for trial in contenders) - fought.keys())
    return Contest()


def _whole(bench: Bench, trial: Trial, dropped: dict[str, str]) -> Trial | None:
    """The trial with all of its engine, which one of the records lacks; it is dropped where that is gone."""
    assert trial.engine is not None
    if "options" in trial.engine:
        return trial
    # It was built under the name of the route that was measured, be it called otherwise now.
    same = (one for one in bench.trials.values() if one.engine == trial.engine and one.alias_of is None)
    engine = kept_engine(bench, next(same, trial).route)
    if engine is None or engine["digest"] != trial.engine["digest"]:
        dropped[str(trial.route)] = "its engine is gone from the store"
        return None
    return replace(trial, engine=engine)


def loads_of(timing: Timing, rivals: int) -> int:
    """How many loads a duel of so many has: those asked for, or as many as a winner needs."""
    return max(timing.loads, loads_needed(rivals, timing.confidence, SPARE))


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
    # A trial's limit is for two engines side by side.
    more = (len(engines) / 2 - 1) * bench.subject.target.budget.trial_seconds
    load: Mapping[str, Any] = bench.step(STEP, order, measuring=PATIENCE * timing.seconds + max(more, 0.0))
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
