"""Who is offered fused attention, and what results are bound to then."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import onnx
import pytest
from routetune.tasks.engines.places import place_knobs
from routetune.tasks.targets import fusions
from routetune.tasks.targets.binding import bound_to
from routetune.tasks.targets.changes import compare
from routetune.tasks.targets.environment import Environment
from routetune.tasks.targets.model import inspect_model
from routetune.tasks.targets.places import FUSED, names_fusing

from tests.engines.attention import attention


def test_without_the_library_it_is_said_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, target: Callable[..., Any]
) -> None:
    model = inspect_model(target(attention()))
    assert FUSED in place_knobs(model, "onnxruntime", "cpu")
    monkeypatch.setattr(fusions, "version", str)
    database = place_knobs(model, "onnxruntime", "cpu")
    assert FUSED not in database and "routetune[fusions]" in database.notes["@"]


def test_only_onnx_runtime_is_offered_its_own_operators_and_only_for_attention(
    target: Callable[..., Any], relu: onnx.ModelProto
) -> None:
    model = inspect_model(target(attention()))
    for backend in ("tensorrt", "own_backend:Own"):
        database = place_knobs(model, backend, "cpu")
        assert FUSED not in database and "fusions" not in database.notes["@"]
    database = place_knobs(inspect_model(target(relu)), "onnxruntime", "cpu")
    assert FUSED not in database and "fusions" not in database.notes["@"]


@pytest.mark.parametrize(
    ("expressions", "found"),
    [
        (["@fused=[*]"], True),
        (["-a=[*]", "-b=on\n@f*=[*]"], True),
        (["@*=[*]"], True),
        (["@fp16=[*] @dynamic=on"], False),
        (["-fused=[*] *=on"], False),
        ([], False),
    ],
)
def test_whether_an_expression_names_it(expressions: list[str], found: bool) -> None:
    assert names_fusing(expressions) is found


def test_results_are_bound_to_the_library_where_a_route_can_ask_for_it(
    target: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Environment({"backend": "onnxruntime"})

    def bound(routes: str, environment: Environment = here) -> dict[str, Any]:
        opened = target(attention(), search={"routes": [routes]})
        info = inspect_model(opened)
        return bound_to(opened, info, environment, {"inputs": None, "labels": None})

    before = {routes: bound(routes) for routes in ("@fused=[*]", "@*=[*]", "@fp16=[*]", "-a=[*]")}
    there = bound("@fused=[*]", Environment({"backend": "tensorrt"}))
    assert "fusions" not in there["target"]["quantization"]
    monkeypatch.setattr(fusions, "version", lambda: "onnxscript 99")
    changed = {routes: compare(old, bound(routes)) for routes, old in before.items()}
    for routes in ("@fused=[*]", "@*=[*]"):
        [change] = changed[routes]
        assert (change.field, change.cost, change.new) == (
            "target.quantization.fusions",
            "rebuild",
            "onnxscript 99",
        )
        assert change.old == f"onnxscript {version('onnxscript')}, onnx-ir {version('onnx-ir')}"
    assert not changed["@fp16=[*]"] and not changed["-a=[*]"]
    monkeypatch.setattr(fusions, "version", str)
    assert "fusions" not in bound("@*=[*]")["target"]["quantization"]
