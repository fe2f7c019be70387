"""Faults that end a process: the run itself at any moment, its worker."""

from __future__ import annotations

import random
import signal
from typing import Any

from tests.faults.fault import Case, Fault
from tests.faults.questions import snapshot
from tests.faults.site import Site

MOMENTS = 30


def at_random(case: Case, times: int = MOMENTS) -> None:
    """Kill, run again, kill again: at a step drawn anew each time, until a run gets to its end."""
    draw = random.Random(0)
    site = case.site()
    while case.findings.times < times:
        stop = {"at": draw.randrange(len(case.undisturbed.steps))}
        with site.running(stop=stop) as tune:
            if tune.wait_until_stopped():
                case.findings.times += 1
                case.killed(site, tune)
                continue
            case.findings.ended(tune.wait())
        case.conclude(site, snapshot(site))
        site = case.site()
    case.conclude(site, snapshot(site))


def between_steps(case: Case, site: Site, part: str = "") -> None:
    """Kill before the first step of each kind, as often as there are kinds, running again in between."""
    seen: list[str] = []
    told = site.folder / "told"
    while True:
        stop: dict[str, Any] = {"unseen": seen, "part": part, "told": str(told)}
        with site.running(stop=stop) as tune:
            if not tune.wait_until_stopped():
                case.findings.ended(tune.wait())
                break
            seen.append(told.read_text())
            case.findings.times += 1
            case.killed(site, tune)
    assert len(seen) > 5, f"these are all the steps there were: {seen}"
    case.conclude(site, snapshot(site))


def between_steps_of_the_store(case: Case) -> None:
    between_steps(case, case.site())


def between_steps_of_the_publisher(case: Case) -> None:
    between_steps(case, case.tuned(without=("publications", "runs")), "publications")


def of_the_worker(case: Case) -> None:
    for at in (0.4, 0.8):
        site = case.site()
        with case.stopped(site, at=at) as tune:
            before = snapshot(site)
            for worker in tune.workers():
                worker.kill()
        case.conclude(site, before)


def by_the_user(case: Case) -> None:
    _asked_to_end(case, signal.SIGINT, 130)


def by_the_system(case: Case) -> None:
    _asked_to_end(case, signal.SIGTERM, 143)


def _asked_to_end(case: Case, number: signal.Signals, code: int) -> None:
    for at in (0.2, 0.7):
        site = case.site()
        with case.stopped(site, at=at) as tune:
            before = snapshot(site)
            tune.process.send_signal(number)
        assert tune.ended is not None
        if tune.ended.code != code or "run again to go on" not in tune.ended.err:
            case.findings.wrong.append(f"not ended as asked to: {tune.ended.code} {tune.ended.err[-500:]}")
        case.conclude(site, before)


FAULTS = [
    Fault(
        "SIGKILL of the run, at random moments", "before a step on the store that is drawn, seed 0", at_random
    ),
    Fault(
        "SIGKILL of the run, between steps of the store",
        "before the first step of each kind (write, rename, remove, folder, in each part of the store)",
        between_steps_of_the_store,
    ),
    Fault(
        "SIGKILL of the run, between steps of the publisher",
        "the same, in publications/",
        between_steps_of_the_publisher,
        usual=True,
    ),
    Fault("SIGKILL of the worker", "from outside, at 40 and 80 % of a run's steps", of_the_worker),
    Fault("Ctrl-C", "SIGINT at 20 and 70 %", by_the_user),
    Fault("SIGTERM", "as from an init system, at 20 and 70 %", by_the_system),
]
