"""Verdicts on outputs: what is compared first, what decides, and whom the sentence names."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest
from routetune.tasks import canonical
from routetune.tasks.errors import BadInput
from routetune.tasks.verdicts.accuracy import Verdict, compare_outputs, is_finite, judge
from routetune.tasks.verdicts.losses import LOSSES

NAN = math.nan


def report(reference: dict[str, Any], candidate: dict[str, Any], name: str = "user") -> list[dict[str, Any]]:
    """One input set's report, after a trip through the JSON of the store."""
    sides = [
        {k: np.asarray(v, None if isinstance(v, np.ndarray) else np.float32) for k, v in side.items()}
        for side in (reference, candidate)
    ]
    outputs = json.loads(canonical.dumps(compare_outputs(*sides, atol=1e-5, rtol=1e-5)))
    return [{"set": name, "outputs": outputs}]


def verdict(reference: dict[str, Any], candidate: dict[str, Any], metric: str, tolerance: float) -> Verdict:
    return judge(report(reference, candidate), metric, tolerance)


@pytest.mark.parametrize(
    ("candidate", "named", "told"),
    [
        ({"a": [1.0]}, "b", "missing"),
        ({"a": [1.0], "c": [2.0]}, "b", "'c'"),
        ({"a": [1.0], "b": [2.0], "extra": [3.0]}, "extra", "not an output"),
        ({"a": [1.0], "b": np.array([2], np.int64)}, "b", "int64"),
        ({"a": [1.0], "b": [2.0, 2.0]}, "b", r"\[2\]"),
        ({"a": [1.0], "b": 2.0}, "b", r"\[\]"),
        ({}, "a", "missing"),
    ],
)
@pytest.mark.parametrize("tolerance", [0.0, 1e9, math.inf])
def test_e32_names_types_and_shapes_come_first(
    candidate: dict[str, Any], named: str, told: str, tolerance: float
) -> None:
    found = report({"a": [1.0], "b": [2.0]}, candidate)
    judged = judge(found, "l1", tolerance)
    assert not judged.accepted and judged.blame == "candidate" and judged.loss == math.inf
    assert judged.output == named and repr(named) in judged.reason
    assert re.search(told, judged.reason)
    assert not is_finite(found)


@pytest.mark.parametrize("metric", LOSSES)
def test_e33_non_finite_in_the_candidate_never_passes(metric: str) -> None:
    for tolerance in (0.0, 1.0, 1e300, math.inf):
        judged = verdict({"y": [1.0, 2.0, 3.0]}, {"y": [1.0, NAN, math.inf]}, metric, tolerance)
        assert not judged.accepted and judged.blame == "candidate"
        assert "2 values" in judged.reason and "[1]" in judged.reason and "candidate nan" in judged.reason


@pytest.mark.parametrize("candidate", [[NAN, 1.0], [5.0, 1.0]])
def test_e33_a_bad_reference_is_blamed_on_the_reference(candidate: list[float]) -> None:
    for tolerance in (0.0, 1e9):
        judged = verdict({"y": [NAN, 1.0]}, {"y": candidate}, "l0", tolerance)
        assert not judged.accepted and judged.blame == "reference"
        assert "reference is at fault" in judged.reason and "'y'" in judged.reason and "[0]" in judged.reason
    assert is_finite(report({"y": [NAN, 1.0]}, {"y": candidate}))
    assert verdict({"y": [NAN, 1.0]}, {"y": candidate}, "l0", math.inf).accepted


def test_e34_the_deciding_tolerance_is_named() -> None:
    near = verdict({"y": [0, 1e-9, 1]}, {"y": [1e-7, 2e-9, 1]}, "l0", 0.01)
    assert near.accepted and "allowed 1e-05 by atol" in near.reason
    far = verdict({"y": [0, 1e4, 1]}, {"y": [1e-7, 1.1e4, 1]}, "l0", 0.01)
    assert not far.accepted and "by rtol" in far.reason and "at [1]" in far.reason
    assert far.worst is not None and far.worst["index"] == [1]


def test_e35_cosine_of_zero() -> None:
    zero, one = {"y": np.zeros(3, np.float32)}, {"y": np.array([0, 1, 0], np.float32)}
    assert verdict(zero, zero, "cos", 0.0).accepted
    assert verdict(zero, zero, "cos", 0.5).accepted
    assert not verdict(zero, one, "cos", 0.5).accepted
    assert verdict(zero, one, "cos", 0.5).loss == 1.0


@pytest.mark.parametrize("metric", LOSSES)
def test_a_loss_at_the_tolerance_passes_and_one_above_it_fails(metric: str) -> None:
    sides = {"y": [1.0, 2.0, 3.0]}, {"y": [1.0, 2.5, 3.0]}
    loss = verdict(*sides, metric, 1e9).loss
    assert loss > 0
    assert verdict(*sides, metric, loss).accepted
    below = verdict(*sides, metric, math.nextafter(loss, 0))
    assert not below.accepted and below.loss == loss
    for part in ("'y'", "'user'", metric, f"{loss:.6g}", "at [1] (reference 2, candidate 2.5)"):
        assert part in below.reason


def test_tolerance_0_compares_bits_and_counts_them() -> None:
    same = np.array([0.0, 1.5], np.float32)
    assert verdict({"y": same}, {"y": same.copy()}, "l0", 0.0).accepted
    signed = verdict({"y": same}, {"y": np.array([-0.0, 1.5], np.float32)}, "l0", 0.0)
    assert not signed.accepted and signed.loss == 0
    assert "1 of 2 elements differ, all in the sign of zero alone" in signed.reason
    near = verdict({"y": same}, {"y": np.nextafter(same, np.float32(9))}, "l0", 0.0)
    assert not near.accepted and "2 of 2 elements differ;" in near.reason


def test_the_worst_output_of_the_worst_input_set_decides() -> None:
    sets = [
        *report({"a": [1.0], "b": [1.0]}, {"a": [1.1], "b": [1.0]}, "first"),
        *report({"a": [1.0], "b": [1.0]}, {"a": [1.0], "b": [1.5]}, "second"),
        *report({"a": [1.0], "b": [1.0]}, {"a": [1.0], "b": [1.0]}, "third"),
    ]
    judged = judge(sets, "lInf", 0.2)
    assert (judged.output, judged.input_set, judged.accepted) == ("b", "second", False)
    assert judge(sets, "lInf", 0.5).accepted
    off = judge(sets, "lInf", math.inf)
    assert off.accepted and "check is off" in off.reason and off.loss == 0.5


def test_empty_outputs_pass_only_beside_their_like() -> None:
    assert verdict({"y": np.zeros((0, 4))}, {"y": np.zeros((0, 4))}, "l0", 0.0).accepted
    assert not verdict({"y": np.zeros((0, 4))}, {"y": np.zeros((1, 4))}, "l0", math.inf).accepted


@pytest.mark.parametrize(
    ("found", "metric", "tolerance", "told"),
    [
        ([], "l0", 0.1, "no output was compared"),
        ([{"set": "user", "outputs": {}}], "l0", 0.1, "no output was compared"),
        (report({"y": [1.0]}, {"y": [1.0]}), "l3", 0.1, "l3"),
        (report({"y": [1.0]}, {"y": [1.0]}), "l0", NAN, "tolerance"),
        (report({"y": [1.0]}, {"y": [1.0]}), "l0", -1.0, "tolerance"),
    ],
)
def test_what_cannot_be_judged_is_refused(
    found: list[dict[str, Any]], metric: str, tolerance: float, told: str
) -> None:
    with pytest.raises(BadInput, match=told):
        judge(found, metric, tolerance)
