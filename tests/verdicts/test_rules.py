"""Rules of single outputs, metrics of whole sets, and outputs that stand still."""

from __future__ import annotations

import json
import math
import tomllib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routetune.tasks import canonical
from routetune.tasks.errors import BadInput
from routetune.tasks.targets.judging import METRICS as IN_TARGETS
from routetune.tasks.targets.judging import Accuracy
from routetune.tasks.verdicts.accuracy import compare_outputs, is_finite, judge
from routetune.tasks.verdicts.rules import METRICS, Rule, Rules, comparing, is_off, rules_of, section_of


def report(reference: dict[str, Any], candidate: dict[str, Any], k: int | None = None, **own: Any) -> Any:
    sides = [{name: np.asarray(v, np.float32) for name, v in side.items()} for side in (reference, candidate)]
    outputs = compare_outputs(*sides, k=k, outputs=own)
    return [{"set": "user", "outputs": json.loads(canonical.dumps(outputs))}]


TWO = report({"a": [1.0, 2.0], "b": [1.0, 2.0]}, {"a": [1.0, 2.5], "b": [1.1, 2.0]})


@pytest.mark.parametrize("name", ["y", "out.0", "a b", 'q"uoted', "back\\slash", "größe", "", "a\nb"])
def test_the_section_of_any_output_is_toml(name: str) -> None:
    """As messages advise it, to be pasted into a target."""
    text = f"{section_of(name)}\nignore = true\n"
    assert tomllib.loads(text) == {"accuracy": {"outputs": {name: {"ignore": True}}}}


def test_targets_and_verdicts_know_the_same_metrics() -> None:
    assert set(IN_TARGETS) == set(METRICS)


def test_each_output_has_its_own_metric_tolerance_and_weight() -> None:
    assert not judge(TWO, "lInf", 0.2).accepted
    loose = {"a": Rule("lInf", 1.0)}
    judged = judge(TWO, "lInf", 0.2, loose)
    # b takes half of its 0.2, a half of its 1.0; 0.1 is a little more than that in float32
    assert judged.accepted and judged.output == "b" and judged.tolerance == 0.2
    exact = judge(TWO, "lInf", 0.6, {"b": Rule("exact", 0.25)})
    assert not exact.accepted and exact.output == "b" and exact.metric == "exact" and exact.loss == 0.5
    heavy = judge(TWO, "lInf", 0.6, {"b": Rule("lInf", 0.6, weight=10)})
    assert not heavy.accepted and heavy.output == "b" and "weight 10 x 0.1" in heavy.reason


def test_zero_and_infinite_tolerances_of_single_outputs() -> None:
    bits = judge(TWO, "lInf", 0.6, {"b": Rule("lInf", 0.0)})
    assert not bits.accepted and "1 of 2 elements differ" in bits.reason and bits.output == "b"
    off = judge(TWO, "lInf", 0.2, {"a": Rule("lInf", math.inf)})
    assert off.accepted and off.output == "b" and "off" not in off.reason
    same = report({"a": [1.0], "b": [3.0]}, {"a": [1.0], "b": [9.0]})
    assert judge(same, "lInf", 0.0, {"b": Rule("lInf", math.inf)}).accepted


def test_an_ignored_output_must_only_be_there_and_of_its_type() -> None:
    ignored = {"b": Rule("lInf", 0.0, ignore=True)}
    assert judge(report({"a": [1], "b": [1]}, {"a": [1], "b": [9]}), "lInf", 0.0, ignored).accepted
    other_shape = report({"a": [1], "b": [1]}, {"a": [1], "b": [9, 9]})
    assert judge(other_shape, "lInf", 0.0, ignored).accepted and is_finite(other_shape, {"b"})
    assert judge(report({"a": [1], "b": [1]}, {"a": [1], "b": [math.nan]}), "lInf", 0.0, ignored).accepted
    missing = judge(report({"a": [1], "b": [1]}, {"a": [1]}), "lInf", 0.0, ignored)
    assert not missing.accepted and missing.output == "b"
    with pytest.raises(BadInput, match="no output was compared"):
        judge(TWO, "lInf", 0.0, {name: Rule("lInf", 0.0, ignore=True) for name in "ab"})


def test_top_k_counts_rows_and_refuses_outputs_without_a_choice() -> None:
    scores = report({"y": [[0, 1, 2], [2, 1, 0]]}, {"y": [[0, 1, 2], [0, 1, 2]]}, k=1)
    judged = judge(scores, "topk", 0.1)
    assert not judged.accepted and judged.loss == 0.5
    assert "top-1 loss 0.5" in judged.reason and "1 of 2 rows disagree" in judged.reason
    assert "worst row [1] (reference [0], candidate [2])" in judged.reason
    with pytest.raises(BadInput, match="top-3 agreement says nothing of output 'y'"):
        judge(report({"y": [[0, 1, 2]]}, {"y": [[0, 1, 2]]}, k=1, y={"k": 3}), "topk", 0.1)


def test_metrics_of_whole_sets_and_their_worst_set() -> None:
    sets = [
        {**TWO[0], "set": name, "task": {"loss": loss, "reference": 0.9, "candidate": 0.9 - loss, "rows": 8}}
        for name, loss in (("first", 0.01), ("second", 0.25))
    ]
    for one in sets:
        one["task"]["labels"] = one["set"] == "first"
    judged = judge(sets, "accuracy_drop", 0.1)
    assert not judged.accepted and judged.input_set == "second" and judged.loss == 0.25
    assert "0.9 of the reference and 0.65 of the candidate over 8 rows" in judged.reason
    assert "taken for labels" in judged.reason
    assert judge(sets, "accuracy_drop", 0.25).accepted
    # An output may still have a rule of its own, and a task metric of 0 asks for no loss, not for equal bits.
    assert judge(sets, "accuracy_drop", 0.25, {"a": Rule("lInf", 0.1)}).output == "a"
    for one in sets:
        one["task"]["loss"] = -0.5
    assert judge(sets, "my:loss", 0.0).accepted
    sets[1]["task"]["loss"] = "inf"
    assert not judge(sets, "my:loss", 1e300).accepted
    assert judge(sets, "my:loss", math.inf).accepted


def stuck() -> Any:
    found = report({"y": [1.0, 2.0]}, {"y": [1.0, 2.0]})
    found[0]["outputs"]["y"]["stuck"] = ["user", "probe-0"]
    return found


@pytest.mark.parametrize("metric", [*METRICS[:-1], "my:loss"])
@pytest.mark.parametrize("tolerance", [0.0, 1.0, 1e300])
def test_an_output_that_ignores_the_inputs_never_passes_a_finite_tolerance(
    metric: str, tolerance: float
) -> None:
    found = stuck()
    found[0]["task"] = {"loss": 0.0}
    judged = judge(found, metric, tolerance)
    assert not judged.accepted and judged.blame == "candidate"
    for part in ("'y' ignores the inputs", "'user'", "'probe-0'"):
        assert part in judged.reason
    off = judge(found, metric, math.inf)
    assert off.accepted and "check is off" in off.reason and "ignores the inputs" in off.reason
    assert judge(found, metric, tolerance, {"y": Rule("l0", math.inf)}).accepted


def test_rules_and_comparisons_of_a_target() -> None:
    accuracy = Accuracy(
        metric="l1",
        tolerance=0.5,
        outputs={"a": {"metric": "topk", "k": 5, "atol": 0.1}, "b": {"ignore": True}},  # type: ignore[dict-item]
    )
    rules = rules_of(accuracy)
    assert rules.of("a") == Rule("topk", 0.5) and rules.of("b").ignore and rules.of("c") == Rule("l1", 0.5)
    assert comparing(accuracy) == {
        "atol": 1e-5,
        "rtol": 1e-5,
        "k": 1,
        "outputs": {"a": {"atol": 0.1, "k": 5}},
    }
    assert comparing(Accuracy()) == {"atol": 1e-5, "rtol": 1e-5, "k": None, "outputs": {}}
    assert not is_off(rules) and is_off(Rules(Rule("l0", math.inf)))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=4),
    st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=4),
    st.sampled_from(["lInf", "l1", "l2", "l0"]),
    st.floats(0.125, 8),
    st.floats(1e-3, 20),
)
def test_the_verdict_is_the_plain_rule(
    r: list[float], c: list[float], metric: str, weight: float, tolerance: float
) -> None:
    size = min(len(r), len(c))
    found = report({"y": r[:size]}, {"y": c[:size]})
    loss = weight * found[0]["outputs"]["y"]["losses"][metric]
    judged = judge(found, "l0", 0.0, {"y": Rule(metric, tolerance, weight)})
    assert judged.accepted == (loss <= tolerance) and judged.loss == loss
