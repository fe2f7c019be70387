"""What a verdict weighs: one output on one input set, or one input set as a whole."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from routetune.tasks.canonical import to_float
from routetune.tasks.errors import BadInput
from routetune.tasks.verdicts.rules import DROP, Rule, section_of


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a candidate is accurate enough, and what decided it.

    Attributes:
        accepted: the candidate may win.
        loss: the deciding loss times its output's weight; infinite where an output could not be compared.
        reason: one sentence naming output, input set, metric, loss, tolerance and worst element.
        metric, tolerance: the deciding rule.
        output, input_set: where the deciding loss is; output is "" for a metric of whole input sets.
        worst: the deciding element as plain JSON (index, reference, candidate, difference, allowed,
            decided_by), or None when all elements are equal.
        blame: "candidate", "reference" (it is not finite, so no candidate can be judged by it) or "" when
            accepted.
    """

    accepted: bool
    loss: float
    reason: str
    metric: str
    tolerance: float
    output: str
    input_set: str
    worst: Mapping[str, Any] | None
    blame: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """One output on one input set under its rule.

    Attributes:
        entry: what `accuracy.compare_outputs` found. Where the candidate's output is the same on two input
            sets on which the reference's is not, `checks` has added "stuck": the names of the two.
    """

    input_set: str
    output: str
    entry: Mapping[str, Any]
    rule: Rule

    @property
    def ignored(self) -> bool:
        """Of an ignored output only presence and type count; its shape may depend on chance too."""
        return self.rule.ignore and self.entry.get("kind") not in ("name", "dtype")

    @property
    def finite(self) -> bool:
        return self.rule.tolerance != math.inf

    @property
    def raw(self) -> float:
        """The loss before its weight. Under a metric of whole input sets an output has lInf for show."""
        if "problem" in self.entry:
            return math.inf
        if self.rule.metric != "topk":
            return to_float(self.entry["losses"][self.rule.metric if self.rule.of_pairs else "lInf"])
        found = self.entry["topk"]
        if self.entry["elements"] and found["classes"] <= found["k"]:
            raise BadInput(
                f"accuracy: top-{found['k']} agreement says nothing of output {self.output!r}, whose last "
                f"dimension is {found['classes']}; give it another metric or k in "
                f"{section_of(self.output)}, or ignore it"
            )
        return to_float(found["loss"])

    @property
    def loss(self) -> float:
        return self.rule.weight * self.raw

    @property
    def bound(self) -> bool:
        """Whether its tolerance can fail it: a metric of whole input sets judges no single output."""
        return self.rule.of_pairs and self.finite

    @property
    def share(self) -> float:
        return share(self.loss, self.rule.tolerance)

    @property
    def worst(self) -> Mapping[str, Any] | None:
        """The element that explains the metric: l0 counts bounds, the others go by size."""
        element: Mapping[str, Any] | None = self.entry.get("farthest") if self.rule.metric == "l0" else None
        return element or self.entry.get("worst")

    @property
    def place(self) -> str:
        return f"output {self.output!r} on input set {self.input_set!r}"

    @property
    def told(self) -> str:
        """The loss in words, with its weight where it has one."""
        metric = self.rule.metric if self.rule.of_pairs else "lInf"
        name = f"top-{self.entry['topk']['k']}" if metric == "topk" else metric
        weighted = f" (weight {self.rule.weight:g} x {self.raw:.6g})" if self.rule.weight != 1 else ""
        return f"{name} loss {self.loss:.6g}{weighted}"

    @property
    def worst_text(self) -> str:
        """The deciding element and, for l0, which of its two tolerances set the bound."""
        if self.rule.metric == "topk":
            return _row_text(self.entry["topk"])
        element = self.worst
        if element is None:
            return ""
        bound = ""
        if self.rule.metric == "l0":
            bound = f", allowed {to_float(element['allowed']):.6g} by {element['decided_by']}"
        return f", worst {element_text(element)}{bound}"

    @property
    def stuck(self) -> tuple[str, str] | None:
        pair = self.entry.get("stuck")
        return None if pair is None else (pair[0], pair[1])

    @property
    def stuck_text(self) -> str:
        first, second = self.stuck or ("", "")
        return (
            f"output {self.output!r} ignores the inputs: it is the same, bit for bit, on the input sets "
            f"{first!r} and {second!r}, and the reference's is not"
        )

    def verdict(self, reason: str, blame: str, worst: Mapping[str, Any] | None = None) -> Verdict:
        return Verdict(
            accepted=not blame,
            loss=self.loss,
            reason=reason,
            metric=self.rule.metric,
            tolerance=self.rule.tolerance,
            output=self.output,
            input_set=self.input_set,
            worst=worst or self.worst,
            blame=blame,
        )


@dataclass(frozen=True, slots=True)
class TaskCase:
    """One input set under a metric that judges it as a whole.

    Attributes:
        entry: {"loss": ...}; for the drop in task accuracy also "reference", "candidate" and "rows", and
            "labels", which is false where the reference's own answers stood in for labels.
    """

    input_set: str
    entry: Mapping[str, Any]
    rule: Rule

    @property
    def finite(self) -> bool:
        return self.rule.tolerance != math.inf

    @property
    def loss(self) -> float:
        return to_float(self.entry["loss"])

    @property
    def share(self) -> float:
        return share(self.loss, self.rule.tolerance)

    @property
    def place(self) -> str:
        return f"input set {self.input_set!r}"

    @property
    def told(self) -> str:
        return f"{self.rule.metric} loss {self.loss:.6g}"

    @property
    def worst_text(self) -> str:
        if self.rule.metric != DROP or "rows" not in self.entry:
            return ""
        entry = self.entry
        against = "" if entry["labels"] else ", the reference's own answers taken for labels"
        return (
            f": accuracy {entry['reference']:.6g} of the reference and {entry['candidate']:.6g} of the "
            f"candidate over {entry['rows']} rows{against}"
        )

    def verdict(self, reason: str, blame: str) -> Verdict:
        rule = self.rule
        return Verdict(
            not blame, self.loss, reason, rule.metric, rule.tolerance, "", self.input_set, None, blame
        )


def share(loss: float, tolerance: float) -> float:
    """How much of its tolerance a loss takes, so that losses of several metrics have one order."""
    if tolerance == 0:
        return math.inf if loss > 0 else loss
    return loss / tolerance


def element_text(element: Mapping[str, Any]) -> str:
    """ "at [1] (reference 2, candidate 2.5)" """
    values = {name: element[name] for name in ("reference", "candidate")}
    told = {name: f"{v:.9g}" if isinstance(v, float) else str(v) for name, v in values.items()}
    return f"at {element['index']} (reference {told['reference']}, candidate {told['candidate']})"


def _row_text(found: Mapping[str, Any]) -> str:
    counts = f", {found['disagreeing']} of {found['rows']} rows disagree"
    worst = found["worst"]
    if worst is None:
        return counts
    sides = f"reference {worst['reference']}, candidate {worst['candidate']}"
    return f"{counts}, worst row {worst['index']} ({sides})"
