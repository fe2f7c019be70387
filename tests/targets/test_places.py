from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from routetune.data import folder
from routetune.tasks.errors import BadInput
from routetune.tasks.routes.knob import Knob
from routetune.tasks.targets.places import DYNAMIC, HALF, names_places, node_names, places_of
from routetune.tasks.targets.quantization import Quantization


def chain(*nodes: tuple[str, str]) -> onnx.ModelProto:
    """A model of nodes (operator, name), one after the other; it need not run."""
    made = [helper.make_node(kind, [f"t{i}"], [f"t{i + 1}"], name) for i, (kind, name) in enumerate(nodes)]
    ends = [helper.make_tensor_value_info(f"t{i}", TensorProto.FLOAT, [1]) for i in (0, len(nodes))]
    return helper.make_model(helper.make_graph(made, "g", ends[:1], ends[1:]))


NAMES = st.lists(
    st.sampled_from(["", "a", "a_2", "Conv_0", "dynamic", "fp16", "a b", "a=b", "é[*]", "x/y.0"])
)


@given(NAMES)
def test_names_are_unique_stable_and_can_be_written_in_a_route(names: list[str]) -> None:
    model = chain(*(("Conv", name) for name in names))
    places = places_of(model, "node")
    assert len({place.name for place in places}) == len({place.nodes for place in places}) == len(names)
    assert places == places_of(chain(*(("Conv", name) for name in names)), "node")
    assert not {DYNAMIC, HALF} & {place.name for place in places}
    for place in places:
        Knob(place.name, ("off", "on"), "off")  # refuses what a route could not hold
    assert [node for place in places for node in place.nodes] == node_names(model.graph)


@pytest.mark.parametrize(
    ("grouping", "expected"),
    [
        ("node", {"@conv1": 1, "@conv2": 1, "@conv3": 1, "@classifier": 1}),
        ("type", {"@type.Conv": 3, "@type.MatMul": 1}),
        ("block", {"@block.0": 1, "@block.1": 1, "@block.2": 1, "@block.3": 1}),
    ],
)
def test_groups_of_the_sample(grouping: str, expected: dict[str, int]) -> None:
    places = places_of(onnx.load(folder() / "models" / "digits_cnn.onnx"), grouping)
    assert {place.name: len(place.nodes) for place in places} == expected


def test_blocks_are_what_is_alike_up_to_the_first_number() -> None:
    encoder = onnx.load(folder() / "models" / "encoder.onnx")
    assert [len(place.nodes) for place in places_of(encoder, "block")] == [8, 8, 1]


def test_nodes_of_subgraphs_are_no_places() -> None:
    inside = chain(("Conv", "inner")).graph
    del inside.input[:]
    model = chain(("Conv", "outer"))
    both = {"then_branch": inside, "else_branch": inside}
    model.graph.node.append(helper.make_node("If", ["t1"], ["t2"], "if", **both))
    assert [place.name for place in places_of(model, "node")] == ["@outer"]


def test_what_is_quantised_already_is_no_place() -> None:
    found = places_of(chain(("DequantizeLinear", "d"), ("Conv", "a"), ("Relu", "r"), ("Conv", "b")), "node")
    assert [place.name for place in found] == ["@b"]


@pytest.mark.parametrize(
    ("expression", "found"),
    [(["-a=[*]", "-b=on\n@c=on"], True), (["@*=[*]"], True), (["-a@b=on +c=1"], False), ([], False)],
)
def test_whether_an_expression_names_places(expression: list[str], found: bool) -> None:
    assert names_places(expression) is found


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"places": "layer"}, "places"),
        ({"activations": "int8", "weights": "uint8"}, 'weights = "int8"'),
        ({"percentile": 50}, "percentile"),
        ({"symetric": True}, "symetric"),
    ],
)
def test_settings_that_cannot_be(
    section: dict[str, Any], told: str, relu: onnx.ModelProto, target: Callable[..., Any]
) -> None:
    with pytest.raises(BadInput, match=told):
        target(relu, quantization=section)


@pytest.mark.parametrize("section", [{"activations": "uint8"}, {"weights": "uint8"}, {"symmetric": False}])
def test_what_tensorrt_cannot_do_is_said(section: dict[str, Any]) -> None:
    asked = Quantization(**section)
    assert asked.problem_with("tensorrt").startswith("TensorRT quantises") and not asked.problem_with("x")
