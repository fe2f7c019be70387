from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from routetune.tasks.targets.indices import IndexRange, index_ranges

TABLE = np.zeros((7, 4), np.float32)


def ranges(make: SimpleNamespace, *nodes: onnx.NodeProto, **tables: np.ndarray) -> dict[str, IndexRange]:
    inputs = [make.value("i", ["n"], TensorProto.INT64), make.value("j", ["n"], TensorProto.INT64)]
    model = make.build(nodes, inputs, [make.value("y", None)], {"t": TABLE, **tables})
    return index_ranges(model)


def node(operator: str, inputs: str, output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(operator, inputs.split(), [output], **attributes)


def test_direct_lookup_and_its_axis(make: SimpleNamespace) -> None:
    assert ranges(make, node("Gather", "t i", "y")) == {"i": IndexRange(7, "t", True, True)}
    assert ranges(make, node("Gather", "t i", "y", axis=1))["i"].rows == 4
    assert ranges(make, node("Gather", "t i", "y", axis=-1))["i"].rows == 4
    assert ranges(make, node("GatherElements", "t i", "y", axis=0))["i"].rows == 7
    assert ranges(make, node("Gather", "t i", "y", axis=5)) == {}


def test_followed_through_what_hands_values_on(make: SimpleNamespace) -> None:
    chain = [
        node("Cast", "i", "a", to=TensorProto.INT32),
        node("Unsqueeze", "a axes", "b"),
        node("Reshape", "b axes", "c"),
        node("Identity", "c", "d"),
        node("Gather", "t d", "y"),
    ]
    assert ranges(make, *chain, axes=np.array([0])) == {"i": IndexRange(7, "t", True, True)}


def test_a_slice_serves_to_draw_values_and_not_to_refuse_them(make: SimpleNamespace) -> None:
    found = ranges(make, node("Slice", "i k k", "a"), node("Gather", "t a", "y"), k=np.array([0]))
    assert found == {"i": IndexRange(7, "t", True, False)}


def test_so_does_a_lookup_in_a_branch(make: SimpleNamespace) -> None:
    branches = [
        helper.make_graph([node("Gather", "t i", f"{name}_out")], name, [], [make.value(f"{name}_out", None)])
        for name in ("then", "else")
    ]
    choose = helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    assert ranges(make, choose) == {"i": IndexRange(7, "t", True, False)}


@pytest.mark.parametrize("operator", ["Add", "Clip", "Where", "Mod"])
def test_computed_indices_are_not_traced(make: SimpleNamespace, operator: str) -> None:
    assert ranges(make, node(operator, "i j", "a"), node("Gather", "t a", "y")) == {}


def test_a_table_that_is_computed_from_inputs_has_no_rows_to_know(make: SimpleNamespace) -> None:
    assert ranges(make, node("Gather", "j i", "y")) == {}


def test_the_smallest_of_several_tables_decides(make: SimpleNamespace) -> None:
    found = ranges(
        make, node("Gather", "t i", "a"), node("Gather", "u i", "y"), u=np.zeros((3, 4), np.float32)
    )
    assert found == {"i": IndexRange(3, "u", True, True)}


def test_a_converted_or_transposed_table_keeps_its_rows(make: SimpleNamespace) -> None:
    quantised = np.zeros((9, 4), np.uint8)
    found = ranges(
        make,
        node("DequantizeLinear", "q s z", "f"),
        node("Gather", "f i", "a"),
        node("Transpose", "t", "u", perm=[1, 0]),
        node("Gather", "u j", "b"),
        node("Concat", "a b", "y", axis=0),
        q=quantised,
        s=np.array(1, np.float32),
        z=np.array(0, np.uint8),
    )
    assert {name: entry.rows for name, entry in found.items()} == {"i": 9, "j": 4}
    assert ranges(make, node("Transpose", "t", "u"), node("Gather", "u i", "y"))["i"].rows == 4


def test_tables_in_constant_nodes_and_onnxruntimes_embedding(make: SimpleNamespace) -> None:
    table = onnx.numpy_helper.from_array(TABLE)
    assert ranges(make, node("Constant", "", "k", value=table), node("Gather", "k i", "y"))["i"].rows == 7
    embed = node("EmbedLayerNormalization", "i j word position segment g b", "y", domain="com.microsoft")
    tables = {"word": np.zeros((11, 4)), "position": np.zeros((5, 4)), "segment": np.zeros((2, 4))}
    found = ranges(make, embed, **tables)
    assert found == {"i": IndexRange(11, "word", False, True), "j": IndexRange(2, "segment", False, True)}


def test_a_cycle_ends(make: SimpleNamespace) -> None:
    assert (
        ranges(make, node("Identity", "b", "a"), node("Identity", "a", "b"), node("Gather", "t a", "y")) == {}
    )
