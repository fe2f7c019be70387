"""The rule that a target judges accuracy by: one for all outputs, and what single outputs do differently."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from routetune.tasks.errors import BadInput
from routetune.tasks.verdicts.losses import LOSSES

if TYPE_CHECKING:
    from routetune.tasks.targets.judging import Accuracy

#: Metrics of one pair of outputs. The others judge an input set as a whole: the drop in task accuracy, and
#: the user's own, which is named "module:function".
METRICS = (*LOSSES, "topk")
DROP = "accuracy_drop"


@dataclass(frozen=True, slots=True)
class Rule:
    """What one output must satisfy: weight * loss under `metric` <= `tolerance`; ignored, nothing."""

    metric: str
    tolerance: float
    weight: float = 1.0
    ignore: bool = False

    @property
    def of_pairs(self) -> bool:
        """Whether the metric compares single outputs, and not whole input sets."""
        return self.metric in METRICS


@dataclass(frozen=True, slots=True)
class Rules:
    """The rule of every output."""

    default: Rule
    outputs: Mapping[str, Rule] = field(default_factory=dict)

    def of(self, output: str) -> Rule:
        return self.outputs.get(output, self.default)

    def check(self) -> None:
        """Raises BadInput: a metric that does not exist, or a tolerance that is NaN or negative."""
        for rule in (self.default, *self.outputs.values()):
            # An output that names no metric of its own has the default's, whatever that is.
            own = rule.metric == self.default.metric and (rule.metric == DROP or ":" in rule.metric)
            if not (rule.of_pairs or own):
                raise BadInput(f"accuracy metric {rule.metric!r} is not one of {', '.join(METRICS)}")
            if not rule.tolerance >= 0:
                raise BadInput(
                    "accuracy tolerance must be a number >= 0, or inf to switch the check off, "
                    f"not {rule.tolerance}"
                )


def section_of(output: str) -> str:
    """The header of an output's own section in a target, as TOML writes it."""
    bare = re.fullmatch(r"[A-Za-z0-9_-]+", output)
    return f"[accuracy.outputs.{output if bare else json.dumps(output, ensure_ascii=False)}]"


def rules_of(accuracy: Accuracy) -> Rules:
    """The rules that a target's [accuracy] states."""
    default = Rule(accuracy.metric, accuracy.tolerance)
    return Rules(
        default,
        {
            name: Rule(
                own.metric or default.metric,
                default.tolerance if own.tolerance is None else own.tolerance,
                own.weight,
                own.ignore,
            )
            for name, own in accuracy.outputs.items()
        },
    )


def comparing(accuracy: Accuracy) -> dict[str, Any]:
    """What the comparison itself depends on, as plain JSON: a change of it asks for the engines once more.

    "k" is None where no output is judged by top-k agreement, which costs more than all other losses.
    """
    wanted = any(
        rule.metric == "topk" for rule in (rules_of(accuracy).default, *rules_of(accuracy).outputs.values())
    )
    bounds = {}
    for name, own in sorted(accuracy.outputs.items()):
        fields = {"atol": own.atol, "rtol": own.rtol, "k": own.k if wanted else None}
        if given := {key: value for key, value in fields.items() if value is not None}:
            bounds[name] = given
    return {
        "atol": accuracy.atol,
        "rtol": accuracy.rtol,
        "k": accuracy.k if wanted else None,
        "outputs": bounds,
    }


def is_off(rules: Rules) -> bool:
    """Whether no output is judged at all: every tolerance is infinite."""
    return all(rule.tolerance == math.inf for rule in (rules.default, *rules.outputs.values()))
