"""A night of re-tuning without Prefect: the order, the budgets, the back-off, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from routetune.tasks import retune
from routetune.tasks.errors import BadInput, NoEligibleRoute
from routetune.tasks.retune import Night, exit_code, failures_told, gain, open_night, rests_until, urgency
from routetune.tasks.status import Freshness, freshness
from routetune.tasks.store import Store, open_store
from routetune.tasks.store.locks import BusyDevice
from routetune.tasks.store.manifests import Publication, Reference
from routetune.tasks.subject import open_subject
from routetune.tasks.targets.changes import Change

from tests.machine import Machine


@pytest.fixture
def store(store_folder: Path) -> Store:
    return open_store(store_folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three targets of the CPU, none ever tuned, and a TOML file of another tool."""
    machine, place = Machine(tmp_path / "machine"), tmp_path / "targets"
    for name in ("a", "b", "c"):
        machine.write_target(place / f"{name}.toml", device="cpu", backend="onnxruntime")
    (place / "pyproject.toml").write_text('[project]\nname = "no target"\n')
    return place


def speed(ratio: float, half: float = 0.01) -> dict[str, Any]:
    return {"ratio": ratio, "low": ratio - half, "high": ratio + half, "loads": 5}


def published(ratio: float) -> Publication:
    manifest = {"speed": speed(ratio), "route": "-a=on", "published_at": "2026-01-01T00:00:00+00:00"}
    return Publication(manifest, Reference(1, "0" * 64, "0" * 64), Path("engine.onnx"))


def answer(ratio: float, state: str = "tuned", builds: int = 2) -> dict[str, Any]:
    told = {"reason": "it wins"}
    return {
        "state": state,
        "speed": speed(ratio),
        "counts": {"builds": builds},
        "decision": told,
        "note": state,
    }


def test_the_worst_comes_first(folder: Path, store: Store) -> None:
    base = freshness(folder / "a.toml", store)
    driver = (Change("environment.driver", "1", "2", "rebuild"),)
    version = (Change("environment.version.onnxruntime", "1", "2", "rebuild"),)
    retimed = (Change("target.timing.width", 1, 2, "retime"),)

    def state(name: str, kind: str, cost: str = "", ratio: float = 0.0, changes: Any = ()) -> Freshness:
        publication = published(ratio) if ratio else None
        return replace(base, target=name, state=kind, cost=cost, changes=changes, publication=publication)

    expected = [
        state("a new", "never tuned"),
        state("b cannot be loaded", "stale", "rebuild", 1.1, version),
        state("c damaged", "stale", "publish", 3.0),
        state("d much at stake", "stale", "rebuild", 2.0, driver),
        state("e little at stake", "stale", "rebuild", 1.05, driver),
        state("f cheaper", "stale", "retime", 3.0, retimed),
        state("g", "reselect", "reselect", 5.0),
    ]
    shuffled = [*expected[3:], *expected[:3]]
    assert [one.target for one in sorted(shuffled, key=urgency)] == [one.target for one in expected]


def fail(path: Path, store: Store, ago: timedelta, reason: str = "no route is eligible") -> None:
    """A run of the target as it stands that ended so, some time ago."""
    subject = open_subject(path)
    run = store.runs.open(subject.target.name, subject.bound_to)
    run.finish("failed", reason=reason)
    at = (datetime.now(UTC) - ago).isoformat(timespec="microseconds")
    store.runs.write(replace(run.record, starts=[{"at": at, "pid": 1}], ended_at=at))


def test_failures_back_off_until_something_moves(folder: Path, store: Store) -> None:
    path = folder / "a.toml"
    day = timedelta(days=1)
    for nights, waits in enumerate((1, 2, 4, 8, 14, 14), start=1):
        fail(path, store, timedelta(minutes=100 - nights))
        state = freshness(path, store)
        assert (state.state, len(state.failures)) == ("failed", nights)
        rest = rests_until(state)
        assert rest is not None
        # A night that begins at the same hour counts, also when the one before began a little later.
        assert rest < state.failures[0].started_at + waits * day <= rest + timedelta(hours=1)
    night = open_night([folder], store)
    assert [one.target for one in night.todo] == ["b", "c"]
    [rested] = night.results
    assert rested["outcome"] == "backing off" and "failed 6 times in a row" in rested["detail"]
    assert "no route is eligible" in rested["detail"]
    assert exit_code(night.results) == 3
    assert len(open_night([folder], store, force=True).todo) == 3
    text = path.read_text()
    path.write_text(text.replace("tolerance = 0.001", "tolerance = 0.5"))
    assert freshness(path, store).state == "never tuned", "it never failed as it stands now"
    assert len(open_night([folder], store).todo) == 3
    path.write_text(text)
    fail(path, store, timedelta(days=15))
    assert len(open_night([folder], store).todo) == 2, "the latest start counts, whenever it was written"


def test_a_failure_of_long_ago_is_tried_again(folder: Path, store: Store) -> None:
    fail(folder / "a.toml", store, timedelta(hours=23, minutes=30))
    assert len(open_night([folder], store).todo) == 3


def test_others_go_on_when_one_fails(folder: Path, store: Store) -> None:
    night = open_night([folder], store)
    [queue] = night.queues()
    assert [one.target for one in queue] == ["a", "b", "c"]

    def tune(state: Freshness, patience: float) -> dict[str, Any]:
        assert patience == retune.PATIENCE
        if state.target == "a":
            raise ZeroDivisionError("a fault of ours")
        if state.target == "b":
            raise BusyDevice("device cpu is in use: process 7")
        return answer(1.2)

    for state in queue:
        night.work(state, tune)
    report = night.report()
    told = {one["target"]: (one["outcome"], one["detail"]) for one in report["targets"]}
    assert told["a"] == ("failed", "ZeroDivisionError: a fault of ours")
    assert told["b"] == ("busy", "device cpu is in use: process 7")
    assert told["c"][0] == "tuned"
    assert report["counts"] == {"failed": 1, "busy": 1, "tuned": 1}
    assert (report["builds"], report["gained"], report["exit_code"]) == (2, ["c"], 1)


def test_a_target_on_several_devices_is_in_one_queue_with_all_that_share_one(
    folder: Path, store: Store
) -> None:
    night = open_night([folder], store)
    place(night, a=("cuda:0",), b=("cuda:1",), c=("cuda:2",))
    assert [[one.target for one in queue] for queue in night.queues()] == [["a"], ["b"], ["c"]]
    place(night, c=("cuda:2", "cuda:0"))
    assert sorted([one.target for one in queue] for queue in night.queues()) == [["a", "c"], ["b"]]
    place(night, a=("cpu:0", "cpu:1"), b=("cpu",))
    assert sorted([one.target for one in queue] for queue in night.queues()) == [["a", "b"], ["c"]]


def place(night: Night, **devices: tuple[str, ...]) -> None:
    """Have targets on these devices, as if their files said so on a machine that has them."""
    for at, state in enumerate(night.todo):
        if state.target in devices and state.subject is not None:
            subject = replace(state.subject, devices=devices[state.target])
            night.todo[at] = replace(state, subject=subject)


def test_the_night_ends_with_its_budgets(folder: Path, store: Store) -> None:
    night = open_night([folder], store, device_seconds=5.0)

    def tune(state: Freshness, patience: float) -> dict[str, Any]:
        subject = open_subject(state.path)
        run = store.runs.open(state.target, subject.bound_to)
        run.finish("finished")
        later = datetime.fromisoformat(str(run.record.ended_at)) + timedelta(seconds=6)
        store.runs.write(replace(run.record, ended_at=later.isoformat()))
        return answer(1.0)

    for state in night.queues()[0]:
        night.work(state, tune)
    report = night.report()
    assert report["counts"] == {"tuned": 1, "skipped": 2}
    assert 6 <= report["device_seconds"] < 7
    assert "5 device-seconds is used up" in report["targets"][-1]["detail"]
    assert report["exit_code"] == 5

    night = open_night([folder], store, seconds=100.0)
    night.started -= 60
    night.work(night.todo[0], lambda state, patience: answer(1.0) if 39 < patience < 41 else {})
    night.started -= 60
    night.work(night.todo[1], tune)
    assert [one["outcome"] for one in night.results] == ["tuned", "skipped"]
    with pytest.raises(BadInput, match="above 0"):
        open_night([folder], store, seconds=0)


def test_what_stays_was_tuned_for_all_the_same(folder: Path, store: Store) -> None:
    night = open_night([folder], store)
    night.work(night.todo[0], lambda *_: answer(1.0, state="kept"))
    [row] = [one for one in night.report()["targets"] if one["builds"]]
    assert (row["outcome"], row["gain"], row["detail"], row["builds"]) == ("tuned", "kept", "kept", 2)


def test_what_is_gained_and_what_is_lost() -> None:
    assert gain(speed(1.3), speed(1.1)) == "lost"
    assert gain(speed(1.3), {"ratio": 1.0, "low": 1.0, "high": 1.0}) == "lost", "the default won"
    assert gain(speed(1.3), speed(1.29)) == "kept", "within the intervals"
    assert gain(speed(1.1), speed(1.3)) == "gained"
    assert gain(None, speed(1.2)) == "gained"
    assert gain(None, {"ratio": 1.0, "low": 1.0, "high": 1.0}) == "kept"


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        (["fresh", "tuned"], 0),
        (["fresh", "cannot tell"], 3),
        (["cannot tell", "busy"], 5),
        (["skipped", "lost"], 6),
        (["lost", "busy", "refused"], 2),
        (["refused", "lost", "failed"], 1),
    ],
)
def test_exit_codes_tell_the_worst(outcomes: list[str], code: int) -> None:
    results = [
        {"outcome": "tuned" if one == "lost" else one, "gain": "lost" if one == "lost" else None}
        for one in outcomes
    ]
    assert exit_code(results) == code


def test_a_refused_target_is_told_and_stops_nobody(folder: Path, store: Store) -> None:
    (folder / "b.toml").write_text("schema = 1\n")
    night = open_night([folder], store)
    assert [one.target for one in night.todo] == ["a", "c"]
    assert [(one["target"], one["outcome"]) for one in night.results] == [("b", "refused")]


def test_no_eligible_route_is_a_failure_with_its_reason(folder: Path, store: Store) -> None:
    night: Night = open_night([folder / "a.toml"], store)

    def tune(state: Freshness, patience: float) -> dict[str, Any]:
        raise NoEligibleRoute("none of the 2 routes tried is eligible")

    night.work(night.todo[0], tune)
    assert night.results[0]["detail"] == "none of the 2 routes tried is eligible"


def test_the_failures_are_told_by_name_and_nothing_else_is_one() -> None:
    outcomes = {"a": "failed", "b": "tuned", "c": "refused", "d": "failed", "e": "busy", "f": "cannot tell"}
    targets = [{"target": name, "outcome": outcome} for name, outcome in outcomes.items()]
    told = "failed: a, d (2 of 6 targets); refused: c (1 of 6 targets)"
    assert failures_told({"targets": targets}) == told
    assert failures_told({"targets": [one for one in targets if one["target"] in "bef"]}) == ""
