"""Which rewrites act on a model, held against what really changes when they are switched off."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from routetune.data import folder
from routetune.tasks.engines.base import BuildOrder, open_backend
from routetune.tasks.engines.onnxruntime.firing import LEVEL, idle_knobs
from routetune.tasks.engines.onnxruntime.knobs import knob_database
from routetune.tasks.engines.onnxruntime.passes import RULES, TRANSFORMERS
from routetune.tasks.engines.onnxruntime.rules import graph, node

SWITCHES = {f"-{name}": ["on", "off"] for name in (*TRANSFORMERS, *RULES)}


def order(tmp_path: Path, model: Path, **route: str) -> BuildOrder:
    return BuildOrder(model, route, tmp_path / "engine.onnx")


@pytest.mark.parametrize("name", ["digits_cnn", "encoder"])
def test_a_knob_that_is_called_idle_changes_no_engine_by_itself(name: str, tmp_path: Path) -> None:
    """The converse does not hold: a later rewrite may do what another one left."""
    backend = open_backend("onnxruntime")
    model = folder() / f"models/{name}.onnx"
    idle = idle_knobs(order(tmp_path, model), SWITCHES)
    assert 20 < len(idle) < len(SWITCHES)
    default = backend.build(order(tmp_path, model)).identity
    database = knob_database()
    for knob in (knob for knob, beside in idle.items() if not beside):
        if knob in database:
            assert backend.build(BuildOrder(model, {knob: "off"}, tmp_path / "e.onnx")).identity == default
    active = "-NchwcTransformer" if name == "digits_cnn" else "-AttentionFusion"
    assert active not in idle
    assert backend.build(BuildOrder(model, {active: "off"}, tmp_path / "e.onnx")).identity != default


@pytest.mark.parametrize("name", ["digits_cnn", "encoder"])
def test_a_knob_that_is_idle_at_a_level_changes_no_engine_there(name: str, tmp_path: Path) -> None:
    model = folder() / f"models/{name}.onnx"
    idle = idle_knobs(order(tmp_path, model), SWITCHES | {LEVEL: ["basic", "all"]})
    there = {knob: beside for knob, beside in idle.items() if beside and knob in knob_database()}
    assert there and all(beside == [(LEVEL, "basic")] for beside in there.values())

    def identity(**route: str) -> str:
        build = BuildOrder(model, {LEVEL: "basic"} | route, tmp_path / "e.onnx")
        return open_backend("onnxruntime").build(build).identity

    assert {identity(**{knob: "off"}) for knob in there} == {identity()}


def test_only_the_levels_that_are_searched_count(tmp_path: Path) -> None:
    model = folder() / "models/digits_cnn.onnx"
    route = {LEVEL: "basic"}
    knobs = {
        "-NchwcTransformer": ["on", "off"],
        "-MatMulAddFusion": ["on", "off"],
        "-enable_mem_pattern": ["on"],
    }
    at_basic = BuildOrder(model, route, tmp_path / "engine.onnx")
    assert idle_knobs(at_basic, knobs) == {"-NchwcTransformer": []}
    both = idle_knobs(at_basic, knobs | {LEVEL: ["basic", "all"]})
    assert both == {"-NchwcTransformer": [(LEVEL, "basic")]}
    assert not list(tmp_path.iterdir()), "no engine is left behind"


def test_where_no_rule_acts_all_rules_are_idle(tmp_path: Path) -> None:
    onnx.save(graph([node("Sigmoid x -> y")]), tmp_path / "m.onnx")
    rules = {f"-{name}": ["on", "off"] for name in RULES}
    assert idle_knobs(order(tmp_path, tmp_path / "m.onnx"), rules) == {rule: [] for rule in rules}
    assert idle_knobs(order(tmp_path, tmp_path / "missing.onnx"), {"-enable_mem_pattern": ["on"]}) == {}
