from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from routetune.tasks.targets.binding import bound_to
from routetune.tasks.targets.changes import CANNOT_TELL, COSTS, Change, compare, dearest
from routetune.tasks.targets.environment import UNKNOWN, Environment, observe
from routetune.tasks.targets.inputs import inputs_digest
from routetune.tasks.targets.model import inspect_model

MakeTarget = Callable[..., Any]
CPU = observe("onnxruntime", "cpu", {"onnxruntime": "1.32.0"}, variables={})


def bound(target: Any, environment: Environment = CPU) -> dict[str, Any]:
    return bound_to(target, inspect_model(target), environment, inputs_digest(target))


def on_gpu(**fields: str | int) -> dict[str, Any]:
    return {
        "target": {},
        "environment": {"device": "cuda", "gpu.name": "NVIDIA H200", "driver": "1", **fields},
    }


def test_it_is_plain_json_and_equal_to_itself_after_a_round_trip(
    relu: onnx.ModelProto, target: MakeTarget
) -> None:
    before = bound(target(relu, accuracy={"tolerance": "inf"}, timing={"min_gain": 0}))
    assert compare(json.loads(json.dumps(before)), before) == []
    assert dearest([]) is None


def test_names_and_places_do_not_count(tmp_path: Path, relu: onnx.ModelProto, target: MakeTarget) -> None:
    before = bound(target(relu, engine={"device": "auto"}))
    onnx.save(relu, tmp_path / "other.onnx")
    assert (
        compare(
            before, bound(target("other.onnx", name="u", backend="onnxruntime", engine={"device": "cpu"}))
        )
        == []
    )


SECTIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"accuracy": {"tolerance": 0.5}}, "target.accuracy.tolerance", "reselect"),
    ({"accuracy": {"metric": "cos"}}, "target.accuracy.metric", "reselect"),
    ({"accuracy": {"outputs": {"y": {"weight": 2}}}}, "target.accuracy.outputs", "reselect"),
    ({"reference": {"source": "default-route"}}, "target.reference.source", "recheck"),
    ({"timing": {"min_gain": 0.2}}, "target.timing.min_gain", "reselect"),
    ({"accuracy": {"atol": 1.0}}, "target.accuracy.atol", "recheck"),
    ({"accuracy": {"rtol": 1.0}}, "target.accuracy.rtol", "recheck"),
    ({"timing": {"width": 0.5}}, "target.timing.width", "retime"),
    ({"timing": {"loads": 3}}, "target.timing.loads", "reselect"),
    ({"reference": {"seed": 3}}, "target.reference.seed", "retime"),
    ({"reference": {"samples": 3}}, "target.reference.samples", "retime"),
    ({"reference": {"ranges": {"x": [0, 1]}}}, "target.reference.ranges.x", "retime"),
    ({"search": {"routes": "-b=[x|y]"}}, "target.search.routes", "search"),
    ({"search": {"routes": "-a=[x|y]", "exclude": "-a=x"}}, "target.search.exclude", "search"),
    ({"search": {"routes": "-a=[x|y]", "algorithm": "fast"}}, "target.search.algorithm", "search"),
    ({"budget": {"trials": 999}}, "target.budget.trials", "search"),
]


@pytest.mark.parametrize(("sections", "field", "cost"), SECTIONS, ids=[row[1] for row in SECTIONS])
def test_what_a_changed_setting_costs(
    relu: onnx.ModelProto, target: MakeTarget, sections: dict[str, Any], field: str, cost: str
) -> None:
    [change] = compare(bound(target(relu)), bound(target(relu, **sections)))
    assert (change.field, change.cost) == (field, cost)
    assert dearest([change]) == cost


@pytest.mark.parametrize(
    ("accuracy", "fields"),
    [
        ({"metric": "topk"}, {"metric": "reselect", "k": "recheck"}),
        ({"outputs": {"y": {"atol": 1}}}, {"outputs": "reselect", "bounds": "recheck"}),
        (
            {"outputs": {"y": {"metric": "topk", "k": 3}}},
            {"outputs": "reselect", "k": "recheck", "bounds": "recheck"},
        ),
        ({"outputs": {"y": {"k": 3}}}, {"outputs": "reselect"}),  # of no use without top-k
    ],
)
def test_what_the_comparison_depends_on_costs_a_recheck(
    relu: onnx.ModelProto, target: MakeTarget, accuracy: dict[str, Any], fields: dict[str, str]
) -> None:
    changes = compare(bound(target(relu)), bound(target(relu, accuracy=accuracy)))
    found = {change.field.rpartition(".")[2]: change.cost for change in changes}
    assert found == fields


def test_model_shapes_plugins_and_files_of_inputs(
    tmp_path: Path, relu: onnx.ModelProto, target: MakeTarget
) -> None:
    import numpy as np

    first, second = np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32)
    sections = {"reference": {"inputs": "a.npz", "labels": "y"}, "engine": {"plugins": ["p.so"]}}
    (tmp_path / "p.so").write_bytes(b"1")
    np.savez(tmp_path / "a.npz", x=first, y=first)
    before = bound(target(relu, **sections))
    found = {}
    np.savez(tmp_path / "a.npz", x=second, y=first)
    found["inputs"] = compare(before, bound(target(relu, **sections)))
    np.savez(tmp_path / "a.npz", x=first, y=second)
    found["labels"] = compare(before, bound(target(relu, **sections)))
    np.savez(tmp_path / "a.npz", x=first, y=first)
    (tmp_path / "p.so").write_bytes(b"2")
    found["plugins"] = compare(before, bound(target(relu, **sections)))
    (tmp_path / "p.so").write_bytes(b"1")
    relu.graph.node[0].op_type = "Abs"
    found["model"] = compare(before, bound(target(relu, **sections)))
    assert {name: [(change.field, change.cost) for change in changes] for name, changes in found.items()} == {
        "inputs": [("target.reference.inputs", "retime")],
        "labels": [("target.reference.labels", "recheck")],
        "plugins": [("target.engine.plugins", "rebuild")],
        "model": [("target.model", "rebuild")],
    }


def test_profiles_and_which_of_them_is_timed(make: Any, target: MakeTarget) -> None:
    model = make.build(
        [onnx.helper.make_node("Relu", ["x"], ["y"])], [make.value("x", ["n"])], [make.value("y", ["n"])]
    )
    small, large = {"shapes": {"x": "1"}}, {"shapes": {"x": {"min": "1", "opt": "2", "max": "3"}}}
    before = bound(target(model, profiles=[small, large]))
    wider = copy.deepcopy(large)
    wider["shapes"]["x"]["max"] = "4"  # type: ignore[index]
    [change] = compare(before, bound(target(model, profiles=[small, wider])))
    assert (change.field, change.old, change.new, change.cost) == (
        "target.profiles.1.x.max",
        [3],
        [4],
        "rebuild",
    )
    [change] = compare(before, bound(target(model, profiles=[small, {**large, "weight": 2}])))
    assert (change.field, change.cost) == ("target.timing.profile", "retime")


def test_the_environment_costs_a_rebuild_and_names_old_and_new() -> None:
    """G48."""
    old, new = (
        on_gpu(driver="535.171.04"),
        on_gpu(driver="535.161.07", **{"variable.NVIDIA_TF32_OVERRIDE": "0"}),
    )
    changes = compare(old, new)
    assert [str(change) for change in changes] == [
        "environment.driver: 535.171.04 -> 535.161.07",
        "environment.variable.NVIDIA_TF32_OVERRIDE: (not set) -> 0",
    ]
    assert {change.cost for change in changes} == {"rebuild"}


def test_unknown_today_cannot_be_told_even_if_it_was_unknown_before() -> None:
    unknown = on_gpu(driver=UNKNOWN)
    for old in (on_gpu(), unknown):
        [change] = compare(old, unknown)
        assert (change.field, change.new, change.cost) == ("environment.driver", UNKNOWN, CANNOT_TELL)
    # Known again: what was made in the unknown is stale.
    [change] = compare(unknown, on_gpu())
    assert change.cost == "rebuild"
    both = compare(on_gpu(), on_gpu(driver=UNKNOWN, **{"gpu.name": "L4"}))
    assert dearest(both) == CANNOT_TELL
    assert both[0].cost == CANNOT_TELL


def test_an_unknown_field_of_a_cpu_stays_the_same() -> None:
    nameless = {"target": {}, "environment": {"device": "cpu", "cpu.model": UNKNOWN}}
    assert compare(nameless, nameless) == []


def test_fields_of_another_version_are_never_taken_lightly() -> None:
    old, new = {"target": {"novel": 1}, "environment": {}}, {"target": {}, "environment": {}, "other": 1}
    assert [(change.field, change.cost) for change in compare(old, new)] == [
        ("other", "rebuild"),
        ("target.novel", "rebuild"),
    ]
    assert compare({}, on_gpu())


def test_equal_to_python_is_not_equal_in_json() -> None:
    for old, new in ((1, True), (0, False), (1, "1")):
        assert compare({"target": {"seed": old}}, {"target": {"seed": new}})


def test_costs_are_in_order_and_the_dearest_is_told() -> None:
    changes = [Change("f", 0, 1, cost) for cost in COSTS]
    assert dearest(changes) == "rebuild"
    assert dearest(changes[:2]) == "recheck"


def test_of_long_lists_only_the_difference_is_shown() -> None:
    words = [f"flag{index}" for index in range(20)]
    change = Change("environment.cpu.flags", " ".join(words), " ".join([*words[1:], "avx"]), "rebuild")
    assert str(change) == "environment.cpu.flags: -flag0 +avx"
