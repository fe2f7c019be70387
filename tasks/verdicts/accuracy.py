"""The verdict on a candidate's outputs: what was compared, what decides, and why, in one sentence.

Comparing and judging are apart: a comparison holds for every metric and every tolerance, so a changed
tolerance needs neither a build nor a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from routetune.tasks.arrays import Array
from routetune.tasks.canonical import number, to_float
from routetune.tasks.errors import BadInput
from routetune.tasks.verdicts.losses import LOSSES, Element, is_number, losses

#: One input set's comparison: {"set": name, "outputs": what compare_outputs returned}.
SetReport = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a candidate is accurate enough, and what decided it.

    Attributes:
        accepted: the candidate may win.
        loss: the largest loss of the metric over all outputs and input sets; infinite where an output could
            not be compared.
        reason: one sentence naming output, input set, metric, loss, tolerance and worst element.
        metric, tolerance: the rule.
        output, input_set: where the deciding loss is.
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


def compare_outputs(
    reference: Mapping[str, Array], candidate: Mapping[str, Array], atol: float = 1e-5, rtol: float = 1e-5
) -> dict[str, Any]:
    """Every output of either side by name, as strict JSON.

    An output that can be compared has its "losses" and what explains them. One that cannot, since it is
    missing, not expected, or of another type or shape, has a "problem": a sentence naming it. Floats that are
    not finite are written as `canonical.number` writes them.
    """
    report: dict[str, Any] = {}
    for name in (*reference, *(name for name in candidate if name not in reference)):
        problem = _problem(name, reference, candidate)
        if problem:
            report[name] = {"problem": problem}
        else:
            report[name] = _compared(reference[name], candidate[name], atol, rtol)
    return report


def is_finite(report: Sequence[SetReport]) -> bool:
    """Whether the candidate gave every output as it should look, finite wherever the reference is."""
    return all(
        "problem" not in entry and not entry["non_finite_candidate"] for _, _, entry in _entries(report)
    )


def judge(report: Sequence[SetReport], metric: str, tolerance: float) -> Verdict:
    """The verdict over all input sets and outputs; the worst decides.

    In this order: an output that could not be compared fails; a value that is not finite in the candidate
    alone fails, at every tolerance; tolerance inf accepts the rest; a reference that is not finite is blamed
    on the reference; tolerance 0 asks for equal bits, any other for loss <= tolerance.

    Raises:
        BadInput: an unknown metric, a tolerance that is NaN or negative, or nothing was compared.
    """
    if metric not in LOSSES:
        raise BadInput(f"accuracy metric {metric!r} is not one of {', '.join(LOSSES)}")
    if not tolerance >= 0:
        raise BadInput(
            f"accuracy tolerance must be a number >= 0, or inf to switch the check off, not {tolerance}"
        )
    cases = [_Case(where, name, entry, metric) for where, name, entry in _entries(report)]
    if not cases:
        raise BadInput("no output was compared: a verdict needs at least one output and one input set")
    rules = (_unlike, _not_finite, _switched_off, _bad_reference, _bits if tolerance == 0 else _threshold)
    return next(verdict for rule in rules if (verdict := rule(cases, tolerance)))


@dataclass(frozen=True, slots=True)
class _Case:
    """One output on one input set under one metric."""

    input_set: str
    output: str
    entry: Mapping[str, Any]
    metric: str

    @property
    def loss(self) -> float:
        return math.inf if "problem" in self.entry else to_float(self.entry["losses"][self.metric])

    @property
    def worst(self) -> Mapping[str, Any] | None:
        """The element that explains the metric: l0 counts bounds, the others go by size."""
        element: Mapping[str, Any] | None = self.entry.get("farthest") if self.metric == "l0" else None
        return element or self.entry.get("worst")

    @property
    def place(self) -> str:
        return f"output {self.output!r} on input set {self.input_set!r}"

    def verdict(
        self, tolerance: float, reason: str, blame: str, worst: Mapping[str, Any] | None = None
    ) -> Verdict:
        return Verdict(
            accepted=not blame,
            loss=self.loss,
            reason=reason,
            metric=self.metric,
            tolerance=tolerance,
            output=self.output,
            input_set=self.input_set,
            worst=worst or self.worst,
            blame=blame,
        )


def _unlike(cases: list[_Case], tolerance: float) -> Verdict | None:
    case = next((case for case in cases if "problem" in case.entry), None)
    if case is None:
        return None
    reason = f"{case.entry['problem']} (input set {case.input_set!r})"
    return case.verdict(tolerance, reason, "candidate")


def _not_finite(cases: list[_Case], tolerance: float) -> Verdict | None:
    case = max(cases, key=lambda case: case.entry["non_finite_candidate"])
    count = case.entry["non_finite_candidate"]
    if not count:
        return None
    reason = (
        f"{case.place} has {_count(count, 'value')} that {_are(count)} not finite where the reference is, "
        f"the first {_element(case.entry['worst'])}; this never passes, at any tolerance"
    )
    return case.verdict(tolerance, reason, "candidate", case.entry["worst"])


def _switched_off(cases: list[_Case], tolerance: float) -> Verdict | None:
    if tolerance != math.inf:
        return None
    case = max(cases, key=lambda case: case.loss)
    reason = f"the accuracy check is off (tolerance inf); the largest {_loss(case)} is of {case.place}"
    return case.verdict(tolerance, reason + _worst(case), "")


def _bad_reference(cases: list[_Case], tolerance: float) -> Verdict | None:
    case = max(cases, key=lambda case: case.entry["non_finite_reference"])
    count = case.entry["non_finite_reference"]
    if not count:
        return None
    reason = (
        f"the reference is at fault, not the candidate: {case.place} has {_count(count, 'reference value')} "
        f"that {_are(count)} not finite, the first {_element(case.entry['bad_reference'])}, "
        "so no candidate can be judged by it"
    )
    return case.verdict(tolerance, reason, "reference", case.entry["bad_reference"])


def _bits(cases: list[_Case], tolerance: float) -> Verdict:
    case = max(cases, key=lambda case: (case.entry["differing_bits"], case.loss))
    differing = case.entry["differing_bits"]
    if not differing:
        return case.verdict(
            tolerance, f"all {_count(len(cases), 'output')} are bit-identical (tolerance 0)", ""
        )
    # Equal values in other bytes are 0.0 and -0.0: where the largest difference is 0, all of them are.
    sign = ", all in the sign of zero alone" if to_float(case.entry["losses"]["lInf"]) == 0 else ""
    reason = (
        f"{case.place} is not bit-identical (tolerance 0): {differing} of "
        f"{_count(case.entry['elements'], 'element')} differ{sign}; {_loss(case)}{_worst(case)}"
    )
    return case.verdict(tolerance, reason, "candidate")


def _threshold(cases: list[_Case], tolerance: float) -> Verdict:
    case = max(cases, key=lambda case: case.loss)
    within = case.loss <= tolerance
    reason = f"{case.place} has {_loss(case)} {'<=' if within else '>'} tolerance {tolerance:g}{_worst(case)}"
    return case.verdict(tolerance, reason, "" if within else "candidate")


def _entries(report: Sequence[SetReport]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for one in report:
        for name, entry in one["outputs"].items():
            yield one["set"], name, entry


def _problem(name: str, reference: Mapping[str, Array], candidate: Mapping[str, Array]) -> str | None:
    if name not in candidate:
        others = [repr(other) for other in candidate if other not in reference]
        renamed = f"; it has {', '.join(others)} that the reference does not have" if others else ""
        return f"output {name!r} is missing from the candidate{renamed}"
    if name not in reference:
        return f"output {name!r} of the candidate is not an output of the reference"
    wanted, found = reference[name], candidate[name]
    if wanted.dtype != found.dtype:
        return f"output {name!r} must be {wanted.dtype.name}, the candidate gives {found.dtype.name}"
    if wanted.shape != found.shape:
        return (
            f"output {name!r} must have shape {list(wanted.shape)}, the candidate gives {list(found.shape)}"
        )
    if not is_number(wanted.dtype):
        return f"output {name!r} is of type {wanted.dtype.name}, which cannot be compared"
    return None


def _compared(reference: Array, candidate: Array, atol: float, rtol: float) -> dict[str, Any]:
    found = losses(reference, candidate, atol, rtol)
    return {
        "dtype": reference.dtype.name,
        "shape": list(reference.shape),
        "losses": {name: number(value) for name, value in found.values.items()},
        "atol": atol,
        "rtol": rtol,
        "elements": found.elements,
        "compared": found.compared,
        "mismatches": found.mismatches,
        "non_finite_candidate": found.non_finite_candidate,
        "non_finite_reference": found.non_finite_reference,
        "differing_bits": found.differing_bits,
        "worst": _as_json(found.worst),
        "farthest": _as_json(found.farthest),
        "bad_reference": _as_json(found.bad_reference),
    }


def _as_json(element: Element | None) -> dict[str, Any] | None:
    if element is None:
        return None
    values = {name: getattr(element, name) for name in ("reference", "candidate", "difference", "allowed")}
    exact = {name: value if isinstance(value, int) else number(value) for name, value in values.items()}
    return {"index": list(element.index), **exact, "decided_by": element.decided_by}


def _loss(case: _Case) -> str:
    return f"{case.metric} loss {case.loss:.6g}"


def _worst(case: _Case) -> str:
    """The deciding element and, for l0, which of its two tolerances set the bound."""
    element = case.worst
    if element is None:
        return ""
    bound = ""
    if case.metric == "l0":
        bound = f", allowed {to_float(element['allowed']):.6g} by {element['decided_by']}"
    return f", worst {_element(element)}{bound}"


def _element(element: Mapping[str, Any]) -> str:
    values = {name: element[name] for name in ("reference", "candidate")}
    told = {name: f"{v:.9g}" if isinstance(v, float) else str(v) for name, v in values.items()}
    return f"at {element['index']} (reference {told['reference']}, candidate {told['candidate']})"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
