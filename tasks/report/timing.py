"""What the measurements of a run tell beside the speeds: percentiles, and remarks on the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from routetune.tasks.verdicts.duel import duel_figures
from routetune.tasks.verdicts.rounds import figures_from

if TYPE_CHECKING:
    from routetune.tasks.trial import Trial


def trial_figures(trial: Trial) -> dict[str, Any]:
    """Percentiles of a trial and of the control beside it, in nanoseconds, and remarks; None if not timed."""
    found = _figures(trial)
    if found is None:
        return {"times": None, "remarks": []}
    times = {side: found[side] for side in ("candidate", "control")}
    return {"times": times, "remarks": found["remarks"]}


def measured_times(
    loads: Sequence[Mapping[str, Any]], winner: Trial, control: str, trials: Sequence[Trial]
) -> dict[str, Any]:
    """Percentiles of the winner and the control, in nanoseconds, as {"winner": ..., "control": ...}.

    From the duel; where no finalist got that far, the control's are those of the screening. {} where nothing
    was timed at all.
    """
    if loads:
        times = duel_figures(loads)["times"]
        return {"winner": times.get(str(winner.route), times[control]), "control": times[control]}
    for trial in trials:
        if (one := _figures(trial)) and one["control"]["calls"]:
            return {"winner": one["control"], "control": one["control"]}
    return {}


def run_remarks(loads: Sequence[Mapping[str, Any]], trials: Sequence[Trial]) -> list[str]:
    """Sentences for a person on how far the measurements of a run can be trusted; empty: nothing to say."""
    found = duel_figures(loads)
    remarks = [f"duel: {remark}" for remark in found["remarks"]]
    if found["dropped"]:
        remarks.append(f"duel: {found['dropped']} disturbed loads were dropped, others took their place")
    screened = [one for trial in trials if (one := _figures(trial)) is not None]
    for name, what in (("busy", "on a busy machine"), ("drifting", "while times drifted")):
        if count := sum(one[name] for one in screened):
            remarks.append(f"screening: {count} of {len(screened)} candidates were timed {what}")
    if dropped := sum(one["dropped"] for one in screened):
        rounds = dropped + sum(one["rounds"] for one in screened)
        remarks.append(f"screening: {dropped} of {rounds} rounds were dropped for interference")
    return remarks


def times_text(times: Mapping[str, Any], streams: int = 1) -> str:
    """One line: the percentiles of the winner and the control; with several streams, inferences a second."""
    return "; ".join(f"{side} {_side_text(found, streams)}" for side, found in times.items())


def _figures(trial: Trial) -> dict[str, Any] | None:
    return trial.figures if trial.timing is None else figures_from(trial.timing)


def _side_text(found: Mapping[str, int], streams: int) -> str:
    if streams > 1:
        return f"{1e9 / found['p50']:.1f} inferences/s with {streams} in flight"
    marks = "/".join(f"{found[mark] / 1e6:.3f}" for mark in ("p50", "p95", "p99"))
    own = f", {found['device_p50'] / 1e6:.3f} ms on the GPU" if "device_p50" in found else ""
    return f"{marks} ms (p50/p95/p99 of {found['calls']} calls){own}"
