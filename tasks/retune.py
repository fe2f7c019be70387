"""A night of re-tuning: which targets to tune, in which order, within which budgets, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from routetune.tasks.canonical import to_float
from routetune.tasks.devices import lock_name
from routetune.tasks.errors import BadInput, RoutetuneError
from routetune.tasks.status import Freshness, find_targets, look_at
from routetune.tasks.store import Store
from routetune.tasks.store.loader import would_refuse
from routetune.tasks.store.locks import Busy
from routetune.tasks.store.runs import RunInProgress
from routetune.tasks.targets.changes import COSTS

#: Seconds to wait for a busy device where the night has no end of its own.
PATIENCE = 3600.0
#: Days without another try after 1, 2, ... failures in a row of exactly the same target and environment.
BACK_OFF = (1, 2, 4, 8, 14)
#: A night that begins this much earlier than the one before still counts as the next.
EARLY = timedelta(hours=1)

#: What became of a target, and the exit code of the whole where it is the worst; see docs/freshness.md.
FRESH, TUNED, FAILED, REFUSED = "fresh", "tuned", "failed", "refused"
BUSY, SKIPPED, BACKING_OFF, CANNOT_TELL = "busy", "skipped", "backing off", "cannot tell"
GAINED, KEPT, LOST = "gained", "kept", "lost"


class TargetsFailed(RoutetuneError):
    """A night in which targets failed or were refused; everything else in it was done.

    Attributes:
        report: of the night, as `Night.report` gives it.
    """

    def __init__(self, message: str, report: dict[str, Any]) -> None:
        super().__init__(message)
        self.report = report


@dataclass
class Night:
    """One look at the targets, and what is done about it.

    Attributes:
        states: every target as it was found.
        seconds, device_seconds: the budgets of the night, None for no end; the second one counts for how long
            devices were held, added up over all of them.
        todo: the targets to tune, worst first.
        results: one dict for each target that is done with, as plain JSON, in the order they ended.
        stopped: begin nothing more.
    """

    store: Store
    states: list[Freshness]
    seconds: float | None = None
    device_seconds: float | None = None
    todo: list[Freshness] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)  # the look counts
    stopped: bool = False

    @property
    def device_seconds_used(self) -> float:
        return float(sum(one["device_seconds"] for one in self.results))

    def queues(self) -> list[list[Freshness]]:
        """The targets to tune, worst first, a list for each device: devices may work side by side.

        Targets of which one has several devices are in one list with all that have any of these.
        """
        queues: list[tuple[set[str], list[Freshness]]] = []
        for state in self.todo:
            assert state.subject is not None
            devices = set(map(lock_name, state.subject.devices))
            shared = [queue for queue in queues if queue[0] & devices]
            queues = [queue for queue in queues if not queue[0] & devices]
            states = [one for queue in shared for one in queue[1]]
            queues.append((devices.union(*(queue[0] for queue in shared)), [*states, state]))
        order = {id(state): at for at, state in enumerate(self.todo)}
        return [sorted(queue[1], key=lambda state: order[id(state)]) for queue in queues]

    def work(self, state: Freshness, tune: Callable[[Freshness, float], dict[str, Any]]) -> None:
        """Tune one target and note what came of it; nothing that goes wrong with it stops the others.

        Args:
            tune: takes the target and the seconds to wait for its device, gives the answer of `tune`.
        """
        if reason := self._at_end():
            self._note(state, SKIPPED, reason)
            return
        began = datetime.now(UTC)
        try:
            answer = tune(state, self._patience())
        except (Busy, RunInProgress) as busy:
            self._note(state, BUSY, str(busy))
        except Exception as error:  # whatever it is: the others are worth tuning all the same
            kind = "" if isinstance(error, RoutetuneError) else f"{type(error).__name__}: "
            self._note(state, FAILED, f"{kind}{error}", device_seconds=self._held(state, began))
        else:
            # What stays since nothing better was found was tuned for all the same: builds, time, perhaps a
            # new generation.
            outcome = FRESH if answer["state"] == "fresh" else TUNED
            note = str(answer.get("note") or answer["decision"]["reason"])
            self._note(state, outcome, note, answer, self._held(state, began))

    def report(self) -> dict[str, Any]:
        """What was stale and why, and what came of it, as plain JSON; see docs/freshness.md."""
        counts: dict[str, int] = {}
        for one in self.results:
            counts[one["outcome"]] = counts.get(one["outcome"], 0) + 1
        return {
            "targets": self.results,
            "counts": counts,
            "builds": sum(one["builds"] for one in self.results),
            "gained": [one["target"] for one in self.results if one["gain"] == GAINED],
            "lost": [one["target"] for one in self.results if one["gain"] == LOST],
            "seconds": round(time.monotonic() - self.started, 3),
            "device_seconds": round(self.device_seconds_used, 3),
            "budget": {"seconds": self.seconds, "device_seconds": self.device_seconds},
            "exit_code": exit_code(self.results),
        }

    def _at_end(self) -> str:
        """Why no other target is begun, or ""."""
        if self.stopped:
            return "the night was stopped"
        if self.seconds is not None and time.monotonic() - self.started >= self.seconds:
            return f"the night's budget of {self.seconds:g} seconds is used up"
        if self.device_seconds is not None and self.device_seconds_used >= self.device_seconds:
            return f"the night's budget of {self.device_seconds:g} device-seconds is used up"
        return ""

    def _patience(self) -> float:
        if self.seconds is None:
            return PATIENCE
        return max(self.seconds - (time.monotonic() - self.started), 0.0)

    def _held(self, state: Freshness, began: datetime) -> float:
        """Seconds for which the run that has just ended had the device."""
        runs = [run for run in self.store.runs.list(state.target) if run.started_at >= began]
        return runs[-1].device_seconds if runs else 0.0

    def _note(
        self,
        state: Freshness,
        outcome: str,
        detail: str = "",
        answer: dict[str, Any] | None = None,
        device_seconds: float = 0.0,
    ) -> None:
        told = state.to_json()
        self.results.append(
            {
                **{name: told[name] for name in ("target", "path", "state", "cost")},
                "changes": [str(change) for change in state.changes],
                "outcome": outcome,
                "detail": detail or state.detail,
                "gain": gain(told["speed"], answer["speed"]) if answer and outcome == TUNED else None,
                "speed": answer["speed"] if answer else told["speed"],
                "speed_before": told["speed"],
                "builds": answer["counts"]["builds"] if answer else 0,
                "device_seconds": round(device_seconds, 3),
            }
        )


def open_night(
    places: list[Path],
    store: Store,
    seconds: float | None = None,
    device_seconds: float | None = None,
    force: bool = False,
) -> Night:
    """Look at all targets and decide which to tune; the others are noted at once.

    Args:
        places: target files, or folders of them.
        force: try those too that back off after failures.

    Raises:
        BadInput: a place or a budget cannot be.
    """
    for name, budget in (("seconds", seconds), ("device_seconds", device_seconds)):
        if budget is not None and not budget > 0:
            raise BadInput(f"retune: {name} must be above 0, found {budget}")
    started = time.monotonic()
    states = look_at(find_targets(places), store)
    night = Night(store, states, seconds, device_seconds, started=started)
    now = datetime.now(UTC)
    for state in sorted(night.states, key=urgency):
        rest = None if force else rests_until(state)
        if state.subject is None:
            night._note(state, REFUSED)
        elif state.state in (FRESH, CANNOT_TELL):
            night._note(state, state.state)
        elif rest is not None and now < rest:
            count = len(state.failures)
            told = f"failed {count} time{'s' * (count != 1)} in a row as it stands, tried again from "
            night._note(state, BACKING_OFF, f"{told}{rest:%Y-%m-%d %H:%M} UTC on: {state.detail}")
        else:
            night.todo.append(state)
    return night


def urgency(state: Freshness) -> tuple[Any, ...]:
    """What to sort by, worst first: what no service can load; then by cost and by the gain at stake.

    A reselect has the least cost, so it comes last.
    """
    if state.subject is None or state.publication is None or state.cost == "publish":
        return (0, 0, 0.0, state.target)
    if would_refuse(state.subject.environment.fields, list(state.changes)):
        return (0, 0, 0.0, state.target)
    cost = COSTS.index(state.cost) if state.cost in COSTS else 0
    return (1, -cost, -to_float(state.publication.manifest["speed"]["ratio"]), state.target)


def rests_until(state: Freshness) -> datetime | None:
    """When a target that failed is tried again; None where it did not fail as it stands."""
    if not state.failures:
        return None
    days = BACK_OFF[min(len(state.failures), len(BACK_OFF)) - 1]
    return state.failures[0].started_at + timedelta(days=days) - EARLY


def gain(before: dict[str, Any] | None, after: dict[str, Any]) -> str:
    """Whether a new publication is faster or slower than the earlier one, beyond both intervals."""
    if before is None:
        return GAINED if to_float(after["low"]) > 1 else KEPT
    if to_float(after["high"]) < to_float(before["low"]):
        return LOST
    return GAINED if to_float(after["low"]) > to_float(before["high"]) else KEPT


def failures_told(report: dict[str, Any]) -> str:
    """One sentence that names the targets of a report that failed or were refused; "" where none did."""
    told = []
    for outcome in (FAILED, REFUSED):
        names = [one["target"] for one in report["targets"] if one["outcome"] == outcome]
        if names:
            told.append(f"{outcome}: {', '.join(names)} ({len(names)} of {len(report['targets'])} targets)")
    return "; ".join(told)


def exit_code(results: list[dict[str, Any]]) -> int:
    """1 failed, 2 refused, 6 gain lost, 5 busy or skipped, 3 otherwise not fresh; the first that applies."""
    outcomes = {one["outcome"] for one in results}
    if FAILED in outcomes:
        return 1
    if REFUSED in outcomes:
        return 2
    if any(one["gain"] == LOST for one in results):
        return 6
    if outcomes & {BUSY, SKIPPED}:
        return 5
    return 3 if outcomes & {BACKING_OFF, CANNOT_TELL} else 0
