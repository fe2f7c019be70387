"""Timing rounds: on a simulated clock where the truth is known, and on real calls."""

from __future__ import annotations

import gc
import itertools
import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from routetune.tasks import canonical
from routetune.tasks.verdicts.conditions import CoreTimes
from routetune.tasks.verdicts.rounds import (
    BadClock,
    Measurement,
    RoundSettings,
    checked_nanoseconds,
    estimate_from,
    figures_from,
    measure,
)

MS = 1_000_000


@dataclass
class Machine:
    """A simulated machine: its clock moves only when a call runs, by what the call costs."""

    now: float = 0.0
    calls: str = ""
    noise: float = 0.0
    growth: float = 1.0  # every call costs this much more than the one before, whichever it is
    others: list[float] = field(default_factory=list)  # cores used by others, window by window
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    cores: int = 2

    def clock(self) -> int:
        return int(self.now)

    def call(self, name: str, cost_ns: float, first: float = 1.0) -> Callable[[], None]:
        factor = itertools.chain([first], itertools.repeat(1.0))

        def run() -> None:
            grown = self.growth ** len(self.calls)
            self.now += cost_ns * next(factor) * grown * math.exp(self.rng.gauss(0, self.noise))
            self.calls += name

        return run

    def read(self) -> CoreTimes | None:
        return CoreTimes(self.now, 0.0, 0.0)

    def watched(self, before: CoreTimes | None, after: CoreTimes | None) -> float | None:
        return self.others.pop(0) if self.others else 0.0


class Neighbours:
    """The watch of a simulated machine."""

    def __init__(self, machine: Machine) -> None:
        self.cores, self.read, self.others = machine.cores, machine.read, machine.watched

    def state(self) -> dict[str, Any]:
        return {"mhz": 2600}


def timed(
    machine: Machine, candidate_ns: float, control_ns: float = MS, first: float = 1.0, **settings: Any
) -> Measurement:
    candidate, control = machine.call("A", candidate_ns, first), machine.call("B", control_ns, first)
    return measure(candidate, control, RoundSettings(**settings), machine.clock, Neighbours(machine))


def stored(measurement: Measurement) -> dict[str, Any]:
    """As it comes back from the store."""
    return json.loads(canonical.dumps(measurement.to_json()))


def test_a_known_speed_is_found_and_every_figure_follows_from_the_raw_samples() -> None:
    measurement = timed(Machine(noise=0.01), 0.8 * MS)
    raw = stored(measurement)
    found = estimate_from(raw)
    assert found.low <= 1.25 <= found.high and found.n >= 6
    assert found.width <= 0.01 and raw["stopped"] == "width" and raw["abandoned"] is False
    assert estimate_from(raw, comparisons=10).width >= found.width
    figures = figures_from(raw)
    assert figures["candidate"]["p50"] == pytest.approx(0.8 * MS, rel=0.01)
    assert figures["candidate"]["p50"] < figures["candidate"]["p95"] <= figures["candidate"]["p99"]
    assert figures["rounds"] == len(raw["rounds"]) and figures["remarks"] == []
    assert all(type(ns) is int for one in raw["rounds"] for ns in one["candidate_ns"])


def test_chunks_alternate_and_every_second_round_is_mirrored() -> None:
    machine = Machine()
    measurement = timed(machine, MS)
    assert measurement.calls == 5
    rounds = machine.calls[2 * len(measurement.warm_up_control_ns) :]
    # In small letters: after each switch, two calls of a millisecond that do not count.
    expected = "bbaa" + "AAAAA bb BBBBBBBBBB aa AAAAA" + "bb BBBBB aa AAAAAAAAAA bb BBBBB"
    assert rounds.startswith(expected.replace(" ", "").upper())
    assert [one.order for one in measurement.rounds[:3]] == ["ABBA", "BAAB", "ABBA"]


def test_where_a_switch_waits_long_there_is_one_in_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, waits = Machine(), []

    def spun() -> None:  # as long as the threads of another engine spin
        waits.append(machine.now)
        machine.now += 120 * MS

    monkeypatch.setattr("routetune.tasks.verdicts.samplers.rested", spun)
    measurement = timed(machine, 0.8 * MS, width=1e-9, seconds=3.0)
    assert measurement.resting == pytest.approx(0.12)
    assert [one.order for one in measurement.rounds[:3]] == ["AB", "BA", "AB"]
    assert measurement.calls == math.ceil(30 / 0.8)  # a quarter of the waiting
    # Two switches before the first round, then one in each.
    assert len(waits) == 2 + len(measurement.rounds)
    assert estimate_from(stored(measurement)).ratio == pytest.approx(1.25)


@pytest.mark.parametrize(
    ("cost", "calls"), [(1000, 256), (0.5 * MS, 10), (2 * MS, 3), (20 * MS, 1), (400 * MS, 1)]
)
def test_a_chunk_lasts_a_few_milliseconds(cost: float, calls: int) -> None:
    measurement = timed(Machine(), cost, cost)
    assert measurement.calls == calls
    assert estimate_from(stored(measurement)).ratio == pytest.approx(1.0)


def test_slow_calls_get_their_rounds_and_the_slowest_an_honest_end() -> None:
    slow = timed(Machine(noise=0.05), 200 * MS, 200 * MS, seconds=1.0, width=1e-6)
    assert len(slow.rounds) == 6 and slow.stopped == "time"
    slowest = timed(Machine(), 2000 * MS, 2000 * MS, seconds=1.0)
    assert slowest.stopped == "time" and slowest.seconds < 20
    found = estimate_from(stored(slowest))
    assert (found.ratio, found.low, found.high) == (pytest.approx(1.0), 0.0, math.inf)


def test_time_and_number_of_rounds_are_bounded() -> None:
    measurement = timed(Machine(noise=0.2), MS, width=1e-9, seconds=1.0)
    assert measurement.stopped == "time" and 1.0 <= measurement.seconds < 1.3
    assert timed(Machine(noise=0.2), MS, width=1e-9, max_rounds=20).stopped == "rounds"


def test_it_stops_on_width_and_never_on_significance() -> None:
    measurement = timed(Machine(noise=0.05), 0.5 * MS, seconds=10.0)
    early = replace(measurement, rounds=measurement.rounds[:6])
    assert estimate_from(stored(early)).low > 1.5  # certain of the sign after six rounds, and it went on
    assert len(measurement.rounds) > 6 and estimate_from(stored(measurement)).width <= 0.01


BROKEN = {"stands still": lambda t: 0, "runs backwards": lambda t: -t, "is NaN": lambda t: math.nan}


@pytest.mark.parametrize("clock", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("good_calls", [0, 60])
def test_f41_a_broken_clock_is_refused(clock: Callable[[int], Any], good_calls: int) -> None:
    machine = Machine()

    def broken() -> Any:
        return machine.clock() if len(machine.calls) < good_calls else clock(machine.clock())

    with pytest.raises(BadClock, match="refused"):
        measure(machine.call("A", MS), machine.call("B", MS), RoundSettings(), broken, Neighbours(machine))


@pytest.mark.parametrize("duration", [0, -1, math.nan, math.inf])
def test_f41_no_such_duration_is_ever_used(duration: float) -> None:
    with pytest.raises(BadClock):
        checked_nanoseconds(duration)
    raw = stored(timed(Machine(), MS))
    raw["rounds"][2]["control_ns"][0] = duration
    with pytest.raises(BadClock):
        estimate_from(raw)


@pytest.mark.parametrize("order", list(itertools.permutations(["as fast", "faster", "slower"])))
def test_f42_slow_first_calls_and_drift_change_no_winner(order: tuple[str, ...]) -> None:
    costs = {"as fast": 1.0 * MS, "faster": 0.97 * MS, "slower": 1.03 * MS}
    machine = Machine(growth=1.01)
    found, drifting = {}, []
    for name in order:
        machine.calls = ""  # a fresh start of the drift, so that the last one is not a hundred times slower
        raw = stored(timed(machine, costs[name], first=100.0))
        assert max(raw["warm_up_candidate_ns"]) == raw["warm_up_candidate_ns"][0] > 90 * MS
        assert max(raw["rounds"][0]["candidate_ns"]) < 10 * MS
        found[name] = estimate_from(raw).ratio
        figures = figures_from(raw)
        drifting.append(figures["drifting"] and "drifted" in figures["remarks"][0])
    assert max(found, key=found.__getitem__) == "faster" and all(drifting)
    assert found["faster"] == pytest.approx(1 / 0.97, rel=1e-6)
    assert found["slower"] == pytest.approx(1 / 1.03, rel=1e-6)


def test_a_hopeless_candidate_is_abandoned_at_once() -> None:
    machine = Machine()
    measurement = timed(machine, 170 * MS, abandon_below=1 / 3)
    assert measurement.abandoned and not measurement.rounds
    assert machine.calls.count("A") <= 4
    found = estimate_from(stored(measurement))
    assert found.ratio == pytest.approx(1 / 170) and (found.n, found.high) == (0, math.inf)
    assert figures_from(stored(measurement))["candidate"] == {"calls": 0}
    # Without a bound, or just above it, the same candidate is measured to the end.
    assert len(timed(Machine(), 170 * MS).rounds) >= 6
    assert len(timed(Machine(), 2.9 * MS, abandon_below=1 / 3).rounds) >= 6


def test_a_candidate_that_turns_hopeless_is_abandoned_after_two_rounds() -> None:
    machine = Machine()
    swift, slow = machine.call("A", MS), machine.call("A", 9 * MS)

    def candidate() -> None:
        (swift if len(machine.calls) < 20 else slow)()

    settings = RoundSettings(abandon_below=0.5)
    measurement = measure(candidate, machine.call("B", MS), settings, machine.clock, Neighbours(machine))
    assert measurement.abandoned and 2 <= len(measurement.rounds) <= 4


def test_rounds_under_interference_are_dropped_and_counted() -> None:
    machine = Machine(noise=0.01, others=[1.5, 0.0, 0.9])
    raw = stored(timed(machine, MS, width=1e-9, seconds=2.0))
    figures = figures_from(raw)
    dropped = [one for one in raw["rounds"] if one["dropped"]]
    assert figures["dropped"] == len(dropped) > 0 and not figures["busy"]
    assert {one["others"] for one in dropped} == {1.5, 0.9}
    assert all("1.50 of 2 cores" in one["reason"] or "0.90" in one["reason"] for one in dropped)
    assert estimate_from(raw).n == len(raw["rounds"]) - len(dropped)


def test_a_busy_machine_is_measured_all_the_same_and_says_so() -> None:
    machine = Machine(noise=0.01, others=[1.2] * 1000)
    raw = stored(timed(machine, MS, width=1e-9, seconds=2.0, retries=2))
    figures = figures_from(raw)
    windows = 2 * 0.2 / 0.026  # two dropped windows of 0.2 s, rounds of 20 calls and 3 times 2 to warm up
    assert figures["dropped"] == pytest.approx(windows, abs=2)
    assert figures["busy"] and figures["rounds"] > 20
    assert "others used 1.2 cores" in figures["remarks"][0]


def test_the_garbage_collector_rests_and_comes_back() -> None:
    seen = []
    machine = Machine()
    call = machine.call("A", MS)
    measure(
        lambda: (seen.append(gc.isenabled()), call())[-1],
        machine.call("B", MS),
        RoundSettings(),
        machine.clock,
        Neighbours(machine),
    )
    assert gc.isenabled() and not any(seen)


def matrix_work(times: int) -> Callable[[], None]:
    matrix = np.random.default_rng(0).random((48, 48))  # too small for BLAS to use threads

    def run() -> None:
        for _ in range(times):
            matrix @ matrix

    return run


def test_real_calls_of_a_third_more_work_get_the_right_sign() -> None:
    settings = RoundSettings(seconds=1.0, width=0.02)
    more = estimate_from(stored(measure(matrix_work(52), matrix_work(40), settings)))
    less = estimate_from(stored(measure(matrix_work(40), matrix_work(52), settings)))
    assert more.high < 1 < less.low
    assert more.ratio == pytest.approx(40 / 52, rel=0.1) and less.ratio == pytest.approx(52 / 40, rel=0.1)


def test_a_real_call_beside_itself_is_not_told_apart() -> None:
    # The same call on both sides: two matrices of equal content already differ by some 0.2 %, by where in
    # memory they are, which is why a duel loads afresh.
    call = matrix_work(40)

    def contains_one() -> bool:
        found = estimate_from(stored(measure(call, call, RoundSettings(seconds=0.8, width=0.01))))
        return found.low <= 1 <= found.high

    # An interval at 95 % misses one time in twenty; three times in a row is no accident.
    assert any(contains_one() for _ in range(3))
