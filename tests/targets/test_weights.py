"""What every engine of a model holds: never more than the library keeps, and enough to refuse early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper
from routetune.tasks.engines.base import BuildOrder
from routetune.tasks.engines.onnxruntime.backend import OnnxRuntime
from routetune.tasks.engines.onnxruntime.rules import graph, node
from routetune.tasks.errors import BadInput
from routetune.tasks.subject import open_subject
from routetune.tasks.targets.weights import kept_bytes

from tests.engines.onnxruntime import patterns
from tests.engines.small_models import SAMPLES

W = np.arange(1 << 14, dtype=np.float32).reshape(128, 128)
HALF = {"to": TensorProto.FLOAT16}


def model(nodes: Sequence[onnx.NodeProto], weights: dict[str, Any] | None = None, **rest: Any) -> ModelProto:
    return graph(nodes, weights or {"w": W}, x=(4, 128), y=(4, 128), **rest)


def branches() -> ModelProto:
    """Weights read in the branches of an If whose condition is an input, as merged decoders are exported."""
    value = helper.make_tensor_value_info
    bodies = {}
    for name, weight in (("then_branch", "w"), ("else_branch", "v")):
        inner = [node(f"MatMul x {weight} -> {name}")]
        bodies[name] = helper.make_graph(inner, name, [], [value(name, 1, (4, 128))])
    return model([node("If c -> y", **bodies)], {"w": W, "v": W * 2}, others={"c": ("BOOL", ())})


def calling() -> ModelProto:
    """A function of the model's own that makes its weight smaller."""
    made = model([node("local:F x w -> y")], opsets={"local": 1})
    body = [
        node("Cast b -> h", **HALF),
        node("Cast h -> g", to=TensorProto.FLOAT),
        node("MatMul a g -> o"),
    ]
    opsets = [helper.make_opsetid("", 17)]
    made.functions.append(helper.make_function("local", "F", ["a", "b"], ["o"], body, opsets))
    return made


CASES: dict[str, tuple[Callable[[], ModelProto], int]] = {
    "read beside an input": (lambda: model([node("MatMul x w -> y")]), W.nbytes),
    "read twice": (lambda: model([node("MatMul x w -> h"), node("MatMul h w -> y")]), W.nbytes),
    "turned before": (lambda: model([node("Transpose w -> t"), node("MatMul x t -> y")]), W.nbytes),
    "of no use": (lambda: model([node("Relu x -> y")]), 0),
    "needed by no output": (lambda: model([node("MatMul x w -> h"), node("Relu x -> y")]), 0),
    "made smaller before": (
        lambda: model(
            [
                node("Cast w -> h", **HALF),
                node("Cast x -> k", **HALF),
                node("MatMul k h -> m"),
                node("Cast m -> y", to=TensorProto.FLOAT),
            ]
        ),
        0,
    ),
    "cut by a shape": (
        lambda: model(
            [node("Shape x -> s"), node("Slice w z s -> p"), node("Add x p -> y")],
            {"w": W, "z": np.zeros(2, np.int64)},
        ),
        0,
    ),
    "in branches": (branches, 2 * W.nbytes),
    "in a function": (calling, 0),
    "out of order": (
        lambda: model([node("Relu h -> y"), node("MatMul x t -> h"), node("Identity w -> t")]),
        W.nbytes,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_must_be_kept(case: str) -> None:
    make, expected = CASES[case]
    assert kept_bytes(make()) == expected


def made() -> list[tuple[str, ModelProto]]:
    samples = [(sample.name, sample.model) for sample in (make() for make in SAMPLES)]
    ordered = {name: make for name, (make, _) in CASES.items() if name != "out of order"}
    return [*samples, *((name, make()) for name, make in {**patterns.PATTERNS, **ordered}.items())]


def test_it_is_never_more_than_the_library_keeps(tmp_path: Path) -> None:
    """Else a model would be refused that can be built."""
    for name, one in made():
        onnx.save(one, tmp_path / "m.onnx")
        engine = OnnxRuntime().build(BuildOrder(tmp_path / "m.onnx", {}, tmp_path / "engine"))
        assert kept_bytes(one) <= engine.size, name


def test_long_models_in_the_worst_order() -> None:
    """Also that a weight is followed through a thousand rearrangements, from every place of the chain."""
    count = 1000
    names = ["x", *(f"h{at}" for at in range(count - 1)), "h"]
    chain = [node(f"Identity {a} -> {b}") for a, b in pairwise(names)]
    constant = [node(f"Identity {'w' if not at else f'c{at - 1}'} -> c{at}") for at in range(count)]
    readers = [node(f"Add h c{at} -> r{at}") for at in range(count)]
    every = " ".join(f"r{at}" for at in range(count))
    long = model([*chain, *constant, *readers, node(f"Sum {every} -> y")][::-1])
    assert kept_bytes(long) == W.nbytes


@pytest.mark.slow
def test_a_model_that_no_engine_can_hold_is_refused_before_a_build(tmp_path: Path) -> None:
    """The weights are zeros in a sparse file, which takes no room."""
    size = 2**31
    sidecar = TensorProto(name="w", data_type=TensorProto.INT8, dims=[size // 128, 128])
    sidecar.data_location = TensorProto.EXTERNAL
    sidecar.external_data.add(key="location", value="w.bin")
    value = helper.make_tensor_value_info
    big = helper.make_graph(
        [node("Gather w i -> y")],
        "g",
        [value("i", TensorProto.INT64, (4,))],
        [value("y", TensorProto.INT8, (4, 128))],
        [sidecar],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(big, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(size)
    target = tmp_path / "t.toml"
    target.write_text(
        'schema = 1\nname = "t"\nmodel = "m.onnx"\nbackend = "onnxruntime"\n'
        '[engine]\ndevice = "cpu"\n[search]\nroutes = ["-enable_mem_reuse=[on|off]"]\n'
        '[accuracy]\nmetric = "lInf"\ntolerance = 0.1\n'
    )
    with pytest.raises(BadInput) as refused:
        open_subject(target)
    said = str(refused.value)
    assert str(size) in said and str(2**31 - 1) in said and str(tmp_path / "m.onnx") in said
    assert "fewer bits" in said and "split" in said
