"""Several workers: steps are dealt, results keep their order, and a device that misbehaves is taken out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import onnx
import pytest
from routetune.tasks.engines import fleet as module
from routetune.tasks.engines.attempts import Attempts
from routetune.tasks.engines.fleet import Fleet, Member
from routetune.tasks.engines.worker import StepFailed, Worker
from routetune.tasks.errors import EnvironmentBroken
from routetune.tasks.trial import Outcome

from tests.killing import killing
from tests.machine import small_model

FAULTS = Path(__file__).parents[1] / "faults"
pytestmark = pytest.mark.filterwarnings("ignore:device .* was taken out of the run")

BUILD = "routetune.tasks.engines.steps:build"
MINE = sorted(os.sched_getaffinity(0))


class Site:
    """Two workers whose backend works until the file of the device is there: then it aborts at every build.

    A fault that cannot be had otherwise: no machine of the tests has a device that breaks when it is told to.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        onnx.save(small_model(), folder / "m.onnx")
        members = []
        for number in range(2):
            variables = {"PYTHONPATH": str(FAULTS), "ORT_TEST_BROKEN": str(self.broken(number))}
            core = [MINE[number % len(MINE)]]
            worker = Worker(folder / str(number), variables, cores=core)
            members.append(Member(f"device {number}", number, Attempts(worker)))
        self.members = members
        self.fleet = Fleet(members)

    def broken(self, number: int) -> Path:
        return self.folder / f"broken-{number}"

    def build(self, name: str, backend: str = "faulty_backend:BreakingBackend", **route: str) -> str:
        """Build; returns the device that did it."""
        knobs = {f"+{knob}": value for knob, value in route.items()}
        order = {
            "model": str(self.folder / "m.onnx"),
            "route": knobs,
            "output": str(self.folder / f"{name}.onnx"),
        }
        log = self.folder / f"{self.fleet.number}.log"
        found = self.fleet.call(BUILD, {"backend": backend, "order": order}, 30, log)
        assert found["size"] > 0
        return str(self.fleet.did)

    def close(self) -> None:
        for member in self.members:
            member.attempts.worker.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


def test_items_are_dealt_to_both_and_results_keep_their_order(site: Site) -> None:
    def work(number: int) -> tuple[int, str]:
        return number, site.build(str(number))

    found = site.fleet.deal(work, range(6))
    assert [number for number, _ in found] == list(range(6))
    assert {device for _, device in found} == {"device 0", "device 1"}
    assert all(member.attempts.worker.started == 1 for member in site.members)


def test_a_worker_and_its_threads_stay_on_their_cores(site: Site) -> None:
    """Also those that ONNX Runtime would tie to every core of the machine by itself."""
    if len(MINE) < 2:
        pytest.skip("one core: there is nothing to keep off")
    order = {"model": str(site.folder / "m.onnx"), "route": {}, "output": str(site.folder / "e.onnx")}
    site.fleet.call(BUILD, {"backend": "onnxruntime", "order": order}, 30, site.folder / "b")
    process = site.members[0].attempts.worker._process
    assert process is not None
    threads = [int(entry.name) for entry in Path(f"/proc/{process.popen.pid}/task").iterdir()]
    assert {core for thread in threads for core in os.sched_getaffinity(thread)} == {MINE[0]}


def test_a_death_is_believed_when_it_happens_on_a_second_device(site: Site) -> None:
    for _ in range(module.STRIKES + 1):
        with pytest.raises(StepFailed) as crash:
            site.build("always", "faulty_backend:FaultyBackend", fault="always")
        assert crash.value.outcome is Outcome.CRASHED
    assert not site.fleet.out and [member.strikes for member in site.members] == [0, 0]
    assert all(member.attempts.worker.started > 1 for member in site.members)


def test_a_device_that_dies_alone_is_taken_out_and_its_steps_pass_elsewhere(site: Site) -> None:
    site.broken(0).touch()
    with pytest.warns(UserWarning, match="device 0 was taken out of the run"):
        devices = [site.build(str(number)) for number in range(module.STRIKES + 1)]
    assert devices == ["device 1"] * len(devices)
    assert list(site.fleet.out) == ["device 0"] and "passed on another device" in site.fleet.out["device 0"]
    assert [member.device for member in site.fleet.members] == ["device 1"]


def test_a_device_whose_control_fails_is_taken_out_in_the_midst_of_a_deal(site: Site) -> None:
    for member in site.members:
        member.attempts.canary = partial(canary, site, member)
    site.broken(1).touch()
    for _ in range(10):  # each has at least one of every deal
        found = site.fleet.deal(lambda number: site.build(str(number)), range(6))
        assert found == ["device 0"] * 6
    assert list(site.fleet.out) == ["device 1"]


def canary(site: Site, member: Member) -> None:
    order = {"model": str(site.folder / "m.onnx"), "route": {}, "output": str(site.folder / "canary.onnx")}
    arguments = {"backend": "faulty_backend:BreakingBackend", "order": order}
    member.attempts.worker.call(BUILD, arguments, 30, site.folder / "canary.log")


def test_all_out_is_a_broken_environment(site: Site) -> None:
    for member in site.members:
        member.attempts.canary = partial(canary, site, member)
    for number in range(2):
        site.broken(number).touch()
    deaths = 0
    with pytest.raises(EnvironmentBroken, match="no route is blamed"):
        for number in range(20):
            try:
                site.build(str(number))
            except StepFailed:
                deaths += 1
    assert deaths < 10 and len(site.fleet.out) == 1


def test_a_worker_killed_again_and_again_costs_no_result(site: Site) -> None:
    """By real signals."""
    with killing(lambda: [site.fleet], {1}):
        found = site.fleet.deal(lambda number: site.build(str(number)), range(30))
    assert len(found) == 30
    assert list(site.fleet.out) == ["device 1"]


def test_an_error_of_one_item_ends_the_others_at_once(site: Site) -> None:
    started = time.monotonic()

    def work(number: int) -> str:
        if number == 1:
            time.sleep(1.0)
            raise ValueError("the disk is full")
        return site.build(str(number), "faulty_backend:FaultyBackend", fault="hang")

    with pytest.raises(ValueError, match="the disk is full"):
        site.fleet.deal(work, range(2))
    assert time.monotonic() - started < 15, "a step of 30 s was waited for"


@pytest.mark.parametrize("count", [0, 1, 7])
def test_nothing_is_lost_and_nothing_is_done_twice(site: Site, count: int) -> None:
    done: list[int] = []
    work: Callable[[int], None] = done.append
    assert site.fleet.deal(work, range(count)) == [None] * count
    assert sorted(done) == list(range(count))
