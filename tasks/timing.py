"""Stage: time each engine beside the control."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

from routetune.tasks.bench import Bench, failure_from
from routetune.tasks.engines.fleet import Member
from routetune.tasks.judging import CHECK, check_order
from routetune.tasks.routes.route import Route
from routetune.tasks.stage import stage
from routetune.tasks.store.keys import code_digest
from routetune.tasks.trial import Trial
from routetune.tasks.verdicts.accuracy import is_finite
from routetune.tasks.verdicts.rounds import PATIENCE, estimate_from, figures_from

#: A candidate this many times slower than the best eligible one is abandoned: no noise makes up for it.
HOPELESS = 3.0


@stage("time engines", of="engine")
def time_engines(bench: Bench, trials: list[Trial]) -> list[Trial]:
    """The trials with their speed beside the control; also those over the tolerance, for the frontier.

    With the first that may be the control come all trials before it.
    """
    if bench.control is None and _stand_in(bench, trials):
        # What ran before there was anything to measure it against.
        trials = [*bench.trials.values(), *trials]
    timed = bench.fleet.deal(partial(_timed, bench), [trial for trial in trials if trial.alias_of is None])
    found = {trial.route.id: trial for trial in timed}
    for trial in trials:
        # In the order asked for, whoever was faster; an alias stands behind the route that it inherits from.
        bench.trials.pop(trial.route.id, None)
        bench.trials[trial.route.id] = found.get(trial.route.id) or _inherited(bench, trial)
    return [bench.trials[trial.route.id] for trial in trials]


def time_engine(bench: Bench, trial: Trial, control: Trial) -> Trial:
    """Raw rounds of one engine beside the control's, from the worker or the store."""
    assert trial.engine is not None and control.engine is not None
    engines = {"candidate": trial.engine, "control": control.engine}
    first = loaded_first(trial.route)
    answer = bench.answer(
        _key(bench, engines, first),
        make=lambda: _make(bench, engines, first),
        holds=lambda value: _still_holds(bench, value),
    )
    seconds = trial.seconds | answer.spent("timing")
    cached = (*trial.cached, "timing") if answer.cached else trial.cached
    device = answer.value.get("device", trial.device)
    trial = replace(trial, seconds=seconds, cached=cached, device=device, failure=failure_from(answer.value))
    rounds = answer.value.get("rounds")
    if rounds is None:
        return trial
    estimate = estimate_from(rounds, bench.subject.target.timing.confidence)
    return replace(
        trial,
        timing=rounds,
        speed=estimate.ratio,
        low=estimate.low,
        high=estimate.high,
        abandoned=bool(rounds["abandoned"]),
    )


def loaded_first(route: Route) -> str:
    """Which side of a route's measurement is loaded first, "candidate" or "control".

    Identical engines, side by side on a GPU, were once seen 0.7 to 1.1 % apart. By the route's id the order
    is the same whenever a route is timed, and over many routes it favours neither side.
    """
    return ("candidate", "control")[int(route.id, 16) % 2]


def without_samples(trial: Trial) -> Trial:
    """The trial with the figures of its raw rounds in their place: thousands of them fill the memory."""
    if trial.timing is None:
        return trial
    return replace(trial, timing=None, figures=figures_from(trial.timing))


def _timed(bench: Bench, trial: Trial) -> Trial:
    control = bench.control
    if control is None or not _can_be_timed(bench, trial):
        found = trial
    elif trial.route == control.route:
        found = replace(trial, speed=1.0, low=1.0, high=1.0)
    else:
        found = time_engine(bench, trial, control)
    bench.trials[trial.route.id] = found  # at once: the next one may be hopeless beside it
    return found


def _can_be_timed(bench: Bench, trial: Trial) -> bool:
    ignored = bench.subject.target.accuracy.ignored
    return trial.failure is None and trial.losses is not None and is_finite(trial.losses, ignored)


def _stand_in(bench: Bench, trials: list[Trial]) -> bool:
    """Take the first trial for the control that may be it; says whether there is one.

    The default route comes first, so it is the control wherever it runs; elsewhere the first eligible route
    stands in, since speed needs something to be measured against.
    """
    for trial in trials:
        may = trial.alias_of is None and (trial.route.is_default or bool(trial.accepted))
        if may and _can_be_timed(bench, trial):
            set_control(bench, replace(trial, speed=1.0, low=1.0, high=1.0))
            return True
    return False


def set_control(bench: Bench, trial: Trial) -> None:
    """Make a trial what the others are measured against, and the canary of every worker."""
    bench.control = trial
    for member in bench.fleet.members:
        member.attempts.canary = partial(_run_alone, bench, member, trial)


def _still_holds(bench: Bench, value: dict[str, Any]) -> bool:
    """Whether a kept measurement may be used: one that was cut short tells only that the engine was slow
    beside the best one of its day, which another tolerance or control may have made ineligible."""
    rounds = value.get("rounds")
    if rounds is None or not rounds["abandoned"]:
        return True
    bound = abandon_below(bench)
    return bound is not None and estimate_from(rounds).ratio < bound


def _run_alone(bench: Bench, member: Member, control: Trial) -> None:
    """The control as a canary: load and run it; raises StepFailed when even that does not work any more."""
    assert control.engine is not None
    limit = bench.subject.target.budget.trial_seconds
    member.attempts.worker.call(CHECK, check_order(bench, control.engine), limit, bench.log)


def _inherited(bench: Bench, trial: Trial) -> Trial:
    """An alias with the verdict and time of the route that was measured."""
    first = bench.trials.get(trial.alias_of or "")
    if first is None:
        return trial
    names = ("losses", "loss", "accepted", "verdict", "speed", "low", "high", "abandoned", "failure")
    return replace(trial, device=first.device, **{name: getattr(first, name) for name in names})


def _key(bench: Bench, engines: dict[str, dict[str, Any]], first: str) -> dict[str, Any]:
    return bench.key(
        "timing",
        code_digest("routetune.tasks.verdicts.steps"),
        first=first,
        inputs=bench.timing_inputs,
        settings=round_settings(bench) | {"cuda_graph": bench.subject.target.timing.cuda_graph},
        **{role: [engine["digest"], engine["options"]] for role, engine in engines.items()},
    )


def _make(bench: Bench, engines: dict[str, dict[str, Any]], first: str) -> tuple[dict[str, Any], list[str]]:
    started = time.monotonic()
    order: dict[str, Any] = {
        "backend": bench.subject.backend,
        "device": bench.subject.device,
        "settings": bench.subject.target.run_settings(),
        "inputs": str(bench.store.blobs.verified(bench.timing_inputs)),
        "rounds": round_settings(bench) | {"abandon_below": abandon_below(bench)},
        "first": first,
    }
    for role, engine in engines.items():
        order |= {role: engine, f"{role}_path": bench.engine_path(engine)}
    limit = PATIENCE * bench.subject.target.timing.seconds
    rounds = bench.step("routetune.tasks.verdicts.steps:time", order, measuring=limit)
    seconds = round(time.monotonic() - started, 3)
    return {"rounds": rounds, "seconds": seconds, "device": bench.fleet.did}, []


def round_settings(bench: Bench) -> dict[str, Any]:
    timing = bench.subject.target.timing
    settings = {name: getattr(timing, name) for name in ("seconds", "width", "confidence", "streams")}
    # A chunk gives one sample of the throughput, in which its ends must not count for much.
    return settings | ({"chunk_seconds": 0.05} if timing.streams > 1 else {})


def abandon_below(bench: Bench) -> float | None:
    """The speed below which a candidate is hopeless, or None before there is an eligible one."""
    best = bench.best_speed
    return None if best is None else best / HOPELESS
