"""Experience in real runs: a sibling's winner, another environment, idle knobs, a crash, what a run tells."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from routetune.data import folder
from routetune.tasks.bench import open_bench
from routetune.tasks.expand import open_campaign
from routetune.tasks.pruning import Pruned
from routetune.tasks.store import open_store
from routetune.tasks.store.records import COLUMNS

from tests.engines import faulty_models
from tests.flows.test_stages import tune
from tests.quick import quick

#: The default's blocked convolutions and folded norms change bits, so of these only the last is exact.
LEVELS = "-graph_optimization_level=[all|basic|disabled] -intra_op_num_threads=1"
EXACT = "-graph_optimization_level=disabled -intra_op_num_threads=1"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def call(model: onnx.ModelProto, name: str, routes: str, **tables: Any) -> Path:
        onnx.save(model, tmp_path / f"{name}.onnx")
        (tmp_path / f"{name}.toml").write_text(quick(name, f"{name}.onnx", routes, **tables))
        return tmp_path / f"{name}.toml"

    return call


def digits(seed: int | None = None) -> onnx.ModelProto:
    """The sample CNN; with a seed its sibling of other weights."""
    model = onnx.load(folder() / "models/digits_cnn.onnx")
    rng = np.random.default_rng(seed)
    for weight in model.graph.initializer if seed is not None else ():
        array = numpy_helper.to_array(weight)
        if array.dtype == np.float32:
            moved = array * rng.uniform(0.9, 1.1, array.shape).astype(np.float32)
            weight.CopyFrom(numpy_helper.from_array(moved, weight.name))
    return model


def answer(process: Any) -> dict[str, Any]:
    assert process.returncode == 0, process.stderr
    found: dict[str, Any] = json.loads(process.stdout)
    return found


def order(summary: dict[str, Any]) -> list[str]:
    return [trial["route"] for trial in summary["trials"]]


def test_what_a_sibling_found_is_tried_first(write: Callable[..., Path], store_folder: Path) -> None:
    exact = {"accuracy": {"tolerance": 0}, "shapes": {"x": "8x1x8x8"}}
    _, first = tune(write(digits(), "first", LEVELS, **exact), open_store(store_folder))
    _, other = tune(write(digits(1), "sibling", LEVELS, **exact), open_store(store_folder))
    assert list(first)[1] != EXACT and list(other)[:2] == ["", EXACT]
    assert set(other) == set(first) and not any(trial.cached for trial in other.values())


@pytest.mark.slow
def test_a_siblings_winner_is_tried_first_and_judged_like_any_other(
    write: Callable[..., Path], routetune: Any, prefect_url: str
) -> None:
    exact = {"accuracy": {"tolerance": 0}, "shapes": {"x": "8x1x8x8"}}
    first, sibling = write(digits(), "first", LEVELS, **exact), write(digits(1), "sibling", LEVELS, **exact)
    assert answer(routetune("priors", sibling, "--json"))["priors"] == []
    told = answer(routetune("tune", first, "--json", PREFECT_API_URL=prefect_url))
    assert order(told)[1] != EXACT and told["route"] == EXACT

    (prior,) = answer(routetune("priors", sibling, "--json"))["priors"]
    assert prior["route"] == EXACT and prior["source"] == "run"
    assert prior["likeness"] == 1 and prior["origin"].startswith("first on ")
    assert EXACT in routetune("priors", sibling).stdout
    other = answer(routetune("tune", sibling, "--json", PREFECT_API_URL=prefect_url))
    assert order(other)[:2] == ["", EXACT] and other["route"] == EXACT
    assert other["counts"]["from_store"] == 0
    assert [one["route"] for one in other["explanation"]["priors"]] == [EXACT]
    assert "tried first" in routetune("show", sibling).stdout

    # Elsewhere the winner is a prior and no answer: everything is built and measured anew.
    there = {"MLAS_TESTING": "1"}
    (prior,) = answer(routetune("priors", first, "--limit", "1", "--json", **there))["priors"]
    assert prior["source"] == "winner" and prior["origin"].startswith("first on ")
    anew = answer(routetune("tune", first, "--json", PREFECT_API_URL=prefect_url, **there))
    assert order(anew)[:2] == ["", EXACT] and anew["counts"]["from_store"] == 0

    listed = answer(routetune("records", sibling, "--limit", "3", "--json"))
    assert listed["on_record"] == len(order(other))
    assert [one["route"] for one in listed["records"]] == order(other)[:-4:-1]
    assert set(listed["records"][0]) < set(COLUMNS)
    assert answer(routetune("records", "--json"))["on_record"] == 3 * len(order(other))


def test_a_rewrite_that_does_nothing_on_the_model_is_tried_last(
    write: Callable[..., Path], store_folder: Path
) -> None:
    """AttentionFusion finds no attention in a CNN; NchwcTransformer finds convolutions."""
    routes = "-session.disable_prepacking=[0|1] -NchwcTransformer=[on|off] -AttentionFusion=[on|off]"
    shapes = {"x": "8x1x8x8"}
    _, trials = tune(write(digits(), "cnn", routes, shapes=shapes), open_store(store_folder))
    touches = ["-AttentionFusion=off" in route for route in trials]
    assert touches == [False] * 4 + [True] * 4
    assert all(trials[route].alias_of for route in list(trials)[4:])
    plain = write(digits(), "plain", routes, search={"prune": False}, shapes=shapes)
    with open_bench(plain, open_store(store_folder)) as bench:
        assert not isinstance(open_campaign(bench).strategy, Pruned)


@pytest.mark.slow
def test_a_crash_is_blamed_on_its_knob_and_put_off(write: Callable[..., Path], store_folder: Path) -> None:
    """A real SIGFPE, at every second route of 32: all 16 that do not have it fit into a budget of 26."""
    crashing = "-session.disable_quant_qdq"
    others = ("-enable_mem_pattern", "-enable_mem_reuse", "-enable_cpu_mem_arena")
    sound = [*(f"{name}=[on|off]" for name in others), "-session.set_denormal_as_zero=[0|1]"]
    routes = " ".join([*sound, f"{crashing}=[0|1]"])
    _, trials = tune(
        write(faulty_models.three_faults(), "faulty", routes, budget={"trials": 26}), open_store(store_folder)
    )
    crashed = [route for route, trial in trials.items() if trial.outcome == "crashed"]
    assert crashed == [route for route in trials if crashing in route]
    assert len(trials) == 26 and len(crashed) == 10


@pytest.mark.slow
def test_a_run_explains_itself(write: Callable[..., Path], routetune: Any, prefect_url: str) -> None:
    routes = "-NchwcTransformer=[on|off] -AttentionFusion=[on|off] -enable_mem_pattern=[on|off]"
    told = {"search": {"algorithm": "fast"}, "budget": {"trials": 3}, "shapes": {"x": "32x1x8x8"}}
    target = write(digits(), "explained", routes, **told)
    told = answer(routetune("tune", target, "--json", PREFECT_API_URL=prefect_url))["explanation"]
    effects = {one["knob"]: one for one in told["effects"]}
    assert set(effects) == {"-NchwcTransformer", "-enable_mem_pattern"}
    assert effects["-NchwcTransformer"]["low"] <= effects["-NchwcTransformer"]["ratio"]
    assert told["never_tried"] == [{"knob": "-AttentionFusion", "values": ["off"]}]
    assert told["next"] == ["-AttentionFusion=off"]
    assert told["pruning"]["idle"] == ["-AttentionFusion"]
    shown = routetune("show", target).stdout
    assert "would be tried next: -AttentionFusion=off" in shown and "-NchwcTransformer=off" in shown
    assert answer(routetune("show", target, "--json"))["explanation"] == told
