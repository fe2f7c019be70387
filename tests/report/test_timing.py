"""What is said of the measurements of a run, from raw samples as they are stored."""

from __future__ import annotations

from typing import Any

from routetune.tasks.report.timing import measured_times, run_remarks, times_text, trial_figures
from routetune.tasks.routes.route import Route
from routetune.tasks.trial import Trial

MS = 1_000_000
CONTROL = "(control)"


def round_of(level: float = 1.0, dropped: bool = False, reason: str = "") -> dict[str, Any]:
    samples = [int(level * MS)] * 4
    return {
        "order": "ABBA",
        "candidate_ns": samples,
        "control_ns": [2 * ns for ns in samples],
        "others": 1.0 if reason else 0.0,
        "conditions": {},
        "dropped": dropped,
        "reason": reason,
    }


def trial(*rounds: dict[str, Any]) -> Trial:
    return Trial(Route((("-a", "1"),)), accepted=True, timing={"rounds": list(rounds)} if rounds else None)


def load(winner: int = MS, reason: str = "", dropped: bool = False) -> dict[str, Any]:
    samples = {"-a=1": [winner] * 9, CONTROL: [MS] * 9}
    return {
        "samples": samples,
        "others": 1.2,
        "conditions": {"mhz": 2600},
        "reason": reason,
        "dropped": dropped,
    }


def test_a_quiet_run_has_nothing_to_remark() -> None:
    assert run_remarks([load()] * 6, [trial(*[round_of()] * 6)]) == []
    assert run_remarks([], []) == []


def test_a_busy_run_says_where_and_how_much() -> None:
    busy = "others used 1.20 of 2 cores"
    loads = [*[load()] * 5, load(reason=busy), load(reason=busy, dropped=True)]
    screened = trial(*[round_of(reason=busy)] * 4, round_of(dropped=True, reason=busy))
    assert run_remarks(loads, [screened, trial()]) == [
        "duel: the machine was busy: others used 1.2 cores during 1 of the 6 loads that had to be kept",
        "duel: 1 disturbed loads were dropped, others took their place",
        "screening: 1 of 1 candidates were timed on a busy machine",
        "screening: 1 of 5 rounds were dropped for interference",
    ]


def test_a_drifting_run_says_so() -> None:
    drifting = trial(*[round_of(1 + 0.1 * number) for number in range(6)])
    assert run_remarks([], [drifting]) == ["screening: 1 of 1 candidates were timed while times drifted"]
    assert "drifted by +38%" in trial_figures(drifting)["remarks"][0]


def test_percentiles_are_those_of_the_duel_else_of_the_screening() -> None:
    one = trial(*[round_of()] * 6)
    times = measured_times([load(winner=MS // 2)], one, CONTROL, [one])
    assert (times["winner"]["p50"], times["control"]["p99"]) == (MS // 2, MS)
    default = Trial(Route(), accepted=True)
    assert measured_times([load()], default, CONTROL, [one])["winner"]["p50"] == MS
    assert measured_times([], default, CONTROL, [default, one])["control"]["p50"] == 2 * MS
    assert measured_times([], default, CONTROL, [default]) == {}


def test_times_for_a_person() -> None:
    found = {"p50": 2 * MS, "p95": 3 * MS, "p99": 4 * MS, "calls": 70}
    assert times_text({"winner": found}) == "winner 2.000/3.000/4.000 ms (p50/p95/p99 of 70 calls)"
    assert times_text({"control": found}, streams=4) == "control 500.0 inferences/s with 4 in flight"
