"""The duel: order, turns and disturbed loads on a simulated machine, and what its figures say."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from routetune.tasks import canonical
from routetune.tasks.verdicts.conditions import CoreTimes
from routetune.tasks.verdicts.duel import (
    DuelSettings,
    duel_figures,
    duel_load,
    enough,
    log_ratios,
    order_of,
    quietest,
)
from routetune.tasks.verdicts.rounds import PATIENCE, BadClock

MS = 1_000_000
CONTROL = "(control)"


class Machine:
    """A clock that only calls move, and neighbours as told."""

    cores = 2

    def __init__(self, others: float = 0.0) -> None:
        self.now, self.calls, self.used = 0, "", others

    def clock(self) -> int:
        return self.now

    def call(self, name: str, cost: float) -> Callable[[], None]:
        def run() -> None:
            self.now += int(cost)
            self.calls += name

        return run

    def read(self) -> CoreTimes | None:
        return CoreTimes(self.now / 1e9, 0.0, 0.0)

    def others(self, before: CoreTimes | None, after: CoreTimes | None) -> float | None:
        return self.used

    def state(self) -> dict[str, Any]:
        return {"mhz": 2600, "celsius": 61.0}


def fought(machine: Machine, **settings: Any) -> dict[str, Any]:
    calls = {"-a=1": machine.call("a", 0.8 * MS), CONTROL: machine.call("c", MS)}
    load = duel_load(calls, DuelSettings(**settings), machine.clock, machine)
    stored: dict[str, Any] = json.loads(canonical.dumps(load.to_json()))
    return stored


def made(others: float = 0.0, level: float = 1.0, reason: str = "") -> dict[str, Any]:
    samples = {"-a=1": [int(level * MS)] * 5, CONTROL: [int(level * MS)] * 5}
    return {"samples": samples, "others": others, "conditions": {}, "reason": reason, "dropped": False}


def test_a_load_gives_the_ratio_and_keeps_every_sample_and_condition() -> None:
    load = fought(Machine())
    assert log_ratios([load], "-a=1", CONTROL) == [pytest.approx(math.log(1 / 0.8))]
    assert load["conditions"] == {"mhz": 2600, "celsius": 61.0} and load["reason"] == ""
    figures = duel_figures([load])
    assert figures["times"][CONTROL]["p99"] == MS and figures["loads"] == 1
    assert figures["conditions"]["celsius"] == [61.0, 61.0]


def test_the_order_turns_round_and_every_switch_is_warmed_up() -> None:
    machine = Machine()
    fought(machine, turns=2, seconds=0.02)
    # Five calls of each to see what they take; two or three after each switch; chunks of 6 and 5 calls.
    sizing, first, turns = "aaaaaccccc", "aaa", "aaaaaa cc ccccc ccccc aaa aaaaaa"
    assert machine.calls == sizing + first + turns.replace(" ", "")


@pytest.mark.parametrize(("seconds", "turns"), [(4.0, 6), (1.0, 2), (0.5, 2), (0.2, 1)])
def test_dear_switches_leave_fewer_turns(seconds: float, turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()

    def spun() -> None:
        machine.now += 120 * MS

    monkeypatch.setattr("routetune.tasks.verdicts.samplers.rested", spun)
    load = fought(machine, seconds=seconds)
    chunk = min(0.03, seconds / (2 * turns))  # a quarter of the waiting
    assert len(load["samples"][CONTROL]) == turns * round(chunk * 1000)


def test_a_load_under_interference_says_so() -> None:
    assert "1.00 of 2 cores" in fought(Machine(others=1.0))["reason"]
    assert fought(Machine(others=0.2))["reason"] == ""


def test_disturbed_loads_are_repeated_with_a_bound() -> None:
    quiet, loud = made(0.1), made(1.0, reason="others used 1.00 of 2 cores")
    assert enough([quiet] * 6, 6, 2) and not enough([quiet] * 5, 6, 2)
    assert not enough([quiet] * 5 + [loud], 6, 2)
    assert enough([quiet] * 5 + [loud] * 3, 6, 2)
    kept = quietest([loud, quiet, quiet, made(0.5, reason="others used 0.50 of 2 cores"), quiet], 4)
    assert [load["dropped"] for load in kept] == [True, False, False, False, False]
    figures = duel_figures(kept)
    assert (figures["loads"], figures["dropped"], figures["busy"]) == (4, 1, True)
    assert figures["remarks"] == [
        "the machine was busy: others used 0.5 cores during 1 of the 4 loads that had to be kept"
    ]
    assert len(log_ratios(kept, "-a=1", CONTROL)) == 4


def test_the_choice_of_loads_does_not_look_at_their_times() -> None:
    slow, fast = made(0.3, level=3.0), made(0.2, level=0.1)
    chosen = quietest([made(0.1), slow, fast], 2)
    assert [load["dropped"] for load in chosen] == [False, True, False]
    assert quietest([made(0.1), fast | {"others": 0.3}, slow | {"others": 0.2}], 2)[1]["dropped"]


def test_f42_drift_over_the_loads_is_flagged() -> None:
    drifting = [made(level=1.0 + 0.02 * number) for number in range(12)]
    figures = duel_figures(drifting)
    assert figures["drifting"] and "drifted by +" in figures["remarks"][0]
    assert not duel_figures([made() for _ in range(12)])["drifting"]
    assert duel_figures([])["loads"] == 0


def test_every_engine_comes_in_every_place_and_beside_each_neighbour_either_way() -> None:
    names = ["a", "b", "c", "d"]
    orders = [order_of(names, load) for load in range(8)]
    places = Counter((name, order.index(name)) for order in orders for name in names)
    assert len(places) == 16 and set(places.values()) == {2}
    assert orders[0] == names and orders[4] == names[::-1]


@pytest.mark.parametrize("duration", [0, -1, math.nan])
def test_f41_a_time_that_cannot_be_one_is_refused(duration: float) -> None:
    load = made()
    load["samples"]["-a=1"][2] = duration
    with pytest.raises(BadClock):
        log_ratios([load], "-a=1", CONTROL)


@pytest.mark.parametrize("seconds", [0.05, 0.3, 1.0, 9.0])
@pytest.mark.parametrize("engines", [2, 6])
def test_however_slow_the_engines_a_load_ends(engines: int, seconds: float) -> None:
    """The time for a load is for all of its engines: of long calls there are fewer, at least one."""
    machine, settings = Machine(), DuelSettings()
    calls = {str(number): machine.call(str(number), seconds * 1e9) for number in range(engines)}
    load = duel_load(calls, settings, machine.clock, machine)
    assert all(load.samples.values())
    counted = sum(map(len, load.samples.values())) * seconds
    assert counted <= max(PATIENCE * settings.seconds, engines * seconds)
    assert machine.now / 1e9 <= counted + 6 * engines * seconds, "and what comes before does not last longer"


@pytest.mark.parametrize("seconds", [0.05, 0.25, 2.0])
def test_a_load_of_streams_ends_as_well(seconds: float) -> None:
    """A sample of several inferences in flight is many of them, however few are asked for."""
    machine, settings = Machine(), DuelSettings(streams=4)

    class Flight:
        """As `Streams` counts; its threads are left out."""

        least = 5 * settings.streams

        def sample(self, calls: int) -> list[int]:
            machine.now += int(max(calls + settings.streams, self.least) * seconds * 1e9)
            return [int(seconds * 1e9)]

    load = duel_load({"-a=1": Flight(), CONTROL: Flight()}, settings, machine.clock, machine)
    taken = Flight.least * seconds
    assert all(load.samples.values())
    assert machine.now / 1e9 <= PATIENCE * settings.seconds + 6 * taken
