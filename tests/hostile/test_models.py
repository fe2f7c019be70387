"""ONNX files that are damaged, or made to do harm: the intake refuses or takes them, and always ends."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from routetune.data import folder
from routetune.tasks.targets.inputs import input_sets
from routetune.tasks.targets.model import inspect_model
from routetune.tasks.targets.schema import parse_target

from tests.hostile.bounds import fuzzing, refusal, runs, tree

Node = onnx.NodeProto


def value(name: str, shape: Any, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def relu(source: str, result: str, name: str = "") -> Node:
    return helper.make_node("Relu", [source], [result], name=name)


def model(nodes: list[Node], shape: Any = (2,), outputs: str = "y", **rest: Any) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "g", [value("x", shape)], [value(name, None) for name in outputs], **rest
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def lookup() -> onnx.ModelProto:
    """A small model with an index input, constants, and a branch: what every part of the intake looks at."""
    tables = [
        numpy_helper.from_array(np.ones((4, 3), np.float32), "t"),
        numpy_helper.from_array(np.array(True), "c"),
    ]
    then = helper.make_graph(
        [helper.make_node("Transpose", ["e"], ["f"], perm=[1, 0])], "then", [], [value("f", None)]
    )
    other = helper.make_graph([relu("e", "f")], "else", [], [value("f", None)])
    nodes = [
        helper.make_node("Gather", ["t", "x"], ["e"], axis=0),
        helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other),
    ]
    graph = helper.make_graph(nodes, "g", [value("x", [2], TensorProto.INT64)], [value("y", None)], tables)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def take(
    place: Path, content: bytes | onnx.ModelProto | None = None, name: str = "m.onnx", **sections: Any
) -> None:
    """What `routetune tune` does before anything is built: the target, the model, its inputs."""
    if content is not None:
        (place / name).write_bytes(content if isinstance(content, bytes) else content.SerializeToString())
    data = {"schema": 1, "name": "t", "model": name, "search": {"routes": "-a=b"}, **sections}
    target = parse_target(data, place / "t.toml")
    input_sets(target, inspect_model(target))


@runs
def test_mutated_models(examples: int, tmp_path: Path) -> None:
    whole = [lookup().SerializeToString(), (folder() / "models" / "encoder.onnx").read_bytes()]
    assert refusal(lambda: take(tmp_path, whole[0])) is None
    before = tree(tmp_path)
    nasty = [0, 1, 127, 128, 255]

    @fuzzing(examples)
    @given(st.integers(0, 2**32), st.integers(1, 6), st.sampled_from([0, 0, 0, 1]))
    def check(seed: int, changes: int, which: int) -> None:
        chance, content = random.Random(seed), bytearray(whole[which])
        for _ in range(changes):
            at = chance.randrange(len(content))
            match chance.choice("sssdi"):
                case "s":
                    content[at] = chance.choice([*nasty, chance.randrange(256)])
                case "d":
                    del content[at : at + chance.randint(1, 9)]
                case _:
                    content[at:at] = content[chance.randrange(len(content)) :][: chance.randint(1, 30)]
        refusal(lambda: take(tmp_path, bytes(content)))

    check()
    assert tree(tmp_path) == before


CYCLE = [relu("b", "a"), relu("a", "b"), helper.make_node("Add", ["x", "a"], ["y"])]


def nested(depth: int) -> bytes:
    """Graphs in attributes in graphs, as bytes, since no library would write them so deep."""

    def wrapped(tag: int, body: bytes) -> bytes:
        size, head = len(body), bytearray([tag])
        while size > 127:
            head.append(size & 127 | 128)
            size >>= 7
        return bytes([*head, size]) + body

    body = b""
    for _ in range(depth):
        body = wrapped(0x0A, wrapped(0x2A, wrapped(0x32, body)))  # graph.node, node.attribute, attribute.g
    return b"\x08\x08" + wrapped(0x3A, body)


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (lambda: model(CYCLE), "'a' depends on itself"),
        (
            lambda: model([helper.make_node("Gather", ["t", "t"], ["t"]), relu("x", "y")]),
            "'t' depends on itself",
        ),
        (lambda: model([relu("x", "y"), relu("x", "y")]), "'y' is the output of several nodes"),
        (lambda: model([relu("x", "y")], [2**62]), "would take"),
        (lambda: model([relu("x", "y")], [2**31, 2**31]), "would take"),
        (lambda: model([relu("x", "y")], [2**40, 0, 2**40]), "would take"),
        (lambda: model([relu("x", "y")], [1] * 65), "65 dimensions"),
        (lambda: model([relu("x", "y")], [-5]), "can vary"),
        (lambda: nested(5000), "is not an ONNX file|no outputs"),
        (
            lambda: model([relu("QQQQ", "y")]).SerializeToString().replace(b"QQQQ", b"\xff\xfe\x00Q"),
            "is not UTF-8",
        ),
        (
            lambda: (
                model([helper.make_node("QQQQ", ["x"], ["y"])])
                .SerializeToString()
                .replace(b"QQQQ", b"\xff\xff\xffQ")
            ),
            "is not UTF-8",
        ),
    ],
    ids=[
        "cycle",
        "self",
        "twice",
        "2^62",
        "2^31 x 2^31",
        "zero",
        "65",
        "negative",
        "deep",
        "name",
        "operator",
    ],
)
def test_graphs_that_no_runtime_could_run(made: Callable[[], Any], sentence: str, tmp_path: Path) -> None:
    found = refusal(lambda: take(tmp_path, made()))
    assert found is not None
    assert re.search(sentence, found), found


@pytest.mark.parametrize("dims", [[2**62, 2**62], [-1, 4], [5], [0]])
def test_constants_of_another_size_than_they_say(dims: list[int], tmp_path: Path) -> None:
    made = model([helper.make_node("Add", ["x", "w"], ["y"])])
    made.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=dims, raw_data=b"12345678")
    assert "tensor 'w'" in str(refusal(lambda: take(tmp_path, made)))


def test_nodes_of_one_name_are_told_apart(tmp_path: Path) -> None:
    assert refusal(lambda: take(tmp_path, model([relu("x", "a", "n"), relu("a", "y", "n")]))) is None


names = [
    "../w",
    "/etc/passwd",
    "a/../../w",
    "w\0",
    "x" * 5000,
    "",
    ".",
    "sub",
    "fifo",
    "/dev/zero",
    "out",
    "loop",
]


@pytest.mark.parametrize("location", names)
def test_external_data_never_leads_out_of_the_models_folder(location: str, tmp_path: Path) -> None:
    place = tmp_path / "models"
    (place / "sub").mkdir(parents=True)
    (tmp_path / "w").write_bytes(b"\0" * 8)
    (place / "out").symlink_to(tmp_path / "w")
    (place / "loop").symlink_to(place / "loop")
    os.mkfifo(place / "fifo")
    made = model([helper.make_node("Add", ["x", "w"], ["y"])])
    tensor = made.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[2])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    assert "tensor 'w'" in str(refusal(lambda: take(place, made)))


@pytest.mark.parametrize("name", ["a/b\0", "m" * 300, "\u202em.onnx", "loop"])
def test_models_under_odd_names(name: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert refusal(lambda: take(tmp_path, None, name))
