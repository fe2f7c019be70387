"""What is published stays unless it is beaten, shown on engines of which one is much faster than the default.

The model rounds to 16 bits and back between its nodes, which is most of its time on any processor;
`-session.enable_quant_qdq_cleanup=1` takes that out.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from routetune.tasks import challenge
from routetune.tasks.accuracy import check_accuracy
from routetune.tasks.bench import open_bench
from routetune.tasks.build import build_engines
from routetune.tasks.challenge import challenge_published, kept_because
from routetune.tasks.engines.base import BuildOrder, Engine, open_backend
from routetune.tasks.engines.worker import StepFailed
from routetune.tasks.expand import open_campaign
from routetune.tasks.publish import publish_winner
from routetune.tasks.reference import make_references
from routetune.tasks.reselect import recorded_routes
from routetune.tasks.routes.route import Route
from routetune.tasks.select import Selection, select_winner
from routetune.tasks.status import freshness, freshness_of
from routetune.tasks.store import Store, open_store
from routetune.tasks.store.manifests import Publication
from routetune.tasks.targets.inputs import input_sets
from routetune.tasks.timing import time_engines
from routetune.tasks.trial import Outcome, Trial

from tests.quick import quick

FAST = "-session.enable_quant_qdq_cleanup=[0|1]"
CLEAN = "-session.enable_quant_qdq_cleanup=1"
NONE_FASTER = "-enable_mem_pattern=[on|off]"


def rounding() -> onnx.ModelProto:
    """y = x + 1, with eight times rounding to 16 bits and back before it: off by 1e-5."""
    size, nodes, last = 16_384, [], "x"
    for i in range(8):
        nodes += [
            helper.make_node("QuantizeLinear", [last, "scale", "zero"], [f"q{i}"]),
            helper.make_node("DequantizeLinear", [f"q{i}", "scale", "zero"], [f"d{i}"]),
            helper.make_node("Abs", [f"d{i}"], [f"a{i}"]),
        ]
        last = f"a{i}"
    nodes += [helper.make_node("Add", [last, "one"], ["y"])]
    constants = {
        "scale": np.array(1 / 65_535, np.float32),
        "zero": np.array(0, np.uint16),
        "one": np.ones(size, np.float32),
    }
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [size])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def rounding_target(routes: str, tolerance: float = 1e-3) -> str:
    return quick(
        "rounding",
        "rounding.onnx",
        routes,
        reference={"ranges": {"x": [0.5, 1.0]}},
        accuracy={"tolerance": tolerance},
        timing={"min_gain": 0.3, "seconds": 0.1, "loads": 3},
    )


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    onnx.save(rounding(), tmp_path / "rounding.onnx")

    def call(routes: str, tolerance: float = 1e-3) -> Path:
        path = tmp_path / "rounding.toml"
        path.write_text(rounding_target(routes, tolerance))
        return path

    return call


@pytest.fixture
def store(store_folder: Path) -> Store:
    return open_store(store_folder)


def built(place: Path, route: dict[str, str], model: onnx.ModelProto | None = None) -> Engine:
    """An engine of the model, or of another that somebody takes for it."""
    onnx.save(model or rounding(), place / "built.onnx")
    order = BuildOrder(place / "built.onnx", route, place / "engine.onnx")
    return open_backend("onnxruntime").build(order)


def tune(path: Path, store: Store, force: bool = True) -> tuple[Publication, Selection]:
    """The flow's body without Prefect."""
    with open_bench(path, store) as bench:
        known = None if force else recorded_routes(bench, freshness_of(bench.subject, store))
        run: Any = lambda stage, *given: stage.fn(bench, *given)  # noqa: E731
        run(make_references, input_sets(bench.subject.target, bench.subject.model))
        search = open_campaign(bench, known)
        while routes := search.ask():
            search.tell(run(time_engines, run(check_accuracy, run(build_engines, routes))))
        selection = run(challenge_published, run(select_winner, list(bench.trials.values())))
        return run(publish_winner, selection), selection


def test_a_worse_engine_never_replaces_a_better_one(write: Callable[..., Path], store: Store) -> None:
    first, _ = tune(write(FAST), store)
    assert first.manifest["route"] == CLEAN
    assert first.manifest["speed"]["low"] > 1.5

    # Forced: the same engine wins again, and nothing new is published.
    again, selection = tune(write(FAST), store)
    assert again == first and "won again" in kept_because(selection)

    # A search that finds nothing: the published engine takes part although no route of the search is its.
    kept, selection = tune(write(NONE_FASTER), store)
    assert kept.reference.engine == first.reference.engine
    assert kept.manifest["route"] == first.manifest["route"] and kept.manifest["decision"]["kind"] == "kept"
    assert f"generation 1, {CLEAN}) stays" in kept_because(selection)
    assert kept.manifest["speed"]["low"] > 1.5, "measured anew, beside the control"
    assert set(kept.manifest["times"]) == {"winner", "control"}
    # What it is bound to moved with the search, so it is fresh only by a manifest that says so.
    assert kept.reference.generation == 2
    assert freshness(write(NONE_FASTER), store).state == "fresh"


@pytest.mark.slow
def test_it_stays_when_the_choice_is_made_anew(write: Callable[..., Path], store: Store) -> None:
    """Neither a smaller budget nor a rule that it meets takes it away, though its run did not try it."""
    first, _ = tune(write(FAST), store)
    kept, _ = tune(write(NONE_FASTER), store)
    assert kept.manifest["route"] == CLEAN and kept.manifest["run"] != first.manifest["run"]
    path = write(NONE_FASTER)
    for old, new in (("min_gain = 0.3", "min_gain = 0.2"), ("[timing]", "[budget]\ntrials = 1\n[timing]")):
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
        assert freshness(path, store).state == "reselect"
        again, _ = tune(path, store, force=False)
        assert (again.manifest["route"], freshness(path, store).state) == (CLEAN, "fresh")
        assert again.reference.engine == first.reference.engine


@pytest.mark.slow
@pytest.mark.parametrize("how", ["excluded", "fixed"])
def test_what_the_target_forbids_neither_wins_nor_stays(
    write: Callable[..., Path], store: Store, how: str
) -> None:
    """Where the slow default is forbidden the other is published, and where the fast engine is, it goes."""
    default, clean = "-session.enable_quant_qdq_cleanup=0", CLEAN

    def without(route: str) -> Path:
        allowed = default if route == clean else clean
        path = write(f"{allowed if how == 'fixed' else FAST} {NONE_FASTER}")
        if how == "excluded":
            path.write_text(path.read_text().replace("[search]", f"[search]\nexclude = ['{route}']"))
        return path

    slow, selection = tune(without(clean), store)
    assert clean not in slow.manifest["route"] and selection.decision.kind == "default"
    fast, _ = tune(write(FAST), store)
    assert fast.manifest["route"] == clean
    again, _ = tune(without(clean), store)
    assert clean not in again.manifest["route"], "although it is slower"
    forbidden, selection = tune(without(default), store)
    assert clean in forbidden.manifest["route"]
    assert "not one that the target permits and cannot win" in selection.decision.reason


@pytest.mark.parametrize("permitted", [True, False])
def test_nothing_is_given_up_beside_a_default_that_may_not_win(
    write: Callable[..., Path], store: Store, permitted: bool
) -> None:
    """However slow all that is permitted is, one of it must get as far as a duel."""
    with open_bench(write(FAST if permitted else CLEAN), store) as bench:
        default = Trial(Route(), accepted=True, speed=1.0, low=1.0, high=1.0)
        bench.trials[default.route.id] = default
        assert (bench.best_speed, bench.may_win(default)) == ((1.0, True) if permitted else (None, False))


@pytest.mark.slow
def test_a_better_engine_does_and_says_by_how_much(
    write: Callable[..., Path], store: Store, tmp_path: Path
) -> None:
    first, _ = tune(write(FAST), store)
    for route in ("", "-enable_mem_pattern=off"):  # the control itself; one that no search has, and no faster
        given = {name: value for name, value in first.manifest.items() if name not in OURS}
        engine = built(tmp_path, dict([route.split("=")]) if route else {})
        given |= {"route": route, "identity": engine.identity, "options": engine.options}
        key, digest = first.manifest["environment_key"], store.blobs.put_file(engine.path)
        worse = store.publications.publish("rounding", key, digest, given)
        better, selection = tune(write(FAST), store)
        assert better.reference.generation == worse.reference.generation + 1
        assert better.manifest["route"] == first.manifest["route"] and not kept_because(selection)
        told = f"(generation {worse.reference.generation}, {route}) is beaten: the winner is"
        assert (told in better.manifest["decision"]["reason"]) is bool(route)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["rule", "damage", "inaccurate"])
def test_what_may_not_be_kept_is_replaced(write: Callable[..., Path], store: Store, how: str) -> None:
    first, _ = tune(write(FAST), store)
    tolerance = 1e-3
    if how == "rule":  # chosen by another rule, so that its win counts no more
        tolerance = 2e-3
    elif how == "damage":
        first.engine.chmod(0o600)
        first.engine.write_bytes(first.engine.read_bytes()[:-1] + b"?")
    else:  # its bytes are those published, but they do not compute what the model does
        other = rounding()
        other.graph.node[-1].op_type = "Sub"
        onnx.save(other, first.engine.parents[1] / "other.onnx")
        digest = store.blobs.put_file(first.engine.parents[1] / "other.onnx")
        given = {k: v for k, v in first.manifest.items() if k not in OURS}
        given["identity"] = None
        store.publications.publish("rounding", first.manifest["environment_key"], digest, given)
    second, selection = tune(write(NONE_FASTER, tolerance), store)
    assert second.manifest["route"] == "" and second.manifest["decision"]["kind"] == "default"
    assert not kept_because(selection)
    assert ("could not be kept" in second.manifest["decision"]["reason"]) is (how == "inaccurate")


@pytest.mark.slow
def test_it_stays_where_the_two_do_not_run_together(
    write: Callable[..., Path], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as for want of memory, which only a large model on a full device would bring about."""
    first, _ = tune(write(FAST), store)
    real, tried = challenge.duel, []

    def too_large(bench: Any, duellists: dict[str, Any], count: int) -> Any:
        tried.append(sorted(duellists))
        if len(tried) == 1:
            raise StepFailed(Outcome.OUT_OF_MEMORY, "there is no memory for all of them")
        return real(bench, duellists, count)

    monkeypatch.setattr(challenge, "duel", too_large)
    kept, selection = tune(write(NONE_FASTER), store)
    assert kept.reference.engine == first.reference.engine
    assert "cannot be measured beside it" in kept_because(selection)
    assert tried[1] == ["(control)", "(published)"]


OURS = ("check", "schema", "target", "environment_key", "generation", "published_at", "engine")
