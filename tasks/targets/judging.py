"""The [accuracy] section of a target file: when a candidate's outputs are close enough."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from routetune.tasks.targets.fields import CLASS, NotNegative, Positive, Section, Text, number

#: Metrics of one pair of outputs, and those of whole input sets.
METRICS = ("l0", "l1", "l2", "lInf", "cos", "rel_l2", "rel_lInf", "exact", "topk")
SET_METRICS = ("accuracy_drop",)


def _tolerance(value: Any) -> Any:
    if value == "inf":
        return math.inf
    found = number(value)
    if not found >= 0:
        raise ValueError('must be a number from 0 (bit-identical) up, or "inf" (off)')
    return found


def _metric(value: Any) -> Any:
    known = (*METRICS, *SET_METRICS)
    if not isinstance(value, str) or not (value in known or CLASS.fullmatch(value)):
        raise ValueError(f'must be one of {", ".join(known)}, or a function of your own, "module:function"')
    return value


Metric = Annotated[str, BeforeValidator(_metric)]
Tolerance = Annotated[float, BeforeValidator(_tolerance)]
Classes = Annotated[int, Field(ge=1, le=1_000_000)]


class OutputRule(Section):
    """What one output does differently; what is left out is as in [accuracy].

    `weight` multiplies the loss. An output that is ignored, since it depends on chance, must only be there
    and be of the right type.
    """

    metric: Literal["l0", "l1", "l2", "lInf", "cos", "rel_l2", "rel_lInf", "exact", "topk"] | None = None
    tolerance: Tolerance | None = None
    weight: Positive = 1.0
    ignore: bool = False
    atol: NotNegative | None = None
    rtol: NotNegative | None = None
    k: Classes | None = None


class Accuracy(Section):
    """When a candidate's outputs are close enough: loss under `metric` <= `tolerance`.

    `metric` is one of METRICS for every output, "accuracy_drop" for what the candidate loses of the share of
    rows that `reference.labels` calls right, or "module:function" for a function of the user's own. `k` is
    the k of top-k agreement and of top-k accuracy; `scores` names the output that holds the classes' scores.
    """

    metric: Metric = "l0"
    tolerance: Tolerance = 0.01
    atol: NotNegative = 1e-5
    rtol: NotNegative = 1e-5
    k: Classes = 1
    scores: Text | None = None
    outputs: dict[str, OutputRule] = Field(default_factory=dict)

    @property
    def ignored(self) -> frozenset[str]:
        """The outputs whose values do not count."""
        return frozenset(name for name, own in self.outputs.items() if own.ignore)
