"""Identity: what changes a compiled graph or its options changes it, and nothing else does."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper
from routetune.tasks.engines.base import BuildOrder, Engine
from routetune.tasks.engines.onnxruntime.backend import OnnxRuntime
from routetune.tasks.engines.onnxruntime.identity import identity
from routetune.tasks.engines.onnxruntime.knobs import knob_database
from routetune.tasks.engines.onnxruntime.rules import graph, node, scalar
from routetune.tasks.engines.onnxruntime.settings import Setting, settings

from tests.engines.onnxruntime import patterns
from tests.engines.small_models import SAMPLES, Sample

BACKEND = OnnxRuntime()
Change = Callable[[ModelProto], None]


def nested() -> ModelProto:
    """Attributes, constants, a subgraph with a constant of its own, a function, two weights."""
    inner = [node("Constant -> k", value=numpy_helper.from_array(scalar(3), "k")), node("Add r k -> t")]
    then_branch = helper.make_graph(inner, "then", [], [helper.make_tensor_value_info("t", 1, (4,))])
    other = [node("Sub r w -> e")]
    else_branch = helper.make_graph(other, "else", [], [helper.make_tensor_value_info("e", 1, (4,))])
    nodes = [
        node("LeakyRelu x -> r", alpha=0.25),
        node("If c -> i", then_branch=then_branch, else_branch=else_branch),
        node("local:F i v -> f"),
        node("HardSigmoid f -> s", alpha=0.5, beta=0.25),
        node("Neg r -> n"),
        node("Sum s n v -> y"),
    ]
    model = graph(
        nodes,
        {"w": patterns.ramp(4), "v": patterns.ramp(4) * 2},
        others={"c": ("BOOL", ())},
        opsets={"local": 1},
    )
    for name in ("F", "Unused"):
        body = [node("Mul a b -> m"), node("Tanh m -> o")]
        opsets = [helper.make_opsetid("", 17)]
        model.functions.append(helper.make_function("local", name, ["a", "b"], ["o"], body, opsets))
    model.graph.value_info.append(helper.make_tensor_value_info("s", 1, (4,)))
    onnx.checker.check_model(model)
    return model


def renamed(model: ModelProto) -> None:
    """Every inner name, in the subgraphs too, and the names of the nodes."""
    names = {name: f"other_{name}" for name in "rifsnktewv"}

    def walk(nodes: Any) -> None:
        for position, entry in enumerate(nodes):
            entry.name = f"node {position}"
            entry.input[:] = [names.get(name, name) for name in entry.input]
            entry.output[:] = [names.get(name, name) for name in entry.output]
            for attribute in entry.attribute:
                if attribute.HasField("g"):
                    walk(attribute.g.node)
                    for value in attribute.g.output:
                        value.name = names.get(value.name, value.name)

    walk(model.graph.node)
    for value in (*model.graph.initializer, *model.graph.value_info):
        value.name = names.get(value.name, value.name)


def shuffled(model: ModelProto) -> None:
    order = random.Random(0)
    for repeated in (
        model.graph.initializer,
        model.opset_import,
        model.functions,
        *(entry.attribute for entry in model.graph.node),
    ):
        entries = list(repeated)
        order.shuffle(entries)
        del repeated[:]
        repeated.extend(entries[::-1] if len(entries) == 2 else entries)


def described(model: ModelProto) -> None:
    model.producer_name, model.producer_version, model.doc_string = "someone", "7", "words"
    model.model_version, model.domain = 3, "example.org"
    model.metadata_props.add(key="k", value="v")
    model.graph.name, model.graph.doc_string = "another", "words"
    model.graph.node[0].doc_string = model.graph.input[0].doc_string = "words"
    model.graph.node[0].metadata_props.add(key="k", value="v")
    model.graph.initializer[0].doc_string = "words"


def typed_weight(model: ModelProto) -> None:
    values = numpy_helper.to_array(model.graph.initializer[0])
    tensor = helper.make_tensor("w", 1, [4], values.tolist())
    assert not tensor.HasField("raw_data")
    model.graph.initializer[0].CopyFrom(tensor)


def unused(model: ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(scalar(9), "nobody"))
    model.functions[1].node[0].op_type = "Div"
    model.graph.value_info.append(helper.make_tensor_value_info("nothing", 1, (4,)))


@pytest.mark.parametrize("change", [renamed, shuffled, described, typed_weight, unused])
def test_what_means_nothing_does_not_count(change: Change) -> None:
    model = nested()
    before = identity(model, {})
    change(model)
    assert model.SerializeToString(deterministic=True) != nested().SerializeToString(deterministic=True)
    assert identity(model, {}) == before


def flip_a_bit(model: ModelProto) -> None:
    raw = bytearray(model.graph.initializer[1].raw_data)
    raw[3] ^= 1
    model.graph.initializer[1].raw_data = bytes(raw)


def branch(model: ModelProto, name: str) -> Any:
    return next(entry for entry in model.graph.node[1].attribute if entry.name == name)


def inner_constant(model: ModelProto) -> None:
    constant = branch(model, "then_branch").g.node[0].attribute[0].t
    constant.raw_data = np.float32(3.0000002).tobytes()


def swap_branches(model: ModelProto) -> None:
    one, other = branch(model, "then_branch"), branch(model, "else_branch")
    one.name, other.name = other.name, one.name


def swap_nodes(model: ModelProto) -> None:
    first, second = model.graph.node[3], model.graph.node[4]
    kept = type(first)()
    kept.CopyFrom(first)
    first.CopyFrom(second)
    second.CopyFrom(kept)


def fewer_attributes(model: ModelProto) -> None:
    del model.graph.node[3].attribute[-1]


def another_edge(model: ModelProto) -> None:
    model.graph.node[4].input[0] = "x"


def another_weight_shape(model: ModelProto) -> None:
    model.graph.initializer[0].dims[:] = [1, 4]


def another_input_name(model: ModelProto) -> None:
    model.graph.input[0].name = model.graph.node[0].input[0] = "z"


def dimension(value: Any) -> Any:
    return value.type.tensor_type.shape.dim[0]


COUNTED: dict[str, Change] = {
    "a bit of a weight": flip_a_bit,
    "a constant in a subgraph": inner_constant,
    "the order of nodes": swap_nodes,
    "an operator": lambda model: setattr(model.graph.node[4], "op_type", "Abs"),
    "a domain": lambda model: setattr(model.graph.node[4], "domain", "com.microsoft"),
    "an attribute": lambda model: setattr(model.graph.node[0].attribute[0], "f", 0.26),
    "one attribute less": fewer_attributes,
    "an edge": another_edge,
    "the branches": swap_branches,
    "a function that is used": lambda model: setattr(model.functions[0].node[0], "op_type", "Div"),
    "the type of a weight": lambda model: setattr(model.graph.initializer[0], "data_type", 6),
    "the shape of a weight": another_weight_shape,
    "the name of an input": another_input_name,
    "the shape of an input": lambda model: setattr(dimension(model.graph.input[0]), "dim_value", 5),
    "a shape written down": lambda model: setattr(dimension(model.graph.value_info[0]), "dim_value", 5),
    "an operator set": lambda model: setattr(model.opset_import[0], "version", 18),
    "the IR version": lambda model: setattr(model, "ir_version", 9),
}


@pytest.mark.parametrize("what", COUNTED)
def test_what_means_something_counts(what: str) -> None:
    model = nested()
    before = identity(model, {})
    COUNTED[what](model)
    assert identity(model, {}) != before


def test_options_count() -> None:
    model = nested()
    options: list[dict[str, str]] = [{}, {"-a": "1"}, {"-a": "2"}, {"-b": "1"}, {"-a": "1", "-b": "1"}]
    assert len({identity(model, option) for option in options}) == len(options)
    assert identity(model, {"-a": "1", "-b": "2"}) == identity(model, {"-b": "2", "-a": "1"})


def test_values_in_another_file_are_no_compiled_model() -> None:
    model = nested()
    model.graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL
    with pytest.raises(ValueError, match="another file"):
        identity(model, {})


def build(sample: Sample, folder: Path, **route: str) -> Engine:
    profiles = (sample.profile,) if sample.profile else ()
    names = {f"-{name}": value for name, value in route.items()}
    return BACKEND.build(BuildOrder(folder / f"{sample.name}.onnx", names, folder / "engine", profiles))


@pytest.mark.parametrize("make", SAMPLES)
def test_routes_that_differ_in_graph_or_outputs_share_no_identity(
    make: Callable[[], Sample], tmp_path: Path
) -> None:
    """Every value of every knob: those of one identity compute the same bits, by the same operators, with the
    same options; and most rewrites, having nothing to do, are aliases of the default."""
    sample = make()
    sample.save(tmp_path)
    same: dict[str, dict[tuple[Any, ...], str]] = defaultdict(dict)
    aliases = 0
    default = build(sample, tmp_path).identity
    for knob in knob_database().values():
        name = knob.name[1:]
        for value in knob.values or ():
            if value == knob.default:
                continue
            engine = build(sample, tmp_path, **{name: value})
            row = settings().get(name)
            # What is applied at load is an option, whatever comes of it.
            assert not (row and row.at_load and engine.identity == default)
            aliases += engine.identity == default
            operators = [entry.op_type for entry in onnx.load(engine.path).graph.node]
            runner = BACKEND.load(engine, "cpu", {})
            outputs = runner.infer(sample.inputs[0])
            runner.close()
            seen = (tuple(operators), *(outputs[name].tobytes() for name in outputs), str(engine.options))
            same[str(engine.identity)][seen] = f"{name}={value}"
    for members in same.values():
        assert len(members) == 1, f"one identity for {list(members.values())}"
    assert aliases > 40


@pytest.mark.parametrize(
    "row", [row for row in settings().values() if row.only_at_load], ids=lambda row: row.name
)
def test_what_only_acts_at_load_shapes_no_graph(row: Setting, tmp_path: Path) -> None:
    """On every pattern that some rewrite knows, with either end of its values: only the options differ."""
    for name, make in patterns.PATTERNS.items():
        sample = Sample(name, make(), {})
        sample.save(tmp_path)
        default = build(sample, tmp_path).identity
        for value in (row.values[0], row.values[-1]):
            graph_of, _, settled = str(build(sample, tmp_path, **{row.name: value}).identity).partition("-")
            assert graph_of == default and bool(settled) == (value != row.default), (name, value)


@pytest.mark.parametrize("name", patterns.PATTERNS)
def test_the_same_route_twice_has_one_identity(name: str, tmp_path: Path) -> None:
    sample = Sample(name, patterns.PATTERNS[name](), {})
    sample.save(tmp_path)
    assert build(sample, tmp_path).identity == build(sample, tmp_path).identity


def test_large_weights_count_like_small_ones() -> None:
    """They are hashed on threads: each still stands for its own name, in any order."""
    rng = np.random.default_rng(0)
    large = {f"w{at}": rng.standard_normal((512, 1024)).astype(np.float32) for at in range(3)}
    small = {"s": patterns.ramp(4), "t": patterns.ramp(4) * 2}
    mixed = {"w0": large["w0"], "s": small["s"], "w1": large["w1"], "w2": large["w2"], "t": small["t"]}
    nodes = [node(f"Identity {name} -> {name}o") for name in mixed]
    model = graph([*nodes, node("Relu x -> y")], mixed)

    def of(change: Change | None = None) -> str:
        other = ModelProto.FromString(model.SerializeToString())
        if change is not None:
            change(other)
        return identity(other, {})

    def flipped(at: int) -> Change:
        def change(other: ModelProto) -> None:
            raw = bytearray(other.graph.initializer[at].raw_data)
            raw[-1] ^= 1
            other.graph.initializer[at].raw_data = bytes(raw)

        return change

    def swapped(other: ModelProto) -> None:
        one, two = other.graph.initializer[0], other.graph.initializer[2]
        one.raw_data, two.raw_data = two.raw_data, one.raw_data

    def turned(other: ModelProto) -> None:
        weights = list(other.graph.initializer)[::-1]
        del other.graph.initializer[:]
        other.graph.initializer.extend(weights)

    assert {of(), of(turned)} == {of()}
    assert len({of(), of(swapped), *(of(flipped(at)) for at in range(len(mixed)))}) == 2 + len(mixed)
