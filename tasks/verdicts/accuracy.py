"""The verdict on a candidate's outputs: what was compared, what decides, and why, in one sentence.

Comparing and judging are apart: a comparison holds for every metric and every tolerance, so a changed
tolerance needs neither a build nor a run.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from routetune.tasks.arrays import Array
from routetune.tasks.canonical import number, to_float
from routetune.tasks.errors import BadInput
from routetune.tasks.verdicts.cases import Case, Verdict, element_text
from routetune.tasks.verdicts.cases import TaskCase as _Task
from routetune.tasks.verdicts.losses import Element, is_number, losses
from routetune.tasks.verdicts.rules import Rule, Rules
from routetune.tasks.verdicts.topk import top_k

#: One input set's comparison: {"set": name, "outputs": what compare_outputs returned}.
SetReport = Mapping[str, Any]


def compare_outputs(
    reference: Mapping[str, Array],
    candidate: Mapping[str, Array],
    atol: float = 1e-5,
    rtol: float = 1e-5,
    k: int | None = None,
    outputs: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Every output of either side by name, as strict JSON.

    Args:
        atol, rtol: the bound of l0.
        k: classes of top-k agreement, or None to leave that out.
        outputs: output name -> values of its own for the three above.

    An output that can be compared has its "losses" and what explains them. One that cannot, since it is
    missing, not expected, or of another type or shape, has a "problem": a sentence naming it. Floats that are
    not finite are written as `canonical.number` writes them.
    """
    report: dict[str, Any] = {}
    for name in (*reference, *(name for name in candidate if name not in reference)):
        problem = _problem(name, reference, candidate)
        if problem:
            report[name] = {"problem": problem, "kind": _kind(name, reference, candidate)}
        else:
            bounds = {"atol": atol, "rtol": rtol, "k": k} | dict((outputs or {}).get(name, {}))
            report[name] = _compared(reference[name], candidate[name], **bounds)
    return report


def is_finite(report: Sequence[SetReport], ignored: Collection[str] = ()) -> bool:
    """Whether the candidate gave every output as it should look, finite wherever the reference is."""
    return all(
        "problem" not in entry and not entry["non_finite_candidate"]
        for _, name, entry in _entries(report)
        if name not in ignored
    )


def judge(
    report: Sequence[SetReport], metric: str, tolerance: float, outputs: Mapping[str, Rule] | None = None
) -> Verdict:
    """The verdict over all input sets and outputs; the worst decides.

    In this order: an output that could not be compared fails; a value that is not finite in the candidate
    alone fails, at every tolerance; tolerance inf accepts the rest; a reference that is not finite is blamed
    on the reference; outputs that stay the same while the reference's move fail; tolerance 0 asks for equal
    bits, any other for weight * loss <= tolerance. The worst is the one that takes most of its tolerance.

    Args:
        metric, tolerance: the rule of every output that has none of its own; "accuracy_drop" and the user's
            own metrics judge input sets as a whole, then tolerance 0 asks for a loss of at most 0.
        outputs: output name -> its own rule. Of an ignored output only presence and type count.

    Raises:
        BadInput: an unknown metric, a tolerance that is NaN or negative, or nothing was compared.
    """
    rules = Rules(Rule(metric, tolerance), outputs or {})
    rules.check()
    found = [Case(where, name, entry, rules.of(name)) for where, name, entry in _entries(report)]
    cases = [case for case in found if not case.ignored]
    if not cases:
        raise BadInput("no output was compared: a verdict needs at least one output and one input set")
    task = [] if rules.default.of_pairs else [_Task(one["set"], one["task"], rules.default) for one in report]
    return next(verdict for rule in _RULES if (verdict := rule(cases, task)))


def _unlike(cases: list[Case], task: list[_Task]) -> Verdict | None:
    case = next((case for case in cases if "problem" in case.entry), None)
    if case is None:
        return None
    return case.verdict(f"{case.entry['problem']} (input set {case.input_set!r})", "candidate")


def _not_finite(cases: list[Case], task: list[_Task]) -> Verdict | None:
    case = max(cases, key=lambda case: case.entry["non_finite_candidate"])
    count = case.entry["non_finite_candidate"]
    if not count:
        return None
    reason = (
        f"{case.place} has {_count(count, 'value')} that {_are(count)} not finite where the reference is, "
        f"the first {element_text(case.entry['worst'])}; this never passes, at any tolerance"
    )
    return case.verdict(reason, "candidate", case.entry["worst"])


def _switched_off(cases: list[Case], task: list[_Task]) -> Verdict | None:
    if any(case.finite for case in cases) or any(one.finite for one in task):
        return None
    return _off(cases, task)


def _off(cases: list[Case], task: list[_Task]) -> Verdict:
    judged: Sequence[Case | _Task] = task or cases
    worst = max(judged, key=lambda case: case.loss)
    reason = (
        f"the accuracy check is off (tolerance inf), so this says nothing of what the engine computes; the "
        f"largest {worst.told} is of {worst.place}{worst.worst_text}"
    )
    if stuck := next((case for case in cases if case.stuck), None):
        reason += f"; {stuck.stuck_text}"
    return worst.verdict(reason, "")


def _bad_reference(cases: list[Case], task: list[_Task]) -> Verdict | None:
    case = max(cases, key=lambda case: case.finite and case.entry["non_finite_reference"])
    count = case.entry["non_finite_reference"]
    if not count or not case.finite:
        return None
    reason = (
        f"the reference is at fault, not the candidate: {case.place} has {_count(count, 'reference value')} "
        f"that {_are(count)} not finite, the first {element_text(case.entry['bad_reference'])}, "
        "so no candidate can be judged by it"
    )
    return case.verdict(reason, "reference", case.entry["bad_reference"])


def _stuck(cases: list[Case], task: list[_Task]) -> Verdict | None:
    case = next((case for case in cases if case.finite and case.stuck), None)
    return None if case is None else case.verdict(case.stuck_text, "candidate")


def _bits(cases: list[Case], task: list[_Task]) -> Verdict | None:
    exact = [case for case in cases if case.rule.of_pairs and case.rule.tolerance == 0]
    if not exact:
        return None
    case = max(exact, key=lambda case: (case.entry["differing_bits"], case.loss))
    differing = case.entry["differing_bits"]
    if not differing:
        if len(exact) < sum(case.bound for case in cases) or any(one.finite for one in task):
            return None
        return case.verdict(f"all {_count(len(exact), 'output')} are bit-identical (tolerance 0)", "")
    # Equal values in other bytes are 0.0 and -0.0: where the largest difference is 0, all of them are.
    sign = ", all in the sign of zero alone" if to_float(case.entry["losses"]["lInf"]) == 0 else ""
    reason = (
        f"{case.place} is not bit-identical (tolerance 0): {differing} of "
        f"{_count(case.entry['elements'], 'element')} differ{sign}; {case.told}{case.worst_text}"
    )
    return case.verdict(reason, "candidate")


def _threshold(cases: list[Case], task: list[_Task]) -> Verdict:
    judged: list[Case | _Task] = [
        case for case in cases if case.rule.of_pairs and 0 < case.rule.tolerance < math.inf
    ]
    judged += [one for one in task if one.finite]
    if not judged:  # outputs with a tolerance of their own, under a metric that judges no single output
        return _off(cases, task)
    worst = max(judged, key=lambda case: case.share)
    within = worst.loss <= worst.rule.tolerance
    reason = (
        f"{worst.place} has {worst.told} {'<=' if within else '>'} tolerance {worst.rule.tolerance:g}"
        f"{worst.worst_text}"
    )
    return worst.verdict(reason, "" if within else "candidate")


_RULES = (_unlike, _not_finite, _switched_off, _bad_reference, _stuck, _bits, _threshold)


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


def _kind(name: str, reference: Mapping[str, Array], candidate: Mapping[str, Array]) -> str:
    """What the problem with an output is about: "name", "dtype" or "shape"."""
    if name not in reference or name not in candidate:
        return "name"
    return "shape" if reference[name].dtype == candidate[name].dtype else "dtype"


def _compared(reference: Array, candidate: Array, atol: float, rtol: float, k: int | None) -> dict[str, Any]:
    found = losses(reference, candidate, atol, rtol)
    ranked = None if k is None else top_k(reference, candidate, k)
    top = {} if ranked is None else {"topk": {**asdict(ranked), "loss": number(ranked.loss)}}
    return top | {
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


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
