"""Stage: compare each engine's outputs with the references, and judge."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from routetune.tasks.bench import Bench, failure_from
from routetune.tasks.stage import stage
from routetune.tasks.store.keys import code_digest
from routetune.tasks.trial import Trial
from routetune.tasks.verdicts.accuracy import judge

CHECK = "routetune.tasks.verdicts.steps:check"


@stage("check accuracy", of="engine")
def check_accuracy(bench: Bench, trials: list[Trial]) -> list[Trial]:
    """The trials with losses of all metrics and a verdict under the target's own rule."""
    return [trial if _nothing_to_do(trial) else verdict(bench, check(bench, trial)) for trial in trials]


def check(bench: Bench, trial: Trial) -> Trial:
    """Losses of one engine, from the worker or the store. They hold for every metric and every tolerance."""
    assert trial.engine is not None
    engine = trial.engine
    answer = bench.answer(_key(bench, engine), lambda: _make(bench, engine))
    return replace(
        trial,
        losses=answer.value.get("losses"),
        failure=failure_from(answer.value),
        seconds=trial.seconds | {"accuracy": answer.value.get("seconds", 0.0)},
        cached=(*trial.cached, "accuracy") if answer.cached else trial.cached,
    )


def verdict(bench: Bench, trial: Trial) -> Trial:
    """Judge the losses by the target's metric and tolerance. Never cached: both may change at any time."""
    if trial.losses is None:
        return trial
    accuracy = bench.subject.target.accuracy
    judged = judge(trial.losses, accuracy.metric, accuracy.tolerance)
    return replace(trial, accepted=judged.accepted, loss=judged.loss, verdict=judged.reason)


def _nothing_to_do(trial: Trial) -> bool:
    return trial.failure is not None or trial.alias_of is not None


def _key(bench: Bench, engine: dict[str, Any]) -> dict[str, Any]:
    accuracy = bench.subject.target.accuracy
    return bench.key(
        "accuracy",
        code_digest("routetune.tasks.verdicts.steps"),
        engine=engine["digest"],
        options=engine["options"],
        references=[[one["name"], one["inputs"], one["outputs"]] for one in bench.references],
        atol=accuracy.atol,
        rtol=accuracy.rtol,
    )


def _make(bench: Bench, engine: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    started = time.monotonic()
    losses = bench.step(CHECK, check_order(bench, engine))
    return {"losses": losses, "seconds": round(time.monotonic() - started, 3)}, []


def check_order(bench: Bench, engine: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the worker's check, as plain JSON."""
    accuracy = bench.subject.target.accuracy
    blobs = bench.store.blobs
    return {
        "backend": bench.subject.backend,
        "engine": engine,
        "path": bench.engine_path(engine),
        "device": bench.subject.device,
        "settings": bench.subject.target.engine.as_settings(),
        "sets": [
            {"name": one["name"]} | {part: str(blobs.verified(one[part])) for part in ("inputs", "outputs")}
            for one in bench.references
        ],
        "atol": accuracy.atol,
        "rtol": accuracy.rtol,
    }
