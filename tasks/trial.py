"""A trial: one route on its way through build, accuracy check and timing."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from routetune.tasks.routes.route import Route


class Outcome(StrEnum):
    """Where a trial ended. Everything but ELIGIBLE is an exclusion with a reason."""

    ELIGIBLE = "eligible"
    INACCURATE = "inaccurate"
    FAILED = "failed"
    CRASHED = "crashed"
    FLAKY = "flaky"
    KILLED = "killed"
    OUT_OF_MEMORY = "out of memory"
    TIMED_OUT = "timed out"


#: Outcomes that say something about the route. The others may be the neighbours' doing, so they are
#: never kept as results: the next run tries them again.
REPRODUCIBLE = frozenset({Outcome.ELIGIBLE, Outcome.INACCURATE, Outcome.FAILED, Outcome.CRASHED})


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a step of a trial gave no result.

    Attributes:
        outcome: the kind of end, never ELIGIBLE.
        reason: one sentence for a person, naming what failed.
        step: "calibrate", "rewrite", "build", "accuracy" or "timing".
        log: digest of the log blob of the step, or None.
    """

    outcome: Outcome
    reason: str
    step: str
    log: str | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """One route and what is known of it so far; each stage returns a copy that knows more.

    Attributes:
        route: the canonical route.
        engine: the built engine as plain JSON (digest, size, identity, options), or None.
        alias_of: id of an earlier route whose engine is the same; verdict and time are inherited.
        losses: accuracy report, one dict per input set, or None when not checked.
        loss: the deciding loss under the target's metric, or None.
        speed: control time / candidate time (1.0 = as fast as the default route), or None when not timed.
        low, high: confidence bounds of `speed`.
        timing: raw rounds as plain JSON, or None; once recorded they are let go.
        figures: what the raw rounds tell (`rounds.figures_from`), kept in their place.
        abandoned: timing was cut short since the candidate was hopelessly slow.
        failure: set when a step gave no result.
        accepted: the accuracy verdict, None before it is given.
        verdict: one sentence on accuracy (output, input set, metric, loss, tolerance, worst element).
        cached: names of the steps that were answered from the store.
        seconds: wall time of each step that did run, by step name.
        device: where its last step was done: the UUID of a GPU, "cpu" or "cpu:0-3"; None where that was not
            kept.
    """

    route: Route
    engine: dict[str, Any] | None = None
    alias_of: str | None = None
    losses: list[dict[str, Any]] | None = None
    loss: float | None = None
    speed: float | None = None
    low: float | None = None
    high: float | None = None
    timing: dict[str, Any] | None = None
    figures: dict[str, Any] | None = None
    abandoned: bool = False
    failure: Failure | None = None
    accepted: bool | None = None
    verdict: str = ""
    cached: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    device: str | None = None

    @property
    def outcome(self) -> Outcome:
        if self.failure is not None:
            return self.failure.outcome
        return Outcome.ELIGIBLE if self.accepted else Outcome.INACCURATE

    @property
    def built(self) -> bool:
        """Whether its engine was built for it in this run: neither kept from before nor another's, shared."""
        return "build" in self.seconds.keys() - set(self.cached)

    @property
    def eligible(self) -> bool:
        """Whether the route may win: it ran, was accurate enough and was timed."""
        return self.outcome is Outcome.ELIGIBLE and self.speed is not None

    @property
    def reason(self) -> str:
        """Why the route is excluded, or the sentence on its accuracy."""
        return self.failure.reason if self.failure is not None else self.verdict
