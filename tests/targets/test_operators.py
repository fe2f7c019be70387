from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from routetune.tasks.errors import BadInput
from routetune.tasks.targets.operators import (
    BACKEND_DOMAINS,
    BACKEND_OPERATORS,
    check_operators,
    count_operators,
)

PATH = Path("/m.onnx")


@pytest.fixture
def single(make: SimpleNamespace) -> Any:
    """A model of nodes x -> y0 -> y1 ..., each (operator, domain)."""

    def build(*operators: tuple[str, str], **rest: Any) -> onnx.ModelProto:
        names = ["x", *(f"y{index}" for index in range(len(operators)))]
        nodes = [
            helper.make_node(operator, [names[index]], [names[index + 1]], name=f"n{index}", domain=domain)
            for index, (operator, domain) in enumerate(operators)
        ]
        return make.build(nodes, [make.value("x", [2])], [make.value(names[-1], [2])], **rest)

    return build


def refusal(model: onnx.ModelProto, plugins: bool = False) -> str:
    with pytest.raises(BadInput) as raised:
        check_operators(model, PATH, plugins)
    return str(raised.value)


@pytest.mark.parametrize("domains", [{"acme": 1}, {}], ids=["imported", "not imported"])
def test_an_operator_of_an_unknown_domain_is_one_error_for_the_model(
    single: Any, domains: dict[str, int]
) -> None:
    """D29: op and domain are named once, however many nodes use them."""
    model = single(("MyOp", "acme"), ("Relu", ""), ("MyOp", "acme"), ("Other", "acme"), domains=domains)
    message = refusal(model)
    assert "operator 'MyOp' of domain 'acme' is unknown: node 'n0' and 1 more" in message
    assert "operator 'Other' of domain 'acme' is unknown: node 'n3'" in message
    assert "plugins in [engine]" in message
    check_operators(model, PATH, plugins=True)


@pytest.mark.parametrize(
    ("operator", "opset", "expected"),
    [
        ("Rellu", 17, "operator 'Rellu' of domain 'ai.onnx' is unknown (did you mean"),
        ("Gelu", 17, "does not exist yet in opset 17"),
        ("Relu", 99, "imports opset 99 of domain 'ai.onnx'"),
    ],
)
def test_unknown_in_onnxs_own_domain(single: Any, operator: str, opset: int, expected: str) -> None:
    message = refusal(single((operator, ""), opset=opset))
    assert expected in message
    if opset == 99:
        assert f"knows opsets up to {onnx.defs.onnx_opset_version()}" in message


def test_a_known_domain_must_be_imported(single: Any) -> None:
    assert "imports no opset of that domain" in refusal(single(("Scaler", "ai.onnx.ml")))
    check_operators(single(("Scaler", "ai.onnx.ml"), domains={"ai.onnx.ml": 3}), PATH, plugins=False)


def test_spellings_of_onnxs_domain_local_functions_and_the_backends_operators_are_known(
    single: Any, make: SimpleNamespace
) -> None:
    twice = helper.make_function(
        "acme",
        "Twice",
        ["p"],
        ["q"],
        [helper.make_node("Add", ["p", "p"], ["q"])],
        [helper.make_opsetid("", 17)],
    )
    model = single(
        ("Relu", "ai.onnx"),
        ("Twice", "acme"),
        ("Gelu", "com.microsoft"),
        domains={"acme": 1},
        functions=[twice],
    )
    check_operators(model, PATH, plugins=False)
    assert count_operators(model) == {"Relu": 1, "acme:Twice": 1, "com.microsoft:Gelu": 1}
    model.functions[0].node[0].op_type = "Addd"
    assert "'Addd'" in refusal(model)


def test_nodes_in_branches_are_seen(make: SimpleNamespace) -> None:
    branch = helper.make_graph([helper.make_node("MyOp", [], ["a"])], "b", [], [make.value("a", [2])])
    choose = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    model = make.build([choose], [make.value("c", [], TensorProto.BOOL)], [make.value("y", [2])])
    assert "operator 'MyOp'" in refusal(model)
    assert count_operators(model) == {"If": 1, "MyOp": 2}


def test_what_onnxruntime_registers_and_onnx_does_not_is_known_here() -> None:
    """The lists are written down, since intake imports no onnxruntime; this finds what a release adds."""
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

    known = {(schema.domain, schema.name) for schema in onnx.defs.get_all_schemas()}
    added = {(schema.domain, schema.name) for schema in get_all_operator_schema()} - known
    internal = {("", "MemcpyFromHost"), ("", "MemcpyToHost")}
    assert {domain for domain, _ in added} - {""} <= BACKEND_DOMAINS, onnxruntime.__version__
    assert {name for domain, name in added - internal if domain == ""} <= BACKEND_OPERATORS, (
        onnxruntime.__version__
    )
