"""Stage: the outputs that define accuracy, made by the model as it was written."""

from __future__ import annotations

import math
import warnings
from typing import Any

from routetune.tasks.bench import Bench
from routetune.tasks.canonical import to_float
from routetune.tasks.errors import BadInput
from routetune.tasks.judging import sets_order, task_order
from routetune.tasks.report import progress
from routetune.tasks.sources import input_blob, label_blob, references_of
from routetune.tasks.stage import stage
from routetune.tasks.store.keys import code_digest
from routetune.tasks.subject import check_unchanged
from routetune.tasks.targets.inputs import InputSet, timing_set
from routetune.tasks.targets.variations import probes
from routetune.tasks.verdicts.rules import rules_of, section_of

TRY_METRIC = "routetune.tasks.verdicts.checks:try_metric"


@stage("make references", of="input set")
def make_references(bench: Bench, sets: list[InputSet]) -> list[dict[str, Any]]:
    """Reference outputs of every input set; they and the timing inputs are noted on the bench.

    Returns: one dict per set: "name", "role", and the blobs of its "inputs" and "outputs"; behind the sets
        that are judged, the probes, which only show whether outputs move with the inputs.

    Raises:
        BadInput: the model does not run as written, its outputs cannot serve as a reference, or the target's
            own metric does not work on them.
    """
    progress.tell(progress.Snapshot("reference outputs"))
    target, model = bench.subject.target, bench.subject.model
    check_unchanged(bench.subject)  # the sets were read later than their digests were taken
    bench.references = references_of(bench, [*sets, *probes(target, model, sets)])
    timed = timing_set(target, model, sets)
    _refuse_bad(bench, timed.name)
    bench.labels = {one.name: blob for one in sets if (blob := label_blob(bench, one))}
    _try_metric(bench)
    bench.timing_inputs = input_blob(bench, timed)
    return bench.references


def _refuse_bad(bench: Bench, timed: str) -> None:
    """A reference that is broken or proves nothing is the reference's fault, never a route's."""
    where = f"target {bench.subject.target.name!r}: reference"
    ignored = bench.subject.target.accuracy.ignored
    for one in bench.references:
        judged = one["role"] != "probe"
        found = {
            kind: [name for name in one[kind] if name not in ignored]
            for kind in ("non_finite", "unstable", "constant", "empty")
        }
        if found["unstable"]:
            raise BadInput(
                f"{where}: output {_named(found['unstable'])} differs between two runs on input set "
                f"{one['name']!r}; take what is random out of the model, where a seed may not be enough, or "
                f"leave it out of the verdict with {section_of(found['unstable'][0])} ignore = true"
            )
        if found["non_finite"] and judged:
            raise BadInput(
                f"{where}: output {_named(found['non_finite'])} is not finite on input set {one['name']!r}, "
                + _cure(bench, one)
            )
        for kind, holds, proves in (
            ("constant", "one single value", "little"),
            ("empty", "no elements", "nothing"),
        ):
            if found[kind] and judged:
                idle = "; it is the set that is timed, perhaps without its work: see reference.ranges"
                warnings.warn(
                    f"{where}: output {_named(found[kind])} has {holds} on input set {one['name']!r}: "
                    f"comparing it proves {proves}{idle * (kind == 'empty' and one['name'] == timed)}",
                    stacklevel=2,
                )
    _refuse_what_says_nothing(bench, where)


def _refuse_what_says_nothing(bench: Bench, where: str) -> None:
    """No element of an output, or the cosine of one, would pass under every tolerance."""
    rules = rules_of(bench.subject.target.accuracy)
    judged = [one for one in bench.references if one["role"] != "probe"]
    for name in sorted({name for one in judged for kind in ("empty", "single") for name in one[kind]}):
        rule = rules.of(name)
        if not rule.of_pairs or rule.ignore or rule.tolerance == math.inf:
            continue
        if all(name in one["empty"] for one in judged):
            raise BadInput(
                f"{where}: output {name!r} has no elements on any input set, so nothing would be compared; "
                "give inputs or ranges on which it has some, or leave it out of the verdict with "
                f"{section_of(name)} ignore = true"
            )
        if rule.metric == "cos" and all(name in (*one["empty"], *one["single"]) for one in judged):
            raise BadInput(
                f"{where}: output {name!r} has one element, of which the cosine shows the sign alone; give "
                f"it another metric in {section_of(name)}, or ignore it"
            )


def _cure(bench: Bench, one: dict[str, Any]) -> str:
    """Where outputs that are not finite come from, and what to do."""
    if bench.subject.target.reference.saved and one["role"] == "user":
        return "in the files that reference.source names; save others"
    return "when the model runs as written and unoptimised; give other inputs, or mend the model"


def _named(names: list[str]) -> str:
    return ", ".join(map(repr, names))


def _try_metric(bench: Bench) -> None:
    """Call the metric of whole input sets on the reference beside itself: its faults are no route's."""
    task = task_order(bench)
    if task is None:
        return
    key = bench.key(
        "accuracy",
        code_digest("routetune.tasks.verdicts.checks"),
        tried=bench.subject.bound_to["target"]["accuracy"]["task"],
        references=[[one["name"], one["outputs"], bench.labels.get(one["name"])] for one in bench.references],
    )

    def make() -> tuple[dict[str, Any], list[str]]:
        judged = [one for one in sets_order(bench, bench.references) if one["role"] != "probe"]
        return {"losses": bench.step(TRY_METRIC, {"sets": judged, "task": task})}, []

    where = f"target {bench.subject.target.name!r}"
    answer = bench.answer(key, make)
    if "failure" in answer.value:
        raise BadInput(f"{where}: {answer.value['failure']['reason']} (the reference beside itself)")
    tolerance = bench.subject.target.accuracy.tolerance
    for one in answer.value["losses"]:
        if to_float(one["loss"]) > tolerance:
            raise BadInput(
                f"{where}: metric {task['metric']!r} gives {one['loss']} for the reference beside itself on "
                f"input set {one['set']!r}, which is above the tolerance {tolerance:g}: nothing could pass"
            )
