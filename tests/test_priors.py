"""Priors: whose experience counts first, what is left out of it, and that it stays quick to read."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from routetune.data import folder
from routetune.tasks.engines.base import open_backend
from routetune.tasks.errors import BadInput
from routetune.tasks.priors import MAX_PRIORS, MAX_RUNS_OF_ONE, Found, find_priors, fit
from routetune.tasks.routes.knob import Knob, KnobDatabase
from routetune.tasks.routes.route import Route
from routetune.tasks.routes.space import RouteSpace, open_space
from routetune.tasks.routes.tuning_log import LoggedTrial, TuningLog
from routetune.tasks.store import Store, open_store
from routetune.tasks.store.records import record_schema, row
from routetune.tasks.subject import Subject, open_subject
from routetune.tasks.targets.likeness import traits_of
from routetune.tasks.trial import Trial

OTHER = "b" * 64


@pytest.fixture(scope="module")
def subject() -> Subject:
    return open_subject(folder() / "targets/digits.toml")


@pytest.fixture(scope="module")
def space(subject: Subject) -> RouteSpace:
    database = open_backend(subject.backend).knobs(subject.device)
    return open_space(subject.target.search.routes, database, subject.target.search.exclude)


@pytest.fixture
def store(store_folder: Path) -> Store:
    return open_store(store_folder)


def bound(subject: Subject, model: str = OTHER, batch: int = 32, **environment: Any) -> dict[str, Any]:
    """What a run of another model, batch size or environment was bound to."""
    found: dict[str, Any] = json.loads(json.dumps(subject.bound_to))
    found["target"]["model"] = model
    found["target"]["profiles"]["0"]["x"]["opt"][0] = batch
    found["environment"] |= environment
    return found


def ran(
    store: Store,
    bound_to: Mapping[str, Any],
    speeds: Mapping[str, float],
    target: str = "sibling",
    won: str | None = None,
    inaccurate: Sequence[str] = (),
    aliases: Mapping[str, str] | None = None,
) -> str:
    """A finished run on record: route -> speed."""
    with store.runs.open(target, bound_to) as run:
        trials = [
            Trial(
                Route(tuple(tuple(token.split("=", 1)) for token in route.split())),  # type: ignore[misc]
                accepted=route not in inaccurate,
                alias_of=(aliases or {}).get(route),
                speed=speed,
                low=speed * 0.99,
                high=speed * 1.01,
                timing={"rounds": [0.1] * 50},
            )
            for route, speed in speeds.items()
        ]
        store.records.append([row(run.id, target, "e" * 16, trial) for trial in trials])
        run.finish("finished", {} if won is None else {"route": won})
    return run.id


def routes(found: Found) -> list[str]:
    return [str(prior.route) for prior in found.priors]


def test_the_more_alike_comes_first(store: Store, subject: Subject, space: RouteSpace) -> None:
    sister = traits_of(subject.model)
    far = sister | {"operators": sister["operators"] | {"LSTM": 10}}
    store.traits.put(OTHER, sister)
    store.traits.put("c" * 64, far)
    ran(store, bound(subject, "c" * 64), {"": 1, "-ConvBNFusion=off": 1.9}, target="far")
    ran(store, bound(subject), {"": 1, "-enable_mem_pattern=off": 1.2, "-MatMulAddFusion=off": 1.3})
    there = {"cpu.model": "another"}
    ran(store, bound(subject, **there), {"": 1, "-NchwcTransformer=off": 3.0}, target="elsewhere")
    found = find_priors(store, subject, space)
    assert routes(found) == [
        "-MatMulAddFusion=off",
        "-NchwcTransformer=off",
        "-enable_mem_pattern=off",
        "-ConvBNFusion=off",
    ]
    first = found.priors[0].to_json()
    assert first["likeness"] == 1 and first["speed"] == 1.3 and "sibling on " in first["origin"]
    assert find_priors(store, subject, space) == found
    assert routes(find_priors(store, subject, space, limit=2)) == routes(found)[:2]


def test_what_brings_nothing_forward(store: Store, subject: Subject, space: RouteSpace) -> None:
    store.traits.put(OTHER, traits_of(subject.model))
    ran(store, bound(subject), {"": 1, "-ConvBNFusion=off": 1.2}, target="default-won", won="")
    ran(store, bound(subject), {"": 1, "-enable_mem_pattern=off": 1.005}, target="within-noise")
    inaccurate = "-MatMulAddFusion=off"
    ran(store, bound(subject), {"": 1, inaccurate: 2.0}, target="inaccurate", inaccurate=[inaccurate])
    on_gpu = bound(subject, device="cuda")
    ran(store, on_gpu, {"": 1, "-NchwcTransformer=off": 2.0}, target="gpu")
    assert routes(find_priors(store, subject, space)) == []
    asking = ran(store, bound(subject), {"": 1, "-enable_cpu_mem_arena=off": 1.5}, target="me")
    assert routes(find_priors(store, subject, space)) == ["-enable_cpu_mem_arena=off"]
    assert routes(find_priors(store, subject, space, without=asking)) == []


@pytest.mark.parametrize("how", ["reproduced", "failed"])
def test_runs_that_say_nothing_hide_none_that_does(
    store: Store, subject: Subject, space: RouteSpace, how: str
) -> None:
    store.traits.put(OTHER, traits_of(subject.model))
    ran(store, bound(subject), {"": 1, "-MatMulAddFusion=off": 1.5}, won="-MatMulAddFusion=off")
    for _ in range(MAX_RUNS_OF_ONE + 1):
        if how == "reproduced":
            with store.runs.open("sibling", bound(subject) | {"purpose": "reproduce"}):
                pass
        else:
            with pytest.raises(ZeroDivisionError), store.runs.open("sibling", bound(subject)):
                raise ZeroDivisionError
    assert routes(find_priors(store, subject, space)) == ["-MatMulAddFusion=off"]


def test_a_winner_that_goes_by_the_name_of_an_alias_comes_first(
    store: Store, subject: Subject, space: RouteSpace
) -> None:
    """An engine is published under the simplest of its routes, which may not be the one that was measured."""
    store.traits.put(OTHER, traits_of(subject.model))
    measured, simple = "-enable_mem_pattern=off -MatMulAddFusion=off", "-MatMulAddFusion=off"
    first = Route((("-enable_mem_pattern", "off"), ("-MatMulAddFusion", "off")))
    fast = {"": 1.0, measured: 1.5, "-ConvBNFusion=off": 1.9, "-NchwcTransformer=off": 1.8}
    speeds = fast | {"-enable_cpu_mem_arena=off": 1.7, simple: 1.5}
    ran(store, bound(subject), speeds, won=simple, aliases={simple: first.id})
    found = routes(find_priors(store, subject, space))
    assert found[0] == simple and measured not in found


def test_where_the_default_was_not_eligible_every_eligible_route_helps(
    store: Store, subject: Subject, space: RouteSpace
) -> None:
    store.traits.put(OTHER, traits_of(subject.model))
    slow = "-graph_optimization_level=disabled"
    ran(store, bound(subject), {"": 1, slow: 0.5}, inaccurate=[""])
    assert routes(find_priors(store, subject, space)) == [slow]


def test_a_winner_goes_before_what_was_only_fast_and_imports_come_last(
    store: Store, subject: Subject, space: RouteSpace
) -> None:
    store.traits.put(OTHER, traits_of(subject.model))
    fast, won = "-enable_mem_pattern=off", "-MatMulAddFusion=off"
    ran(store, bound(subject), {"": 1, fast: 1.4, won: 1.35}, won=won)
    log = TuningLog({}, (LoggedTrial({"-ConvBNFusion": "off", "-gone": "on"}, 0.5),))
    store.priors.add(log, "trtexec.jsonl")
    found = find_priors(store, subject, space)
    assert routes(found) == [won, fast, "-ConvBNFusion=off"]
    last = found.priors[-1].to_json()
    assert last["origin"] == "trtexec.jsonl" and last["likeness"] is None
    assert last["notes"] == [f"-gone is no knob of {space.database.version}"]


def test_knobs_that_are_unknown_today_are_left_out_with_a_note() -> None:
    database = KnobDatabase("2", [Knob(f"-{name}", ("0", "1"), "0") for name in "abc"])
    space = open_space("-a=[0|1] -b=[0|1]", database, ["-a=1 -b=1"])
    assert fit(space, {"-a": "1", "-old": "on"}) == (
        database.route({"-a": "1"}),
        ["-old is no knob of 2"],
    )
    for given, last in (
        ({"-old": "on"}, "nothing is left that this search varies"),
        ({"-c": "1"}, "nothing is left that this search varies"),
        ({"-a": "1", "-b": "1"}, "an exclude rule forbids it"),
    ):
        route, notes = fit(space, given)
        assert route is None and notes[-1] == last
    assert fit(space, {"-a": "2", "-b": "1"})[1] == ["-a=2 is not among the values here"]


def test_what_cannot_be_read_says_nothing_and_breaks_nothing(
    store: Store, subject: Subject, space: RouteSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records and traits of a newer version, a run of an odd kind."""
    monkeypatch.setattr("routetune.tasks.store.records.SCHEMA", 99)
    monkeypatch.setattr("routetune.tasks.store.traits.SCHEMA", 99)
    record_schema.cache_clear()
    store.traits.put(OTHER, traits_of(subject.model))
    newer = ran(store, bound(subject, subject.model.digest), {"": 1, "-enable_mem_pattern=off": 1.5})
    monkeypatch.undo()
    record_schema.cache_clear()
    with pytest.raises(BadInput, match="newer"):
        store.records.read(run=newer)
    ran(store, bound(subject), {"": 1, "-ConvBNFusion=off": 1.5}, target="newer-traits")
    ran(store, {"target": {}, "environment": {"cpu": "x"}}, {"": 1}, target="odd")
    assert routes(find_priors(store, subject, space)) == ["-ConvBNFusion=off"]


@pytest.mark.slow
def test_10000_trials_on_record_are_read_in_part(store: Store, subject: Subject, space: RouteSpace) -> None:
    """The most alike runs only, and of these no raw samples."""
    store.traits.put(OTHER, traits_of(subject.model))
    names = [f"-{term.knob.name[1:]}={term.values[-1]}" for term in space.terms if term.variable]
    speeds = {"": 1.0} | {f"{names[n % len(names)]} -k{n}=1": 1 + n / 1000 for n in range(99)}
    for number in range(100):
        ran(store, bound(subject, batch=1 + number % 60), speeds, target=f"t{number % 50}")
    found = find_priors(store, subject, space)
    assert 0 < len(found.priors) <= MAX_PRIORS
    assert store.records.read().num_rows == 10_000
    assert fastest(lambda: find_priors(store, subject, space)) < fastest(store.records.read)


def fastest(call: Callable[[], Any]) -> float:
    """Seconds of the fastest of three calls."""
    taken = []
    for _ in range(3):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return min(taken)


def test_another_environment_of_this_very_target_is_a_winner_and_no_result(
    store: Store, subject: Subject, space: RouteSpace
) -> None:
    """Its publication comes first; what is fresh here does not change by it."""
    engine = store.blobs.put_bytes(b"engine")
    there = bound(subject, subject.model.digest, **{"cpu.model": "another"})
    manifest = {
        "bound_to": there,
        "options": {},
        "route": "-NchwcTransformer=off",
        "speed": {"ratio": 1.5},
        "run": "x",
    }
    for route in ("-ConvBNFusion=off", "-NchwcTransformer=off", ""):
        store.publications.publish("digits", "d" * 16, engine, manifest | {"route": route})
    found = find_priors(store, subject, space)
    assert routes(found) == ["-NchwcTransformer=off", "-ConvBNFusion=off"]
    assert found.priors[0].source == "winner" and "another" in found.priors[0].origin
    assert store.publications.current("digits", subject.key) is None
    renamed = replace(subject, target=subject.target.model_copy(update={"name": "other"}))
    assert routes(find_priors(store, renamed, space)) == []
