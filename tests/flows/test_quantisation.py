"""Places in a whole run, stage by stage: what is calibrated, rewritten, kept and searched."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from routetune.data import folder
from routetune.tasks import rewrite
from routetune.tasks.bench import Bench, open_bench
from routetune.tasks.build import build_engines
from routetune.tasks.errors import BadInput
from routetune.tasks.publish import reproduce
from routetune.tasks.reference import make_references
from routetune.tasks.report.knobs import knob_table
from routetune.tasks.store import Store, open_store
from routetune.tasks.subject import check_inputs, open_subject
from routetune.tasks.targets import fusions
from routetune.tasks.targets.changes import compare
from routetune.tasks.targets.inputs import input_sets
from routetune.tasks.trial import Trial
from routetune.tasks.verdicts.losses import LOSSES

from conftest import Command, answer_of
from tests.engines import attention
from tests.engines.test_qdq import layers, stuck
from tests.flows.test_stages import adding, tune
from tests.quick import quick

LEVEL = "-graph_optimization_level"
MAKING = ("calibrate", "rewrite", "build")
PLACES = "@first=[*] @second=[*] @dense=[*] @last=[*]"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def call(
        routes: str = PLACES,
        model: str = "m.onnx",
        tolerance: float = 1e-9,
        samples: int = 1,
        per_channel: bool = False,
    ) -> Path:
        if not (tmp_path / "m.onnx").exists():
            onnx.save(layers(), tmp_path / "m.onnx")
        path = tmp_path / "target.toml"
        text = quick(
            "places",
            model,
            routes,
            shapes={"x": {"min": "1x1x8x8", "opt": "16x1x8x8", "max": "16x1x8x8"}},
            reference={"samples": samples},
            accuracy={"tolerance": tolerance},
            quantization={"per_channel": per_channel},
        )
        path.write_text(text)
        return path

    return call


@pytest.fixture
def store(store_folder: Path) -> Store:
    return open_store(store_folder)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps that workers were asked for."""
    asked: list[str] = []
    step = Bench.step

    def noted(self: Bench, function: str, *rest: Any, **more: Any) -> Any:
        asked.append(function.rpartition(":")[2])
        return step(self, function, *rest, **more)

    monkeypatch.setattr(Bench, "step", noted)
    return asked


def stages(store: Store, name: str) -> int:
    return sum(entry.key["stage"] == name for entry in store.entries)


def test_sixteen_placements_are_sixteen_engines_each_with_every_loss_and_a_time(
    write: Callable[..., Path], store: Store, steps: list[str]
) -> None:
    """Also those over the tolerance: the frontier needs them."""
    target = write(tolerance=1e-5)
    source = (target.parent / "m.onnx").read_bytes()
    publication, trials = tune(target, store)
    engines = [trial.engine for trial in trials.values() if trial.engine]
    assert len({engine["digest"] for engine in engines}) == len({e["identity"] for e in engines}) == 16
    assert not any(trial.alias_of for trial in trials.values())
    assert [route for route, trial in trials.items() if trial.accepted] == [""]
    assert publication.manifest["route"] == ""
    for row in store.records.read().to_pylist():
        assert row["speed"] > 0 and store.blobs.path(row["engine"]).exists()
        assert all(set(LOSSES) <= _names(one) for one in json.loads(row["losses"]))
    assert (steps.count("calibrate"), steps.count("rewrite")) == (1, 15)
    assert (target.parent / "m.onnx").read_bytes() == source
    assert not list(target.parent.glob("*inferred*"))
    assert not list((store.root / "scratch").glob("*/rewritten*"))


def _names(value: Any) -> set[str]:
    """Every key in a report."""
    if isinstance(value, dict):
        return set(value).union(*map(_names, value.values()))
    return set().union(*map(_names, value)) if isinstance(value, list) else set()


@contextmanager
def opened(path: Path, store: Store) -> Iterator[Bench]:
    """A bench that has its references."""
    with open_bench(path, store) as bench:
        make_references.fn(bench, input_sets(bench.subject.target, bench.subject.model))  # type: ignore[attr-defined]
        yield bench


def built(bench: Bench, *places: str, level: str = "all") -> Trial:
    """The route with these places on, up to its build."""
    route = bench.database.route({**dict.fromkeys(places, "on"), LEVEL: level})
    [trial] = build_engines.fn(bench, [route])  # type: ignore[attr-defined]
    found: Trial = trial
    assert found.failure is None
    return found


def build_one(path: Path, store: Store) -> Trial:
    """A run up to one build, without timing."""
    with opened(path, store) as bench:
        return built(bench, "@dense")


def test_calibration_is_made_once_for_a_model_its_inputs_and_settings(
    write: Callable[..., Path], store: Store, steps: list[str]
) -> None:
    target = write("@dense=[*]")
    first = build_one(target, store)
    assert first.engine is not None
    before = open_subject(target).bound_to
    steps.clear()
    assert build_one(target, store).engine == first.engine and not steps

    for changed in ({"samples": 2}, {"per_channel": True}):
        target = write("@dense=[*]", **changed)
        assert "rebuild" in {change.cost for change in compare(before, open_subject(target).bound_to)}
        steps.clear()
        assert build_one(target, store).engine != first.engine
        assert [step for step in steps if step in MAKING] == list(MAKING)

    model = onnx.load(target.parent / "m.onnx")
    weight = onnx.numpy_helper.to_array(model.graph.initializer[0]) * np.float32(1.5)
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "w1"))
    onnx.save(model, target.parent / "m.onnx")
    steps.clear()
    build_one(target, store)
    assert [step for step in steps if step in MAKING] == list(MAKING)


def test_places_and_compiler_knobs_share_a_route_and_a_rewritten_model(
    write: Callable[..., Path], store: Store, steps: list[str]
) -> None:
    target = write("-graph_optimization_level=[basic|all] @second=[*] @*=on", tolerance=1e9)
    target.write_text(target.read_text().replace("@*=on", "@fp16=[*]"))
    _, trials = tune(target, store)
    assert set(trials) == {
        f"{level} {places}".strip()
        for level in ("", "-graph_optimization_level=basic")
        for places in ("", "@second=on", "@fp16=on", "@second=on @fp16=on")
    }
    assert all(trial.eligible for trial in trials.values())
    assert not any(name.startswith("@") for t in trials.values() for name in t.engine["options"]["knobs"])  # type: ignore[index]
    builds = [entry.key for entry in store.entries if entry.key["stage"] == "build"]
    assert len({key["model"] for key in builds}) == 4 and not any("@" in key["route"] for key in builds)
    assert stages(store, "rewrite") == steps.count("rewrite") == 3


def test_rewritten_models_are_kept_for_other_builds_of_a_run_while_there_is_room(
    write: Callable[..., Path], store: Store, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By turns two placements: with room for both each is written once, with room for none each time."""
    target = write("@second=[*] @fp16=[*] -graph_optimization_level=[*]", tolerance=1e9)

    def builds(on: Store) -> int:
        with opened(target, on) as bench:
            for level in ("basic", "extended", "disabled"):
                for place in ("@second", "@fp16"):
                    assert built(bench, place, level=level).built
                    kept = sum(file.stat().st_size for file in bench.folder.glob("rewritten*"))
                    assert kept <= rewrite.ROOM + largest
        return steps.count("rewrite")

    largest = 2 * (target.parent / "m.onnx").stat().st_size
    assert builds(store) == 2
    steps.clear()
    monkeypatch.setattr(rewrite, "ROOM", 0)
    assert builds(open_store(store.root.with_name("another"))) == 6


def test_fused_attention_is_a_knob_like_any_other(
    tmp_path: Path, store: Store, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By itself it is as good as exact; what is rewritten so is kept under the version of the library."""
    attention.saved(tmp_path)
    text = quick("attention", "attention.onnx", "@fused=[*] @fp16=[*]", accuracy={"tolerance": 1e-4})
    target = tmp_path / "target.toml"
    target.write_text(text)
    _, trials = tune(target, store)
    assert {route for route, trial in trials.items() if trial.accepted} == {"", "@fused=on"}
    assert set(trials) == {"", "@fused=on", "@fp16=on", "@fp16=on @fused=on"}
    assert len({trial.engine["digest"] for trial in trials.values() if trial.engine}) == 4
    assert all(trial.speed for trial in trials.values())
    for version, written in ((fusions.version(), 0), ("onnxscript 99", 2)):
        monkeypatch.setattr(fusions, "version", lambda version=version: version)
        steps.clear()
        with opened(target, store) as bench:
            for route in trials:
                build_engines.fn(bench, [trials[route].route])  # type: ignore[attr-defined]
        # Two of the routes have nothing to do with it.
        assert steps.count("rewrite") == written


def test_what_is_left_under_the_name_of_a_rewritten_model_is_not_built_from(
    write: Callable[..., Path], store: Store
) -> None:
    """By a process that died, or another version: the digest that it must have is known from before."""
    target = write("@dynamic=[*] @fp16=[*] -graph_optimization_level=[*]", tolerance=1e9)

    def both(level: str) -> dict[str, Any] | None:
        trial = built(bench, "@dynamic", "@fp16", level=level)
        assert trial.built
        return trial.engine

    with opened(target, open_store(store.root.with_name("clean"))) as bench:
        clean = {level: both(level) for level in ("basic", "extended")}
    with opened(target, store) as bench:
        assert both("disabled") is not None
        [file] = bench.folder.glob("rewritten-*")
        content = file.read_bytes()
        for level, left in (
            ("basic", content[: len(content) // 2]),
            ("extended", (target.parent / "m.onnx").read_bytes()),
        ):
            file.write_bytes(left)
            assert both(level) == clean[level]
            assert file.read_bytes() == content


@pytest.mark.parametrize(
    ("routes", "told"),
    [
        ("@frist=[*]", "the places of model m.onnx are @first, @second, @dense, @last, @dynamic, @fp16"),
        ("@nothing*=[*]", "glob '@nothing*' matches no bounded knob"),
        ("@first=[int8]", "knob @first does not allow 'int8'; allowed: off, on"),
    ],
)
def test_places_that_do_not_exist(routes: str, told: str, write: Callable[..., Path]) -> None:
    with pytest.raises(BadInput, match=re.escape(told)):
        check_inputs(open_subject(write(routes)))


def test_a_model_without_places_says_what_there_is(tmp_path: Path) -> None:
    onnx.save(adding(), tmp_path / "m.onnx")
    path = tmp_path / "plain.toml"
    path.write_text(quick("plain", "m.onnx", "@x=[*]"))
    with pytest.raises(BadInput, match=r"unknown knob '@x'; model m\.onnx has no node .*; there is @fp16"):
        check_inputs(open_subject(path))


def test_a_model_that_cannot_be_calibrated_is_tuned_without_places(
    write: Callable[..., Path], store: Store
) -> None:
    target = write("-enable_mem_pattern=[*] @second=[*]", model="stuck.onnx", tolerance=1e9)
    onnx.save(stuck(), target.parent / "stuck.onnx")
    _, trials = tune(target, store)
    outcomes = {route: str(trial.outcome) for route, trial in trials.items()}
    assert outcomes.pop("") == outcomes.pop("-enable_mem_pattern=off") == "eligible"
    assert set(outcomes.values()) == {"failed"} and len(outcomes) == 2
    [failure] = {trial.failure for route, trial in trials.items() if route in outcomes}
    assert failure is not None and failure.step == "calibrate"
    assert "export it for opset 13 or above" in failure.reason


@pytest.mark.parametrize(("routes", "ranges"), [("@fp16=[*] @dynamic=[*]", 0), ("@last=[*] @fp16=[*]", 1)])
def test_ranges_are_found_only_where_a_route_can_ask_for_them(
    write: Callable[..., Path], store: Store, routes: str, ranges: int
) -> None:
    _, trials = tune(write(routes, tolerance=1e9), store)
    assert all(trial.failure is None for trial in trials.values())
    [calibration] = [entry for entry in store.entries if entry.key["stage"] == "calibrate"]
    assert bool(calibration.key["inputs"]) is bool(ranges)


def test_where_no_ranges_can_be_found_only_qdq_fails(tmp_path: Path, store: Store) -> None:
    """The library calibrates on no bfloat16 inputs."""
    x = helper.make_tensor_value_info("x", TensorProto.BFLOAT16, [4, 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 5])
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], "cast", to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["f", "w"], ["y"], "product"),
    ]
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((6, 5), np.float32), "w")
    model = helper.make_graph(nodes, "g", [x], [y], [weight])
    onnx.save(
        helper.make_model(model, opset_imports=[helper.make_opsetid("", 17)], ir_version=9),
        tmp_path / "m.onnx",
    )
    path = tmp_path / "target.toml"
    path.write_text(quick("plain", "m.onnx", "@product=[*] @fp16=[*]", accuracy={"tolerance": 1e9}))
    _, trials = tune(path, store)
    assert {route: str(trial.outcome) for route, trial in trials.items()} == {
        "": "eligible",
        "@fp16=on": "eligible",
        "@product=on": "failed",
        "@product=on @fp16=on": "failed",
    }


def test_only_commands_that_know_the_model_reproduce_a_place() -> None:
    target = SimpleNamespace(path="t.toml")
    bench: Any = SimpleNamespace(subject=SimpleNamespace(target=target, backend="onnxruntime"))
    tune_it = "routetune tune t.toml --force"
    assert reproduce(bench, {"-a": "1", "@c": "on"}) == [tune_it, "routetune knobs t.toml --family qdq"]
    assert reproduce(bench, {"-a": "1"}) == [tune_it, "routetune expand -- -a=1"]


def test_the_places_of_a_target_are_listed(routetune: Command) -> None:
    target = folder() / "targets" / "digits_qdq.toml"
    found = answer_of(routetune("knobs", target, "--family", "qdq", "--json"))
    names = [knob["option"] for knob in found["tuner_options"]]
    assert names == ["@conv1", "@conv2", "@conv3", "@classifier", "@dynamic", "@fp16"]
    assert {knob["allowed_values"].partition("=")[2] for knob in found["tuner_options"]} == {"[off|on]"}
    everything = knob_table("onnxruntime", None, str(target))["tuner_options"]
    assert {knob["option"][0] for knob in everything} == {"-", "@"}
    assert answer_of(routetune("expand", target, "--json"))["size"] == 16
    with pytest.raises(BadInput, match="name a target"):
        knob_table("onnxruntime", None, None, "qdq")
    with pytest.raises(BadInput, match="'tensors' is not one of compiler, builder, qdq"):
        knob_table("onnxruntime", None, None, "tensors")
