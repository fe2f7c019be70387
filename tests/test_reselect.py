"""A moved tolerance, gain or smaller budget alone: what is kept is judged again; no build, no new route."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from routetune.tasks.accuracy import check_accuracy
from routetune.tasks.bench import open_bench
from routetune.tasks.build import build_engines
from routetune.tasks.expand import open_campaign
from routetune.tasks.publish import publish_winner
from routetune.tasks.reference import make_references
from routetune.tasks.report.metrics import exposition, measured
from routetune.tasks.reselect import recorded_routes
from routetune.tasks.routes.expression import parse_route
from routetune.tasks.select import select_winner
from routetune.tasks.status import freshness, freshness_of, look_at
from routetune.tasks.store import Store, open_store
from routetune.tasks.targets.inputs import input_sets
from routetune.tasks.timing import time_engines
from routetune.tasks.trial import Trial

from tests.machine import Machine

ROUTES = "-graph_optimization_level=[all|disabled] -optimization.enable_gelu_approximation=[0|1]"


@pytest.fixture
def store(store_folder: Path) -> Store:
    return open_store(store_folder)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    machine = Machine(tmp_path / "machine")
    usual = {"device": "cpu", "backend": "onnxruntime", "routes": ROUTES}
    return machine.write_target(tmp_path / "targets" / "a.toml", **usual)


def edit(target: Path, pattern: str, new: str) -> None:
    text, count = re.subn(pattern, new, target.read_text())
    assert count == 1
    target.write_text(text)


def tune(target: Path, store: Store, only: list[str] | None = None) -> dict[str, Trial]:
    """The flow's body without Prefect; `only` makes it a run that tried no other routes, as mixed may."""
    with open_bench(target, store) as bench:
        state = freshness_of(bench.subject, store)
        make_references.fn(bench, input_sets(bench.subject.target, bench.subject.model))  # type: ignore[attr-defined]
        chosen = None if only is None else [parse_route(text, bench.database) for text in only]
        search = open_campaign(bench, chosen or recorded_routes(bench, state))
        while routes := search.ask():
            trials: Any = build_engines.fn(bench, routes)  # type: ignore[attr-defined]
            trials = check_accuracy.fn(bench, trials)  # type: ignore[attr-defined]
            search.tell(time_engines.fn(bench, trials))  # type: ignore[attr-defined]
        selection = select_winner.fn(bench, list(bench.trials.values()))  # type: ignore[attr-defined]
        publish_winner.fn(bench, selection)  # type: ignore[attr-defined]
        bench.finish({})
        return {str(trial.route): trial for trial in bench.trials.values()}


def built(trials: dict[str, Trial]) -> list[str]:
    return [route for route, trial in trials.items() if trial.built]


TRIED = ["", "-graph_optimization_level=disabled", "-optimization.enable_gelu_approximation=1"]


def test_another_choice_among_the_routes_tried(target: Path, store: Store) -> None:
    assert built(tune(target, store, TRIED)) == TRIED
    for pattern, new in (
        ("tolerance = .*", 'tolerance = "inf"'),
        ("loads = 1", "loads = 1\nmin_gain = 0.5"),
    ):
        edit(target, pattern, new)
        assert freshness(target, store).state == "reselect"
        # The whole space holds a fourth route, which an ordinary search would try.
        again = tune(target, store)
        assert (sorted(again), built(again)) == (sorted(TRIED), [])
        assert freshness(target, store).state == "fresh"


@pytest.mark.slow
@pytest.mark.parametrize("trials", [7, 2])
def test_a_smaller_budget_reselects_and_a_larger_one_searches(
    target: Path, store: Store, trials: int
) -> None:
    edit(target, r"\[timing\]", "[budget]\ntrials = 3\n[timing]")
    assert len(tune(target, store)) == 3
    edit(target, "trials = 3", f"trials = {trials}")
    state = freshness(target, store)
    assert state.state == ("reselect" if trials == 2 else "stale")
    again = tune(target, store)
    assert len(built(again)) == (0 if trials == 2 else 1)
    assert len(again) == (3 if trials == 2 else 4), "a smaller budget is for a search alone"


@pytest.mark.slow
def test_where_an_engine_is_gone_it_is_built_and_nothing_guessed(target: Path, store: Store) -> None:
    first = tune(target, store, TRIED)
    gone = first["-graph_optimization_level=disabled"].engine
    assert gone is not None
    store.blobs.path(gone["digest"]).unlink()
    edit(target, "tolerance = .*", "tolerance = 0.5")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        again = tune(target, store)
    assert any("needs build: the engine of" in str(one.message) for one in told)
    assert len(again) == 4, "the ordinary search"
    # Engines of several routes may be the same bytes: the first of them brings those back.
    assert built(again) and store.blobs.has(gone["digest"])


@pytest.mark.slow
def test_without_records_the_search_is_run_again(target: Path, store: Store) -> None:
    tune(target, store, TRIED)
    for part in store.records.folder.glob("*/part-*"):
        part.unlink()
    edit(target, "tolerance = .*", "tolerance = 0.5")
    with pytest.warns(UserWarning, match="the records of its run"):
        assert len(tune(target, store)) == 4


def test_a_failure_beside_an_older_publication_is_told_and_measured(target: Path, store: Store) -> None:
    tune(target, store, TRIED[:1])
    edit(target, "tolerance = .*", "tolerance = 0.5")
    with pytest.raises(ZeroDivisionError), open_bench(target, store):
        raise ZeroDivisionError("it did")
    state = freshness(target, store)
    assert (state.state, state.cost) == ("failed", "reselect")
    assert state.detail.startswith("it did; published at ε = ")
    assert [change.field for change in state.changes] == ["target.accuracy.tolerance"]
    assert state.publication is not None
    edit(target, "tolerance = .*", "tolerance = 0.6")
    assert freshness(target, store).state == "reselect", "it never failed as it stands now"

    found = measured(look_at([target], store), store)
    assert found["states"]["reselect"] == 1
    samples = parsed(exposition(found))
    assert samples["routetune_targets", "reselect"] == 1
    assert samples["routetune_runs_total", "a", "failed"] == 1
    assert samples["routetune_runs_total", "a", "finished"] == 1
    assert samples["routetune_trials_total", "a", "eligible"] == 1
    assert samples["routetune_publication_generation", "a"] == 1
    assert samples["routetune_device_seconds_total", "a"] > 0
    assert samples["routetune_speed_ratio", "a"] > 0


def parsed(text: bytes) -> dict[tuple[str, ...], float]:
    """(name, values of its labels, the target first) -> value, as Prometheus reads them."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = sorted(sample.labels.items(), key=lambda item: item[0] != "target")
            key = (sample.name, *(value for _, value in labels))
            assert key not in found, "two series of one name"
            found[key] = sample.value
    return found
