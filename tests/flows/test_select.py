"""Finalists that fail: the next ones get their duel, and those that do not fit together fight fewer at once.

Engines and duels are real. Speeds of the screening are told, so that it is known who is a finalist, and
failures of loads and checks are injected: none of these engines would fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from routetune.tasks import select
from routetune.tasks.accuracy import check_accuracy
from routetune.tasks.bench import Bench, open_bench
from routetune.tasks.build import build_engines
from routetune.tasks.engines.worker import StepFailed
from routetune.tasks.errors import NoEligibleRoute, RoutetuneError
from routetune.tasks.expand import open_campaign
from routetune.tasks.reference import make_references
from routetune.tasks.routes.route import Route
from routetune.tasks.select import CONTROL, Selection, select_winner
from routetune.tasks.store import open_store
from routetune.tasks.targets.inputs import input_sets
from routetune.tasks.timing import time_engines
from routetune.tasks.trial import Outcome, Trial

from tests.engines import small_models
from tests.quick import quick

FIRST, SECOND, THIRD = SPEEDS = {
    "-intra_op_num_threads=1 -enable_mem_pattern=off": 3.0,
    "-intra_op_num_threads=1": 2.0,
    "-intra_op_num_threads=2 -enable_mem_pattern=off": 1.99,
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """After a search, all the same for each test: its winner is not chosen yet."""
    place = tmp_path_factory.mktemp("duel")
    onnx.save(small_models.cnn().model, place / "m.onnx")
    routes = "-enable_mem_pattern=[on|off] -intra_op_num_threads=[1|2]"
    path = place / "duel.toml"
    path.write_text(quick("duel", "m.onnx", routes, timing={"finalists": 3}))
    with open_bench(path, open_store(place / "store")) as opened:
        make_references.fn(opened, input_sets(opened.subject.target, opened.subject.model))  # type: ignore[attr-defined]
        search = open_campaign(opened)
        while asked := search.ask():
            trials = check_accuracy.fn(opened, build_engines.fn(opened, asked))  # type: ignore[attr-defined]
            search.tell(time_engines.fn(opened, trials))  # type: ignore[attr-defined]
        yield opened


def chosen(bench: Bench, **default: Any) -> Selection:
    """What is chosen where the screening found SPEEDS; `default` is told of the default route."""
    trials: list[Trial] = []
    for trial in bench.trials.values():
        speed = SPEEDS.get(str(trial.route), 1.0 if trial.route.is_default else 0.5)
        trials.append(replace(trial, speed=speed, low=speed * 0.99, high=speed * 1.01))
    trials[0] = replace(trials[0], **default)
    bench.control = trials[0]
    found: Selection = select_winner.fn(bench, trials)  # type: ignore[attr-defined]
    return found


def fail(bench: Bench, monkeypatch: pytest.MonkeyPatch, when: Callable[[list[str]], bool]) -> list[list[str]]:
    """Let loads of a duel die by the routes that take part; gives the routes of all that did not."""
    step, loads = bench.step, []

    def dying(function: str, order: dict[str, Any], measuring: float = 0.0) -> Any:
        names = [name for name in order.get("engines", {}) if name != CONTROL]
        if function == select.STEP and when(names):
            raise StepFailed(Outcome.OUT_OF_MEMORY, "out of memory", fresh=True)
        if function == select.STEP:
            loads.append(names)
        return step(function, order, measuring)

    monkeypatch.setattr(bench, "step", dying)
    return loads


def unsound(monkeypatch: pytest.MonkeyPatch, bench: Bench, *routes: str) -> None:
    """Let winners with these routes fail when they are checked again."""
    engines = {
        t.engine["digest"]: t.engine for t in bench.trials.values() if t.engine and str(t.route) in routes
    }
    options = [engine["options"] for engine in engines.values()]
    bad = [t.engine["options"] for t in bench.trials.values() if t.engine and str(t.route) in routes]
    assert len(bad) == len(routes) and options
    judged = select.problem_of
    monkeypatch.setattr(
        select,
        "problem_of",
        lambda at, engine: "it is off" if engine["options"] in bad else judged(at, engine),
    )


def fought(selection: Selection) -> set[str]:
    return {name for load in selection.loads for name in load["samples"]} - {CONTROL}


def test_only_those_within_reach_of_the_best_fight(bench: Bench) -> None:
    assert fought(chosen(bench)) == {FIRST}


def test_where_the_best_fails_in_the_duel_the_next_ones_fight(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(bench, monkeypatch, lambda names: FIRST in names)
    found = chosen(bench)
    assert fought(found) == {SECOND, THIRD}
    assert list(found.dropped) == [FIRST] and "out of memory" in found.dropped[FIRST]


def test_where_the_best_fails_its_last_check_the_next_ones_fight(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default may not win, so that the best is chosen, and dropped."""
    unsound(monkeypatch, bench, FIRST)
    found = chosen(bench, accepted=False)
    assert fought(found) == {SECOND, THIRD} and list(found.dropped) == [FIRST]
    assert str(found.winner.route) in (SECOND, THIRD)


def test_where_all_fail_their_last_check_each_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    routes = [str(trial.route) for trial in bench.trials.values() if not trial.route.is_default]
    unsound(monkeypatch, bench, *routes)
    with pytest.raises(NoEligibleRoute, match="every route that could have won was dropped") as refused:
        chosen(bench, accepted=False)
    assert all(f"{route}: when checked again" in str(refused.value) for route in routes)


def test_finalists_that_do_not_fit_beside_each_other_fight_fewer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the two that are left when the best fails only one fits beside the control."""
    loads = fail(bench, monkeypatch, lambda names: FIRST in names or len(names) > 1)
    found = chosen(bench, accepted=False)
    assert fought(found) == {SECOND} and str(found.winner.route) == SECOND
    assert list(found.dropped) == [FIRST]
    assert "no more than 1 finalists ran beside each other" in found.decision.explanations[THIRD]
    assert {len(names) for names in loads} == {1}


def test_one_that_fails_only_now_and_then_does_not_end_the_tune(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each finalist runs once by itself, and never a whole duel: the default stays."""
    seen: list[list[str]] = []

    def second_time(names: list[str]) -> bool:
        seen.append(names)
        return len(names) > 1 or seen.count(names) > 1

    fail(bench, monkeypatch, second_time)
    found = chosen(bench)
    assert found.decision.kind == "default" and FIRST in found.dropped


def test_where_finalist_after_finalist_fails_the_machine_is_blamed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They ran a moment ago: nothing is published as if the default had won."""
    monkeypatch.setattr(select, "DROPPED", 0)
    fail(bench, monkeypatch, lambda names: True)
    with pytest.raises(RoutetuneError, match="failed one after the other, which ran before"):
        chosen(bench)


def test_a_forbidden_default_wins_under_a_name_that_is_permitted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where what the target fixes does nothing, its engine is the default's, and what the user asked for."""
    default = next(iter(bench.trials.values()))
    monkeypatch.setitem(bench.__dict__, "space", SimpleNamespace(permits=lambda route: bool(route)))
    name = Route((("-enable_mem_pattern", "off"), ("-graph_optimization_level", "all")))
    longer = Route((*name.settings, ("-x", "1")))
    aliases = [replace(default, route=one, alias_of=default.route.id, speed=1.0) for one in (longer, name)]
    first = replace(default, speed=1.0, low=1.0, high=1.0)
    bench.control = first
    found: Selection = select_winner.fn(bench, [first, *aliases])  # type: ignore[attr-defined]
    assert str(found.winner.route) == str(name) and found.winner.engine == default.engine
    assert "the default route is not one that the target permits" in found.decision.reason
    bench.control = first
    with pytest.raises(NoEligibleRoute, match="but the default route, which the target does not permit, is"):
        select_winner.fn(bench, [first])  # type: ignore[attr-defined]
