"""Stage: the trials of an earlier run, judged anew, with the engines that the store still holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from routetune.tasks.bench import Bench
from routetune.tasks.build import kept_engine
from routetune.tasks.errors import BadInput, NeedsBuild
from routetune.tasks.judging import judged
from routetune.tasks.recorded import RecordedRun, recorded
from routetune.tasks.routes.tuning_log import parse_tokens
from routetune.tasks.select import contenders_of
from routetune.tasks.stage import stage
from routetune.tasks.store.records import row
from routetune.tasks.timing import HOPELESS, set_control, without_samples
from routetune.tasks.trial import Failure, Outcome, Trial
from routetune.tasks.verdicts.thresholds import dial_of, threshold

#: Steps that a recorded trial has behind it.
STEPS = ("build", "accuracy", "timing")


@stage("recall trials", of="run")
def recall_trials(bench: Bench, run: str | None) -> list[Trial]:
    """The trials of a run, by default of the latest in this environment, under the target's rule of now.

    Losses and speeds are those that were recorded. Those that may win, and the control, have their engines,
    whose bytes were read; the others need none. They are on the bench, and in the records of its own run.

    Raises:
        NeedsBuild: something moved that the figures depend on, or the engine of one that may win is gone.
        BadInput: nothing was recorded, or not the losses of the metric.
    """
    found = recorded(bench.subject, bench.store, run)
    _refuse_unknown_losses(bench, found)
    _refuse_moved(bench, found)
    trials = _in_reach([_recalled(bench, one) for one in found.rows])
    control = next((trial for trial in trials if _was_control(trial)), None)
    if control is not None:
        duellists = [control, *contenders_of(bench, control, trials)]
        whole = {trial.route.id: _with_engine(bench, trial) for trial in duellists}
        trials = [whole.get(trial.route.id, trial) for trial in trials]
        set_control(bench, whole[control.route.id])
    name = bench.subject.target.name
    bench.store.records.append([row(bench.run.id, name, bench.subject.key, trial) for trial in trials])
    trials = [without_samples(trial) for trial in trials]
    bench.trials.update({trial.route.id: trial for trial in trials})
    return trials


def _in_reach(trials: list[Trial]) -> list[Trial]:
    """The trials, with those not given up whose measurement was cut short beside one that may not win now.

    Their speeds are rough, and have no interval: the duel tells.
    """
    best = max((one.speed for one in trials if one.eligible and not one.abandoned and one.speed), default=0.0)
    return [
        replace(one, abandoned=False) if one.abandoned and (one.speed or 0.0) >= best / HOPELESS else one
        for one in trials
    ]


def _refuse_moved(bench: Bench, found: RecordedRun) -> None:
    if found.moved:
        raise NeedsBuild(
            f"target {bench.subject.target.name!r} needs more than a choice among the trials of run "
            f"{found.run.id}: {'; '.join(map(str, found.moved))}. Run 'routetune tune "
            f"{bench.subject.target.path}' first, which builds or measures what that asks for"
        )


def _refuse_unknown_losses(bench: Bench, found: RecordedRun) -> None:
    """Raises BadInput where the metric was not computed; one report tells, as all have the same metrics."""
    report = next((one["losses"] for one in found.rows if one["losses"] and one["speed"] is not None), None)
    if report is not None:
        threshold(json.loads(report), dial_of(bench.subject.target.accuracy))


def _recalled(bench: Bench, one: Mapping[str, Any]) -> Trial:
    """A record as the trial that it was made from, but for the options of its engine."""
    engine = {"digest": one["engine"], "size": one["engine_size"], "identity": one["identity"]}
    losses = json.loads(one["losses"]) if one["losses"] else None
    trial = Trial(
        _route(bench, one["route"]),
        engine=engine if one["engine"] else None,
        alias_of=one["alias_of"],
        losses=losses,
        speed=one["speed"],
        low=one["low"],
        high=one["high"],
        timing=json.loads(one["timing"]) if one["timing"] else None,
        abandoned=bool(one["abandoned"]),
        failure=_failure(one),
        cached=STEPS,
        seconds=json.loads(one["seconds"] or "{}"),
        device=one["device"],
    )
    if losses is None or trial.failure is not None:
        return trial
    verdict = judged(bench, losses)
    return replace(trial, accepted=verdict.accepted, loss=verdict.loss, verdict=verdict.reason)


def _route(bench: Bench, text: str) -> Any:
    try:
        return bench.database.route(parse_tokens(text))
    except (BadInput, ValueError) as error:
        raise NeedsBuild(
            f"route {text!r} of the records means nothing to this backend any more: {error}"
        ) from None


def _failure(one: Mapping[str, Any]) -> Failure | None:
    if one["step"] is None:
        return None
    return Failure(Outcome(one["outcome"]), one["reason"], one["step"], one["log"])


def _was_control(trial: Trial) -> bool:
    """The control has no timing beside itself, and exactly its own speed."""
    own = trial.alias_of is None and trial.timing is None
    return own and (trial.speed, trial.low, trial.high) == (1.0, 1.0, 1.0)


def _with_engine(bench: Bench, trial: Trial) -> Trial:
    engine, recorded_one = kept_engine(bench, trial.route), trial.engine or {}
    if engine is None or engine["digest"] != recorded_one.get("digest"):
        what = "is gone from" if engine is None else "is another one in"
        raise NeedsBuild(
            f"{trial.route.label} may win, but its engine {recorded_one.get('digest')} {what} the store "
            f"{bench.store.name}: it needs build. Run 'routetune tune {bench.subject.target.path}', which "
            "makes what is missing"
        )
    return replace(trial, engine=engine)
