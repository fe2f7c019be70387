"""Stage: compare each engine's outputs with the references, and judge."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

from routetune.tasks.bench import Bench, failure_from
from routetune.tasks.judging import CHECK, check_order, judged, scores_output
from routetune.tasks.stage import stage
from routetune.tasks.store.keys import code_digest
from routetune.tasks.trial import Trial
from routetune.tasks.verdicts.rules import comparing


@stage("check accuracy", of="engine")
def check_accuracy(bench: Bench, trials: list[Trial]) -> list[Trial]:
    """The trials with losses of all metrics and a verdict under the target's own rule."""
    return bench.fleet.deal(partial(_checked, bench), trials)


def _checked(bench: Bench, trial: Trial) -> Trial:
    return trial if _nothing_to_do(trial) else verdict(bench, check(bench, trial))


def check(bench: Bench, trial: Trial) -> Trial:
    """Losses of one engine, from the worker or the store. They hold for every metric and every tolerance."""
    assert trial.engine is not None
    engine, repeat = trial.engine, trial.route.is_default
    answer = bench.answer(_key(bench, engine, repeat), lambda: _make(bench, engine, repeat))
    return replace(
        trial,
        losses=answer.value.get("losses"),
        failure=failure_from(answer.value),
        seconds=trial.seconds | answer.spent("accuracy"),
        cached=(*trial.cached, "accuracy") if answer.cached else trial.cached,
        device=answer.value.get("device", trial.device),
    )


def verdict(bench: Bench, trial: Trial) -> Trial:
    """Judge the losses by the target's metric and tolerance. Never cached: both may change at any time."""
    if trial.losses is None:
        return trial
    found = judged(bench, trial.losses)
    return replace(trial, accepted=found.accepted, loss=found.loss, verdict=found.reason)


def _nothing_to_do(trial: Trial) -> bool:
    return trial.failure is not None or trial.alias_of is not None


def _key(bench: Bench, engine: dict[str, Any], repeat: bool) -> dict[str, Any]:
    bound = bench.subject.bound_to["target"]["accuracy"]
    task = bound.get("task")
    labels = [bench.labels.get(one["name"]) for one in bench.references]
    return bench.key(
        "accuracy",
        code_digest("routetune.tasks.verdicts.checks"),
        engine=engine["digest"],
        options=engine["options"],
        references=[
            [one[part] for part in ("name", "role", "inputs", "outputs")] for one in bench.references
        ],
        comparing=comparing(bench.subject.target.accuracy),
        labels=labels,
        scores=scores_output(bench),
        task=task and {"metric": bound["metric"], **task},
        repeat=repeat,
    )


def _make(bench: Bench, engine: dict[str, Any], repeat: bool) -> tuple[dict[str, Any], list[str]]:
    # A repeat of the default route shows how far outputs move by themselves: no ε can ask for less.
    started = time.monotonic()
    losses = bench.step(CHECK, check_order(bench, engine) | {"repeat": repeat})
    seconds = round(time.monotonic() - started, 3)
    return {"losses": losses, "seconds": seconds, "device": bench.fleet.did}, []
