"""Samplers and turns, on real threads and real clocks where the truth is known, and on simulated ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from routetune.tasks.verdicts.duel import DuelSettings, duel_figures, duel_load
from routetune.tasks.verdicts.rounds import RoundSettings, estimate_from, figures_from, measure
from routetune.tasks.verdicts.samplers import (
    LONG_SECONDS,
    BadClock,
    Serial,
    Streams,
    Turns,
    as_sampler,
    rested,
)

MS = 1_000_000


def nap(seconds: float) -> Callable[[], None]:
    return lambda: time.sleep(seconds)


def test_a_serial_sample_is_the_latency_of_one_call() -> None:
    samples = Serial(nap(0.002)).sample(5)
    assert len(samples) == 5 and min(samples) >= 2 * MS


@pytest.mark.parametrize("streams", [2, 4])
def test_a_stream_sample_is_the_time_per_completed_inference(streams: int) -> None:
    with Streams([nap(0.005)] * streams) as sampler:
        best = min(sampler.sample(40)[0] for _ in range(3))
    assert best == pytest.approx(5 * MS / streams, rel=0.25)
    sampler.close()  # again


def test_streams_are_all_in_flight_and_each_has_its_own_call() -> None:
    inside, most, seen = [0], [0], set()
    lock = threading.Lock()

    def call(name: int) -> Callable[[], None]:
        def run() -> None:
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            time.sleep(0.002)
            with lock:
                inside[0] -= 1
                seen.add((name, threading.get_ident()))

        return run

    with Streams([call(name) for name in range(3)]) as sampler:
        sampler.sample(12)
    assert most[0] == 3
    assert len(seen) == 3 == len({thread for _, thread in seen})


def test_the_throughput_of_a_slow_stream_counts_as_it_completes() -> None:
    # 4 ms and 12 ms a call in flight together complete 1/4 + 1/12 inferences a millisecond.
    with Streams([nap(0.004), nap(0.012)]) as sampler:
        best = min(sampler.sample(60)[0] for _ in range(2))
    assert best == pytest.approx(3 * MS, rel=0.25)


def test_the_first_call_of_each_thread_has_the_device_for_itself() -> None:
    """What a library does once for each thread, such as capturing a graph, may bear nothing beside it."""
    begun: set[int] = set()
    inside: list[int] = []
    beside: list[int] = []

    def call() -> None:
        thread = threading.get_ident()
        first = thread not in begun
        begun.add(thread)
        inside.append(thread)
        if first:
            time.sleep(0.005)
            beside.append(len(inside) - 1)
        inside.remove(thread)

    with Streams([call] * 4) as sampler:
        sampler.sample(16)
    assert beside == [0] * 4


def test_an_error_in_a_stream_is_raised_and_the_threads_end() -> None:
    def fail() -> None:
        raise RuntimeError("the device is lost")

    before = threading.active_count()
    with pytest.raises(RuntimeError, match="device is lost"), Streams([nap(0.001), fail]) as sampler:
        sampler.sample(4)
    assert threading.active_count() == before


def test_f41_a_clock_that_stands_still_is_refused_in_streams_too() -> None:
    with pytest.raises(BadClock), Streams([nap(0.0), nap(0.0)], clock=lambda: 5) as sampler:
        sampler.sample(4)


def test_a_plain_call_becomes_a_sampler_and_a_sampler_stays_one() -> None:
    serial = Serial(nap(0))
    assert as_sampler(serial, time.perf_counter_ns) is serial
    assert isinstance(as_sampler(nap(0), time.perf_counter_ns), Serial)


class Counted:
    """A sampler that notes what it was asked for."""

    def __init__(self, log: list[str], name: str, nanoseconds: int) -> None:
        self.log, self.name, self.nanoseconds = log, name, nanoseconds

    def sample(self, calls: int) -> list[int]:
        self.log.append(f"{self.name}{calls}")
        return [self.nanoseconds] * calls


def test_a_switch_rests_and_warms_up_and_going_on_does_not() -> None:
    log: list[str] = []
    turns = Turns(rest=lambda: log.append("rest"))
    quick, slow = Counted(log, "q", MS // 4), Counted(log, "s", int(LONG_SECONDS * 1e9) + 1)
    turns.learn(quick, MS // 4)
    turns.learn(slow, slow.nanoseconds)
    turns.sample(quick, 5)
    turns.sample(quick, 5)
    turns.sample(slow, 3)
    assert log == ["rest", "q8", "q5", "q5", "rest", "s3"]  # 2 ms of warm-up; none for calls that long


def spinning(seconds: float) -> threading.Thread:
    """A thread that computes without holding the interpreter's lock, as a native pool's does."""
    import hashlib

    block = bytes(1 << 20)

    def spin() -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            hashlib.sha256(block)

    thread = threading.Thread(target=spin)
    thread.start()
    return thread


def test_rest_waits_for_a_spinning_thread_but_not_for_ever() -> None:
    rested(limit=2.0)
    thread, start = spinning(0.3), time.monotonic()
    rested(limit=5.0)
    waited = time.monotonic() - start
    assert 0.2 < waited < 2.0
    thread.join()
    thread, start = spinning(1.0), time.monotonic()
    rested(limit=0.1)
    assert time.monotonic() - start < 0.6
    thread.join()


def test_throughput_rounds_find_the_faster_of_two() -> None:
    settings = RoundSettings(seconds=1.5, streams=2, chunk_seconds=0.05, warm_up_seconds=0.05)
    with Streams([nap(0.002)] * 2) as fast, Streams([nap(0.004)] * 2) as slow:
        raw = measure(fast, slow, settings).to_json()
    assert all(len(one["candidate_ns"]) in (1, 2) for one in raw["rounds"])
    found = estimate_from(raw)
    assert found.ratio == pytest.approx(2.0, rel=0.25) and found.low > 1.3


class OnDevice:
    """A fake of a call on a GPU, whose own time is always the same; tests/gpu times real ones."""

    def __init__(self, device_ns: int) -> None:
        self._ns = device_ns

    def __call__(self) -> None:
        end = time.perf_counter_ns() + 200_000
        while time.perf_counter_ns() < end:
            pass

    def device_ns(self) -> int:
        self()
        return self._ns


def test_the_device_s_own_times_are_recorded_beside_the_wall_s() -> None:
    settings = RoundSettings(seconds=0.3, max_rounds=60, warm_up_seconds=0.01)
    raw = measure(OnDevice(7_000), OnDevice(9_000), settings).to_json()
    figures = figures_from(raw)
    assert (figures["candidate"]["device_p50"], figures["control"]["device_p50"]) == (7_000, 9_000)
    assert figures["candidate"]["p50"] > 100_000  # and these rank
    windows = [one for one in raw["rounds"] if one["candidate_device_ns"]]
    assert 1 <= len(windows) <= len(raw["rounds"]) and raw["rounds"][-1] in windows
    load = duel_load({"a": OnDevice(7_000), "b": lambda: OnDevice(0)()}, DuelSettings(seconds=0.05))
    times = duel_figures([load.to_json()])["times"]
    assert times["a"]["device_p50"] == 7_000 and "device_p50" not in times["b"]
