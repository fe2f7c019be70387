"""Input sets made out of others: valid where theirs are, and never the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from routetune.tasks.errors import BadInput
from routetune.tasks.targets.inputs import input_sets
from routetune.tasks.targets.model import inspect_model
from routetune.tasks.targets.variations import fresh, probes

MakeTarget = Callable[..., Any]


@pytest.mark.parametrize("users", [True, False])
def test_probes_have_the_shapes_and_kinds_of_values_of_the_first_set(
    tmp_path: Path, relu: onnx.ModelProto, target: MakeTarget, users: bool
) -> None:
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.savez(tmp_path / "a.npz", x=given)
    wanted = target(relu, **({"reference": {"inputs": "a.npz"}} if users else {}))
    model = inspect_model(wanted)
    sets = input_sets(wanted, model)
    found = probes(wanted, model, sets)
    assert [one.role for one in found] == ["probe", "probe"]
    seen = [sets[0], *found, *fresh(wanted, model, sets, "salt"), *fresh(wanted, model, sets, "pepper")]
    assert len({one.digest for one in seen}) == len({one.name for one in seen}) == 5
    assert all(one.shapes == sets[0].shapes for one in seen)
    if users:
        assert all(Counter(one.arrays["x"].flat) == Counter(given.flat) for one in seen)
    assert [one.digest for one in probes(wanted, model, sets)] == [one.digest for one in found]


def test_values_that_shuffling_cannot_change_are_drawn(
    tmp_path: Path, relu: onnx.ModelProto, target: MakeTarget
) -> None:
    np.savez(tmp_path / "a.npz", x=np.full((2, 3), 7, np.float32))
    wanted = target(relu, reference={"inputs": "a.npz", "ranges": {"x": [1, 2]}})
    model = inspect_model(wanted)
    for one in probes(wanted, model, input_sets(wanted, model)):
        assert 1 <= one.arrays["x"].min() < one.arrays["x"].max() <= 2


@pytest.mark.parametrize(
    ("accuracy", "told"),
    [
        ({"outputs": {"z": {}}}, "accuracy.outputs.z names 'z', which is not an output"),
        ({"scores": "z"}, "accuracy.scores names 'z'"),
        ({"outputs": {"y": {"ignore": True}}}, "ignores every output"),
    ],
)
def test_rules_for_outputs_that_are_not_there_are_refused(
    relu: onnx.ModelProto, target: MakeTarget, accuracy: dict[str, Any], told: str
) -> None:
    with pytest.raises(BadInput, match=told):
        inspect_model(target(relu, accuracy=accuracy))


def test_a_drop_in_accuracy_needs_to_know_which_output(make: Any, target: MakeTarget) -> None:
    nodes = [onnx.helper.make_node("Relu", ["x"], [name]) for name in ("y", "z")]
    model = make.build(nodes, [make.value("x", [2, 3])], [make.value("y", [2, 3]), make.value("z", [2, 3])])
    wanted = {"reference": {"inputs": "a.npz", "labels": "l"}, "accuracy": {"metric": "accuracy_drop"}}
    with pytest.raises(BadInput, match=r"needs accuracy.scores.* outputs are y, z"):
        inspect_model(target(model, **wanted))
    wanted["accuracy"]["scores"] = "z"
    assert inspect_model(target(model, **wanted)).outputs.keys() == {"y", "z"}
