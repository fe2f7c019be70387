"""The frontier answers every tolerance as judging anew at that tolerance would."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routetune.tasks import canonical
from routetune.tasks.errors import BadInput
from routetune.tasks.targets.judging import Accuracy
from routetune.tasks.verdicts.accuracy import compare_outputs, judge
from routetune.tasks.verdicts.frontier import Frontier, ranked
from routetune.tasks.verdicts.rules import rules_of
from routetune.tasks.verdicts.thresholds import ABOVE_ZERO, dial_of, threshold

VALUES = st.sampled_from([0.0, -0.0, 1.0, 1.0 + 2**-23, 1.5, -3.0, math.nan, math.inf])
ARRAYS = st.lists(VALUES, min_size=3, max_size=3).map(lambda values: np.array(values, np.float32))
OWN = st.fixed_dictionaries(
    {},
    optional={
        "metric": st.sampled_from(["l0", "l1", "lInf", "exact"]),
        "tolerance": st.sampled_from([0.0, 0.1, 1.0, "inf"]),
        "weight": st.sampled_from([0.5, 2.0]),
        "ignore": st.just(True),
    },
)


@st.composite
def comparisons(draw: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The report of two input sets with two outputs, and the [accuracy] it is judged by."""
    report: list[dict[str, Any]] = []
    task = draw(st.booleans())
    for name in ("a", "b"):
        reference = {output: draw(ARRAYS) for output in ("y", "z")}
        same = draw(st.booleans())
        candidate = reference if same else {output: draw(ARRAYS) for output in ("y", "z")}
        if draw(st.integers(0, 9)) == 0:
            candidate = {"y": candidate["y"]}
        one = {"set": name, "outputs": json.loads(canonical.dumps(compare_outputs(reference, candidate)))}
        if task:
            one["task"] = {"loss": draw(st.sampled_from([-0.25, 0.0, 0.25, "inf"]))}
        if draw(st.integers(0, 9)) == 0 and "problem" not in one["outputs"]["y"]:
            one["outputs"]["y"]["stuck"] = ["a", "b"]
        report.append(one)
    metric = "mine:loss" if task else draw(st.sampled_from(["l0", "l1", "l2", "lInf", "cos", "exact"]))
    outputs = draw(st.dictionaries(st.sampled_from(["y"]), OWN))
    return report, {"metric": metric, "outputs": outputs}


@settings(max_examples=400, deadline=None)
@given(comparisons(), st.floats(0, 10))
def test_the_threshold_is_where_the_verdict_turns(
    drawn: tuple[list[dict[str, Any]], dict[str, Any]], other: float
) -> None:
    report, stated = drawn
    least = threshold(report, dial_of(Accuracy.model_validate(stated)))
    edges = [] if math.isnan(least) else [least, math.nextafter(least, math.inf), math.nextafter(least, 0.0)]
    for epsilon in {0.0, ABOVE_ZERO, other, 1e300, math.inf, *edges}:
        rules = rules_of(Accuracy.model_validate({**stated, "tolerance": epsilon}))
        accepted = judge(report, rules.default.metric, epsilon, rules.outputs).accepted
        assert accepted == (epsilon >= least), (epsilon, least)


def test_metrics_that_were_not_recorded_are_named() -> None:
    report = [{"set": "a", "outputs": compare_outputs({"y": np.ones(3)}, {"y": np.ones(3)})}]
    for metric in ("topk", "accuracy_drop", "mine:loss"):
        with pytest.raises(BadInput, match=metric):
            threshold(report, dial_of(Accuracy(), metric))
    with pytest.raises(BadInput, match="l7"):
        dial_of(Accuracy(), "l7")


LOSS = st.one_of(st.sampled_from([0.0, 0.5, 1.0, math.inf, math.nan]), st.floats(0, 2))
SPEED = st.one_of(st.none(), st.sampled_from([0.5, 1.0, 2.0]), st.floats(0.1, 4))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(LOSS, SPEED), max_size=12), st.lists(st.one_of(LOSS, st.floats(0, 2)), max_size=6))
def test_every_tolerance_is_answered_as_a_scan_would(
    routes: list[tuple[float, float | None]], epsilons: list[float]
) -> None:
    epsilons = [epsilon for epsilon in epsilons if not math.isnan(epsilon)]
    losses, speeds = [loss for loss, _ in routes], [speed for _, speed in routes]
    names = [(index % 3, f"route {index}") for index in range(len(routes))]
    frontier = Frontier(losses, ranked(speeds, names))

    def scan(epsilon: float) -> tuple[int, int]:
        inside = [at for at, loss in enumerate(losses) if loss <= epsilon]
        able = [at for at in inside if speeds[at] is not None]
        best = min(able, key=lambda at: (-(speeds[at] or 0), names[at]), default=-1)
        return len(inside), best

    counts, fastest = frontier.at(epsilons)
    assert list(zip(counts.tolist(), fastest.tolist(), strict=True)) == [scan(one) for one in epsilons]
    steps = list(frontier.steps())
    assert [step.epsilon for step in steps] == sorted({loss for loss in losses if loss == loss}, reverse=True)
    for step in steps:
        count, best = scan(step.epsilon)
        assert (step.eligible, -1 if step.fastest is None else step.fastest) == (count, best)
        assert all(losses[index] == step.epsilon for index in step.leaving)
    assert sum(len(step.leaving) for step in steps) == sum(loss == loss for loss in losses)


def test_the_staircase_of_four_places() -> None:
    """The counts measured by hand on a small CNN: 16, 15, 13, 8, 7, 4, 3, 1 eligible at these tolerances."""
    losses = [0.0, *[0.012] * 2, 0.02, *[0.03] * 3, 0.04, *[0.05] * 5, *[0.06] * 2, 0.07]
    frontier = Frontier(losses, ranked([1.0] * 16, [(0, str(index)) for index in range(16)]))
    epsilons = [math.inf, 0.065, 0.054, 0.044, 0.036, 0.025, 0.015, 0.007]
    assert frontier.at(epsilons)[0].tolist() == [16, 15, 13, 8, 7, 4, 3, 1]


@pytest.mark.parametrize("own", [0.0, 0.5])
def test_a_metric_of_input_sets_that_is_off_leaves_no_output_to_judge(own: float) -> None:
    """A tolerance of an output's own means nothing under a metric that judges no single output."""
    same = {"y": np.ones(3, np.float32), "z": np.ones(3, np.float32)}
    report = [{"set": "a", "outputs": compare_outputs(same, same), "task": {"loss": 0.25}}]
    stated = {"metric": "mine:loss", "tolerance": "inf", "outputs": {"y": {"tolerance": own}}}
    rules = rules_of(Accuracy.model_validate(stated))
    verdict = judge(report, rules.default.metric, math.inf, rules.outputs)
    assert verdict.accepted and "the accuracy check is off" in verdict.reason
