"""Timing a candidate beside the control in one process: chunked ABBA rounds, as many as the precision needs.

A round is four chunks of calls, candidate and control in turns: ABBA, the next one BAAB, so that a drift of
the machine falls on both alike. A round gives one log ratio of medians. Both calls are warm when the first
round starts, and after each switch again (`Turns`); nothing sleeps in between, since an idle core takes a
while to get fast again. Where a switch has to wait for the spinning threads of the other engine, a round is
only two chunks, AB and the next one BA, so that there is one switch a round and not three.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

from routetune.tasks.canonical import number
from routetune.tasks.verdicts.conditions import CoreWatch, Watch, disturbance
from routetune.tasks.verdicts.figures import fitness, log_median, percentiles
from routetune.tasks.verdicts.intervals import Estimate, estimate, needed
from routetune.tasks.verdicts.samplers import (
    BadClock,
    Call,
    Clock,
    Sampler,
    Turns,
    as_sampler,
    checked_nanoseconds,
)

__all__ = [
    "BadClock",
    "Measurement",
    "Round",
    "RoundSettings",
    "checked_nanoseconds",
    "estimate_from",
    "figures_from",
    "measure",
]

#: Calls of one chunk at the most, and of the warm-up: samples are kept, and a call may take a microsecond.
_CALLS = 256
#: The soft time limit may be passed this many times over, to get at least `min_rounds` of slow calls.
PATIENCE = 5
#: A chunk lasts at least this share of what a switch waits for idle threads, or the waiting would be all.
_CHUNK_OF_REST = 0.25


@dataclass(frozen=True, slots=True)
class RoundSettings:
    """How long and how precisely to measure.

    Attributes:
        seconds: time to stop after, if there are `min_rounds`; five times that is the end in any case.
        width: stop when log(high / low) of the interval is at most this, about its relative width.
        confidence: of that interval.
        abandon_below: a speed (control time / candidate time); a candidate clearly below is hopeless and not
            measured further. None: never.
        min_rounds: rounds to take for an interval; raised to what `confidence` needs.
        max_rounds: rounds at the most.
        chunk_seconds: what a chunk of calls should last; a single call where that takes longer.
        warm_up_seconds: time to stop warming up after, steady or not; at least two calls of each.
        window_seconds: the stretch of rounds over which the neighbours' use of the cores is judged.
        interference: share of the usable cores that others may use in a window.
        retries: windows that may be dropped for interference; what comes after is kept and marked as busy.
        streams: inferences in flight; above 1 a sample is the mean time per inference of a whole chunk.
    """

    seconds: float = 2.0
    width: float = 0.01
    confidence: float = 0.95
    abandon_below: float | None = None
    min_rounds: int = 6
    max_rounds: int = 1000
    chunk_seconds: float = 0.005
    warm_up_seconds: float = 0.2
    window_seconds: float = 0.2
    interference: float = 0.15
    retries: int = 3
    streams: int = 1


@dataclass(frozen=True, slots=True)
class Round:
    """Raw samples of one round.

    Attributes:
        order: "ABBA" or "BAAB", A the candidate, and either half of a side's samples is one chunk; or "AB" or
            "BA", one chunk each.
        candidate_ns, control_ns: each call in nanoseconds, in the order of the calls.
        others: cores that other processes used meanwhile, on average; None where it cannot be told.
        conditions: what the device was like afterwards, see `Watch.state`.
        candidate_device_ns, control_device_ns: the device's own times of a few calls more, taken after the
            last round of a window; empty in the others, and where no device tells.
        dropped: not used, for `reason`. A reason without `dropped`: used all the same, and the run was busy.
    """

    order: str
    candidate_ns: list[int]
    control_ns: list[int]
    others: float | None = None
    conditions: dict[str, Any] = field(default_factory=dict)
    dropped: bool = False
    reason: str = ""
    candidate_device_ns: list[int] = field(default_factory=list)
    control_device_ns: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Everything that was measured; all figures follow from it by `estimate_from` and `figures_from`.

    Attributes:
        settings: as given.
        calls: inferences of a chunk.
        resting: seconds that a switch waits for the threads of the other engine.
        warm_up_candidate_ns, warm_up_control_ns: the calls before the first round.
        rounds: in order, dropped ones included.
        stopped: "width", "time", "rounds" or "abandoned".
        seconds: how long it took.
    """

    settings: RoundSettings
    calls: int
    resting: float
    warm_up_candidate_ns: list[int]
    warm_up_control_ns: list[int]
    rounds: list[Round]
    stopped: str
    seconds: float

    @property
    def abandoned(self) -> bool:
        return self.stopped == "abandoned"

    def to_json(self) -> dict[str, Any]:
        """As strict JSON."""
        plain = asdict(self) | {"abandoned": self.abandoned}
        settings = plain["settings"].items()
        plain["settings"] = {k: number(v) if isinstance(v, float) else v for k, v in settings}
        return plain


def measure(
    candidate: Call | Sampler,
    control: Call | Sampler,
    settings: RoundSettings | None = None,
    clock: Clock = time.perf_counter_ns,
    watch: Watch | None = None,
) -> Measurement:
    """Time a candidate beside the control.

    Args:
        candidate, control: one inference each, nothing around it; or a sampler.
        clock: nanoseconds; every time in here is its own.
        watch: tells of the neighbours; None for those on the machine's cores.

    Raises:
        BadClock: the clock gave a duration that is zero, negative or not a number.
    """
    with no_collection():
        sides = as_sampler(candidate, clock), as_sampler(control, clock)
        run = _Run(*sides, settings or RoundSettings(), clock, watch or CoreWatch(), Turns(clock))
        return run.measured()


def estimate_from(
    measurement: Mapping[str, Any], confidence: float | None = None, comparisons: int = 1
) -> Estimate:
    """The speed of a stored measurement (`Measurement.to_json`); a pure function of the raw samples.

    A candidate that was abandoned while warming up has the ratio of its warm-up, from 0 rounds and so without
    an interval.
    """
    if confidence is None:
        confidence = float(measurement["settings"]["confidence"])
    ratios = [_log_ratio(r["candidate_ns"], r["control_ns"]) for r in _kept(measurement)]
    if ratios:
        return estimate(ratios, confidence, comparisons)
    sides = (measurement[f"warm_up_{side}_ns"][1:] for side in ("candidate", "control"))
    return Estimate(math.exp(_log_ratio(*sides)), 0.0, math.inf, 0, confidence, comparisons)


def figures_from(measurement: Mapping[str, Any]) -> dict[str, Any]:
    """What else a stored measurement tells, as strict JSON.

    "candidate" and "control" hold p50, p95 and p99 in nanoseconds and the number of samples, and "device_p50"
    where the device told; "rounds" is how many were kept; the rest is that of `fitness`.
    """
    kept = _kept(measurement)
    levels = [(log_median(one["candidate_ns"]) + log_median(one["control_ns"])) / 2 for one in kept]
    return {
        **{side: _side(kept, side) for side in ("candidate", "control")},
        "rounds": len(kept),
        **fitness(measurement["rounds"], levels, "rounds"),
    }


@dataclass(slots=True)
class _Run:
    """One measurement under way."""

    candidate: Sampler
    control: Sampler
    settings: RoundSettings
    clock: Clock
    watch: Watch
    turns: Turns
    calls: int = 1
    resting: float = 0.0
    rounds: list[Round] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    stopped: str = ""
    dropped_windows: int = 0
    started: int = 0

    def measured(self) -> Measurement:
        self.started = self.clock()
        candidate_ns, control_ns = self._warm_up()
        # The best call of the candidate counts: one that was disturbed must not condemn it.
        if self._hopeless(math.log(median(control_ns[1:]) / min(candidate_ns[1:]))):
            self.stopped = "abandoned"
        else:
            self._size_chunks(median(candidate_ns[1:]), median(control_ns[1:]))
        while not self.stopped:
            self._window()
        return Measurement(
            self.settings,
            self.calls,
            self.resting,
            candidate_ns,
            control_ns,
            self.rounds,
            self.stopped,
            self._elapsed(),
        )

    def _size_chunks(self, candidate_ns: float, control_ns: float) -> None:
        """How many calls make a chunk, by what a call and a switch take."""
        for sampler, each in ((self.control, control_ns), (self.candidate, candidate_ns)):
            self.turns.learn(sampler, each)
            self.turns.switch(sampler)
            self.resting = max(self.resting, self.turns.resting)
        seconds = max(self.settings.chunk_seconds, _CHUNK_OF_REST * self.resting)
        fastest = min(candidate_ns, control_ns)
        self.calls = min(max(math.ceil(seconds * 1e9 / fastest), 1), _CALLS)

    def _warm_up(self) -> tuple[list[int], list[int]]:
        """Both in turns until the last calls of each are alike; the very first may take any time."""
        candidate_ns: list[int] = []
        control_ns: list[int] = []
        while len(candidate_ns) < _CALLS:
            control_ns += self.control.sample(1)
            candidate_ns += self.candidate.sample(1)
            if len(candidate_ns) >= 2 and self._elapsed() >= self.settings.warm_up_seconds:
                break
            if _steady(candidate_ns) and _steady(control_ns):
                break
        return candidate_ns, control_ns

    def _window(self) -> None:
        """Rounds for as long as it takes to see the neighbours, then whether to keep them and go on."""
        start, before = self.clock(), self.watch.read()
        taken: list[Round] = []
        ratios: list[float] = []
        while not taken or self.clock() - start < self.settings.window_seconds * 1e9:
            taken.append(self._round(self._orders[(len(self.rounds) + len(taken)) % 2]))
            ratios.append(_log_ratio(taken[-1].candidate_ns, taken[-1].control_ns))
            if len(self.ratios) + len(ratios) >= 2 and self._hopeless(max(self.ratios + ratios)):
                self.stopped = "abandoned"
                break
        others = self.watch.others(before, self.watch.read())
        taken[-1] = self._with_device_times(taken[-1])
        state = self.watch.state()
        reason = disturbance(self.watch, others, state, self.settings.interference)
        # The bound on retries; and what the last of the time was spent on is better kept than nothing.
        spent = self.dropped_windows >= self.settings.retries or self._elapsed() >= self.settings.seconds
        dropped = bool(reason) and not spent and not self.stopped
        self.dropped_windows += dropped
        self.ratios += [] if dropped else ratios
        told: dict[str, Any] = {"others": others, "conditions": state, "dropped": dropped, "reason": reason}
        self.rounds += [replace(one, **told) for one in taken]
        self.stopped = self.stopped or self._why_stop()

    def _with_device_times(self, last: Round) -> Round:
        candidate_ns, control_ns = (self.turns.device_sample(one) for one in (self.candidate, self.control))
        return replace(last, candidate_device_ns=candidate_ns, control_device_ns=control_ns)

    def _why_stop(self) -> str:
        """Never the sign of the result: stopping when it looks good makes false winners."""
        settings, ratios, elapsed = self.settings, self.ratios, self._elapsed()
        enough = len(ratios) >= max(settings.min_rounds, needed(settings.confidence))
        if enough and estimate(ratios, settings.confidence).width <= settings.width:
            return "width"
        if elapsed >= settings.seconds * (1 if enough else PATIENCE):
            return "time"
        return "rounds" if len(self.rounds) >= settings.max_rounds else ""

    @property
    def _orders(self) -> tuple[str, str]:
        dear = self.resting > 2 * self.settings.chunk_seconds
        return ("AB", "BA") if dear else ("ABBA", "BAAB")

    def _round(self, order: str) -> Round:
        sides: dict[str, list[int]] = {"A": [], "B": []}
        for side in order:
            sides[side] += self.turns.sample(self.candidate if side == "A" else self.control, self.calls)
        return Round(order, sides["A"], sides["B"])

    def _hopeless(self, log_ratio: float) -> bool:
        bound = self.settings.abandon_below
        return bound is not None and bound > 0 and log_ratio < math.log(bound)

    def _elapsed(self) -> float:
        return (self.clock() - self.started) / 1e9


@contextmanager
def no_collection() -> Iterator[None]:
    """No garbage collection within a call; it would fall on either side at random."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _side(kept: Sequence[Mapping[str, Any]], side: str) -> dict[str, int]:
    # A measurement that was kept before the device was asked has no times of its own.
    device = [ns for one in kept for ns in one.get(f"{side}_device_ns", ())]
    return percentiles([ns for one in kept for ns in one[f"{side}_ns"]], device)


def _steady(times: Sequence[int]) -> bool:
    return len(times) >= 4 and max(times[-3:]) < 1.1 * min(times[-3:])


def _log_ratio(candidate_ns: Sequence[int], control_ns: Sequence[int]) -> float:
    """log(control / candidate) of medians.

    The medians are of logs, so that ABBA cancels a drift by a constant factor a call exactly: the middle two
    samples of a side may be from either end of the round.
    """
    control, candidate = ([checked_nanoseconds(ns) for ns in side] for side in (control_ns, candidate_ns))
    return log_median(control) - log_median(candidate)


def _kept(measurement: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [one for one in measurement["rounds"] if not one["dropped"]]
