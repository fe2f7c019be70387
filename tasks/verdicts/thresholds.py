"""The least tolerance that a comparison passes at, so that one comparison answers every tolerance at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from routetune.tasks.errors import BadInput
from routetune.tasks.verdicts.cases import Case, TaskCase
from routetune.tasks.verdicts.rules import Rule, Rules, rules_of

if TYPE_CHECKING:
    from routetune.tasks.targets.judging import Accuracy

#: A loss of 0 with other bits passes at every tolerance but 0: at the smallest number above it.
ABOVE_ZERO = math.nextafter(0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Dial:
    """The rule of a target with its tolerance left open.

    Attributes:
        rules: as `rules_of` gives them; the tolerance of those that follow the dial means nothing.
        fixed: outputs with a tolerance of their own, which the dial does not move.
    """

    rules: Rules
    fixed: frozenset[str]


def dial_of(accuracy: Accuracy, metric: str | None = None) -> Dial:
    """The dial of a target's [accuracy], under its own metric or another one."""
    rules = rules_of(accuracy)
    default = replace(rules.default, metric=metric or rules.default.metric, tolerance=1.0)
    outputs = {
        name: replace(rule, metric=accuracy.outputs[name].metric or default.metric)
        for name, rule in rules.outputs.items()
    }
    found = Dial(
        Rules(default, outputs),
        frozenset(n for n, own in accuracy.outputs.items() if own.tolerance is not None),
    )
    found.rules.check()
    return found


def threshold(report: Sequence[Mapping[str, Any]], dial: Dial) -> float:
    """The least tolerance at which `accuracy.judge` accepts a comparison, for every tolerance at once.

    0 where all bits are equal, infinity where only a check that is off lets it pass, and NaN where nothing
    does: an output is missing or not finite, or one with a tolerance of its own is over that.

    Args:
        report: as the worker's check gives it, one dict per input set.

    Raises:
        BadInput: the losses of the metric are not in the report.
    """
    cases = [
        case
        for one in report
        for name, entry in one["outputs"].items()
        if not (case := Case(one["set"], name, entry, _rule(dial, name, entry))).ignored
    ]
    if any("problem" in case.entry or case.entry["non_finite_candidate"] for case in cases):
        return math.nan
    fixed = [case for case in cases if case.output in dial.fixed]
    if any(case.finite and not _passes(case) for case in fixed):
        return math.nan
    needs = [_needed(case) for case in cases if case.output not in dial.fixed]
    if not dial.rules.default.of_pairs:
        needs += [max(_task(one, dial.rules.default).loss, 0.0) for one in report]
    return max(needs, default=0.0)


def _rule(dial: Dial, output: str, entry: Mapping[str, Any]) -> Rule:
    rule = dial.rules.of(output)
    if rule.metric == "topk" and "topk" not in entry and "problem" not in entry:
        raise _not_recorded("topk")
    return rule


def _task(one: Mapping[str, Any], rule: Rule) -> TaskCase:
    if "task" not in one:
        raise _not_recorded(rule.metric)
    return TaskCase(one["set"], one["task"], rule)


def _not_recorded(metric: str) -> BadInput:
    return BadInput(
        f"the losses of metric {metric!r} are not in the records, since the target that was tuned does not "
        "use it: name it in accuracy.metric and tune again, which checks the kept engines once more"
    )


def _sound(case: Case) -> bool:
    """Whether a finite tolerance can be met at all."""
    return not (case.entry["non_finite_reference"] or case.stuck)


def _passes(case: Case) -> bool:
    if not _sound(case) or not case.rule.of_pairs:
        return _sound(case)
    if case.rule.tolerance == 0:
        return not case.entry["differing_bits"]
    return case.loss <= case.rule.tolerance


def _needed(case: Case) -> float:
    if not _sound(case):
        return math.inf
    if not case.rule.of_pairs:
        return 0.0
    return max(case.loss, ABOVE_ZERO) if case.entry["differing_bits"] else 0.0
