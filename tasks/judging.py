"""What the worker is told to judge an engine by, and the verdict on what it found; used by several stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from routetune.tasks.bench import Bench
from routetune.tasks.engines.worker import StepFailed
from routetune.tasks.errors import BadInput
from routetune.tasks.targets.custom import custom_metric
from routetune.tasks.targets.rules import scores_of
from routetune.tasks.verdicts.accuracy import judge
from routetune.tasks.verdicts.cases import Verdict
from routetune.tasks.verdicts.rules import DROP, comparing, rules_of

CHECK = "routetune.tasks.verdicts.checks:check"


def judged(bench: Bench, report: Sequence[dict[str, Any]]) -> Verdict:
    """The verdict by the target's own rule. Never cached: metric and tolerance may change at any time."""
    rules = rules_of(bench.subject.target.accuracy)
    return judge(report, rules.default.metric, rules.default.tolerance, rules.outputs)


def check_order(
    bench: Bench, engine: dict[str, Any], references: Sequence[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """The arguments of the worker's check, as plain JSON; by default on the references of the run."""
    return {
        "backend": bench.subject.backend,
        "engine": engine,
        "path": bench.engine_path(engine),
        "device": bench.subject.device,
        "settings": bench.subject.target.engine.as_settings(),
        "sets": sets_order(bench, bench.references if references is None else references),
        "comparing": comparing(bench.subject.target.accuracy),
        "task": task_order(bench),
        "scores": scores_output(bench),
    }


def sets_order(bench: Bench, references: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The input sets with the files of their inputs, outputs and labels."""
    verified = bench.store.blobs.verified
    orders = []
    for one in references:
        labels = bench.labels.get(one["name"])
        files = {part: str(verified(one[part])) for part in ("inputs", "outputs")}
        orders.append(
            {"name": one["name"], "role": one["role"], **files, "labels": labels and str(verified(labels))}
        )
    return orders


def scores_output(bench: Bench) -> str | None:
    """The output that labels belong to; None without labels, or where several outputs leave it open."""
    target, outputs = bench.subject.target, bench.subject.model.outputs
    if not bench.labels or (target.accuracy.scores is None and len(outputs) != 1):
        return None
    return scores_of(target, outputs)


def task_order(bench: Bench) -> dict[str, Any] | None:
    """The metric of whole input sets, as the worker takes it; None where outputs are compared one by one."""
    target = bench.subject.target
    if target.accuracy.metric == DROP:
        scores = scores_of(target, bench.subject.model.outputs)
        return {"metric": DROP, "scores": scores, "k": target.accuracy.k}
    custom = custom_metric(target)
    if custom is None:
        return None
    if custom.digest != bench.subject.bound_to["target"]["accuracy"]["task"]["source"]:
        raise BadInput(
            f"the source of metric {custom.name!r} was changed while target {target.name!r} was being tuned; "
            "run again"
        )
    return custom.to_order()


def problem_of(
    bench: Bench, engine: dict[str, Any], references: Sequence[dict[str, Any]] | None = None
) -> str:
    """Why an engine fails a check that is made now, whatever the store holds; "" where it passes."""
    try:
        report = bench.step(CHECK, check_order(bench, engine, references))
    except StepFailed as failed:
        return f"{failed.outcome}: {failed.reason}"
    found = judged(bench, report)
    return "" if found.accepted else found.reason
