"""What a reader must know before trusting a winner: a check that was off, outputs that do not move, a speed
that is too good."""

from __future__ import annotations

from routetune.tasks.bench import Bench
from routetune.tasks.errors import BadInput
from routetune.tasks.judging import problem_of
from routetune.tasks.sources import references_of
from routetune.tasks.targets.inputs import input_sets
from routetune.tasks.targets.variations import fresh
from routetune.tasks.trial import Trial
from routetune.tasks.verdicts.rules import is_off, rules_of

#: An engine so many times faster than the control more likely skips the work than does it well.
TOO_GOOD = 50.0


def too_good(trial: Trial) -> bool:
    """Whether a trial takes next to no time beside the control."""
    return trial.speed is not None and trial.speed > TOO_GOOD


def problem_with_fresh_inputs(bench: Bench, trial: Trial) -> str:
    """Why an engine that is too fast fails on inputs it cannot know; "" where it passes, or is not too fast.

    The inputs are drawn by the digest of the engine itself, so no engine can hold the answers to them:
    whoever put the answers in would change the digest. Where the whole check is off there is nothing to fail.
    """
    target, model = bench.subject.target, bench.subject.model
    if not too_good(trial) or is_off(rules_of(target.accuracy)) or trial.engine is None:
        return ""
    sets = fresh(target, model, input_sets(target, model), trial.engine["digest"])
    try:
        found = [one for one in references_of(bench, sets) if not one["non_finite"]]
    except BadInput as error:
        return f"{_speed(trial)}, and cannot be checked on fresh inputs: {error}"
    if not found:
        return f"{_speed(trial)}, and on fresh inputs the reference is not finite, so it cannot be checked"
    problem = problem_of(bench, trial.engine, [*bench.references, *found])
    return problem and f"{_speed(trial)}, and on fresh inputs {problem}"


def warnings_about(bench: Bench, trial: Trial) -> list[str]:
    """Sentences that belong beside the result, loudly."""
    off = is_off(rules_of(bench.subject.target.accuracy))
    found = []
    if off:
        found.append(
            "the accuracy check is off (tolerance inf): nothing says that this engine computes what the "
            "model does"
        )
    found += sorted({f"its output {name!r} ignores the inputs" for name in _stuck(bench, trial)})
    if too_good(trial):
        checked = "nothing was checked" if off else "it was checked on inputs that it cannot know, and passed"
        found.append(f"{_speed(trial)}; {checked}")
    return found


def _stuck(bench: Bench, trial: Trial) -> set[str]:
    ignored = bench.subject.target.accuracy.ignored
    return {
        name
        for one in trial.losses or ()
        for name, entry in one["outputs"].items()
        if "stuck" in entry and name not in ignored
    }


def _speed(trial: Trial) -> str:
    return f"it is {trial.speed:.3g} times as fast as the control, as if it did no work"
