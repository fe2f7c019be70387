"""Which route wins: the finalists of the screening, and the decision after their duel.

Screening only ranks: the best of many candidates looks better than it is. The decision rests on fresh
samples, with one confidence for all comparisons of the duel together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from routetune.tasks.errors import BadInput, NoEligibleRoute
from routetune.tasks.routes.route import Route
from routetune.tasks.trial import Outcome, Trial
from routetune.tasks.verdicts.intervals import Estimate, estimate, needed


@dataclass(frozen=True, slots=True)
class DuelResult:
    """One finalist's duel with the control.

    Attributes:
        route: the route's canonical string.
        simplicity: how many knobs it names; fewer is simpler.
        log_ratios: log(control time / its time), one per fresh load, the loads in the same order for all.
    """

    route: str
    simplicity: int
    log_ratios: Sequence[float]


@dataclass(frozen=True, slots=True)
class Decision:
    """Who wins and why.

    Attributes:
        winner: the route's canonical string; "" is the default route.
        kind: "winner" (faster than the default by the gain asked for), "default" (nothing was), or "fastest
            eligible" (the default is not eligible, so that speed beside it decides nothing).
        reason: one sentence.
        estimate: the winner's speed in the duel; None for the default, which is its own control.
        tie: routes that cannot be told from the fastest, the winner among them; empty where there is no tie.
        explanations: for every other finalist, why it lost.
    """

    winner: str
    kind: str
    reason: str
    estimate: Estimate | None = None
    tie: list[str] = field(default_factory=list)
    explanations: dict[str, str] = field(default_factory=dict)


#: What a load does to a speed: no interval of the rounds of one load knows of it, so it is added to them.
LOAD_SHIFT = 0.01


def finalists(trials: Sequence[Trial], k: int, at_least: float = 0.0) -> list[Trial]:
    """The trials that may be the fastest, as far as the screening can tell: at most k, best first.

    Those are the eligible ones whose upper bound, raised by LOAD_SHIFT since each was loaded only once,
    reaches the lower bound of the best one. Routes with one
    engine count once, as the one that was measured; so do those that share the default route's engine, which
    is the control and no finalist. An abandoned candidate never is one. Equal speeds: the simpler route
    first, then by its string.

    Args:
        at_least: leave out those whose upper bound, raised likewise, is below this speed: they could not win.
    """
    controls = {trial.alias_of or trial.route.id for trial in trials if trial.route.is_default}
    ranked = sorted(
        (trial for trial in trials if _may_win(trial) and trial.route.id not in controls),
        key=lambda trial: (-_speed(trial), *simplicity(trial.route)),
    )
    if not ranked:
        return []
    bound = max(ranked[0].low or 0.0, at_least)
    reaching = [trial for trial in ranked if _reach(trial) >= bound]
    return reaching[:k]


def plainest(trials: Sequence[Trial], control: Route) -> list[Trial]:
    """The trials, each that was measured under the simplest of the routes that have its engine.

    What was tried first may name knobs that did nothing. The control keeps its own.
    """
    routes: dict[str, Route] = {}
    for trial in trials:
        first = trial.alias_of or trial.route.id
        if trial.outcome is Outcome.ELIGIBLE:
            routes[first] = min(routes.get(first, trial.route), trial.route, key=simplicity)
    return [
        replace(trial, route=routes.get(trial.route.id, trial.route))
        if trial.alias_of is None and trial.route != control
        else trial
        for trial in trials
    ]


def comparisons(finalists: int) -> int:
    """How many intervals a duel needs at once: each finalist with the control and with each other.

    Every pair counts, since only the samples say which of them is the fastest.
    """
    return max(1, finalists * (finalists + 1) // 2)


def loads_needed(finalists: int, confidence: float, spare: int = 0) -> int:
    """The smallest number of loads with which a duel of so many finalists can have a winner.

    Args:
        spare: how many wild loads may go against it.
    """
    return needed(confidence, comparisons(finalists), spare)


def decide(duels: Sequence[DuelResult], min_gain: float, confidence: float, barred: str = "") -> Decision:
    """The winner of a duel.

    A finalist clears if the lower bound of its speed is above 1 and at least 1 + `min_gain`. Of those that
    clear, the ones that cannot be told from the fastest are a tie, which the simplest route wins, then the
    first by its string. Nothing clears: the default stays. Where the default is barred it cannot win,
    and the gain beside it does not matter: the fastest finalist wins, ties broken alike.

    Args:
        duels: one per finalist; where another route than the default is the control and may win, it is one of
            them, with log ratios of 0.
        min_gain: 0.01 asks for one per cent.
        confidence: of all intervals of the duel together.
        barred: why the default may not win, as in "the default route is not eligible"; empty where it may.

    Raises:
        NoEligibleRoute: no finalist has a usable duel, and the default is barred.
        BadInput: a route twice, `min_gain` out of range.
    """
    _check(duels, min_gain)
    usable = [duel for duel in duels if duel.log_ratios and all(map(math.isfinite, duel.log_ratios))]
    explanations = {duel.route: "its duel has no usable times" for duel in duels if duel not in usable}
    duel = _Duel(usable, confidence)
    if not barred:
        return _beside_default(duel, min_gain, explanations)
    if not usable:
        raise NoEligibleRoute(f"the default route {barred}, and no finalist has a usable duel")
    return _without_default(duel, barred, explanations)


class _Duel:
    """The finalists with their intervals, all at one simultaneous confidence."""

    def __init__(self, duels: Sequence[DuelResult], confidence: float) -> None:
        self.results = {duel.route: duel for duel in duels}
        self.confidence = confidence
        self.comparisons = comparisons(len(duels))
        self.estimates = {
            duel.route: estimate(duel.log_ratios, confidence, self.comparisons) for duel in duels
        }

    def fastest(self, routes: Sequence[str]) -> str:
        return min(routes, key=lambda route: (-self.estimates[route].ratio, *self.simplicity(route)))

    def simplicity(self, route: str) -> tuple[int, str]:
        return self.results[route].simplicity, route

    def tied(self, fastest: str, routes: Sequence[str]) -> list[str]:
        """The routes that cannot be told from the fastest, itself included.

        With too few loads for any interval there are none: then only the medians can say anything.
        """
        against = {route: self.versus(fastest, route) for route in routes if route != fastest}
        return [fastest, *(r for r, found in against.items() if found.low <= 1 and found.width < math.inf)]

    def versus(self, one: str, other: str) -> Estimate:
        """The speed of `one` beside `other`, load by load, so that what a load does to both cancels.

        A load that only one of them has seen is left out.
        """
        pair = zip(self.results[one].log_ratios, self.results[other].log_ratios, strict=False)
        return estimate([a - b for a, b in pair], self.confidence, self.comparisons)

    @property
    def few_loads(self) -> str:
        """A clause that says when there are too few loads for any winner, else empty."""
        loads = min((len(duel.log_ratios) for duel in self.results.values()), default=0)
        wanted = needed(self.confidence, self.comparisons)
        if not self.results or loads >= wanted:
            return ""
        return f"; {loads} loads are too few to tell: {len(self.results)} finalists need {wanted}"


def _beside_default(duel: _Duel, min_gain: float, explanations: dict[str, str]) -> Decision:
    needs = f"1 + min_gain = {1 + min_gain:g}"
    clear = []
    for route, found in duel.estimates.items():
        if found.low > 1 and found.low >= 1 + min_gain:
            clear.append(route)
        else:
            explanations[route] = f"{found}: its lower bound does not clear {needs}"
    if clear:
        winner, tie = _settle(duel, clear, explanations)
        reason = f"{winner} wins with {duel.estimates[winner]} beside the default route, which clears {needs}"
        return _decision(duel, winner, "winner", reason, tie, explanations)
    if duel.estimates:
        best = duel.fastest(list(duel.estimates))
        why = (
            f"the lower bound of no finalist clears {needs}; "
            f"the fastest, {best}, has {duel.estimates[best]}{duel.few_loads}"
        )
    else:
        why = f"no other route got as far as a duel, in which its lower bound would have to clear {needs}"
    return Decision("", "default", f"the default route wins: {why}", None, [], explanations)


def _without_default(duel: _Duel, barred: str, explanations: dict[str, str]) -> Decision:
    winner, tie = _settle(duel, list(duel.estimates), explanations)
    found = duel.estimates[winner]
    slower = ", though it is slower than the control" if found.ratio < 1 else ""
    reason = (
        f"{winner} wins as the fastest eligible route{slower}: the default route {barred} and "
        f"cannot win; beside the control it has {found}{duel.few_loads}"
    )
    return _decision(duel, winner, "fastest eligible", reason, tie, explanations)


def _settle(duel: _Duel, routes: list[str], explanations: dict[str, str]) -> tuple[str, list[str]]:
    """The winner among routes that may win, and the tie it is from; says why the others lost."""
    fastest = duel.fastest(routes)
    tied = sorted(duel.tied(fastest, routes), key=duel.simplicity)
    winner = tied[0]
    for route in routes:
        found = duel.estimates[route]
        if route in tied[1:]:
            simpler = duel.results[winner].simplicity < duel.results[route].simplicity
            why = "the simpler route" if simpler else "as simple, and first by its string"
            explanations[route] = f"{found}: tied with {winner}, which is {why}"
        elif route != winner:
            explanations[route] = f"{found}: {fastest} is {duel.versus(fastest, route)} as fast"
    return winner, tied if len(tied) > 1 else []


def _decision(
    duel: _Duel, winner: str, kind: str, reason: str, tie: list[str], explanations: Mapping[str, str]
) -> Decision:
    if tie:
        others = ", ".join(route for route in tie if route != winner)
        reason += f"; tied with {others}, none of which is simpler"
    return Decision(winner, kind, reason, duel.estimates[winner], tie, dict(explanations))


def _check(duels: Sequence[DuelResult], min_gain: float) -> None:
    if not 0 <= min_gain < math.inf:
        raise BadInput(f"min_gain must be a finite number >= 0, not {min_gain}")
    for one, other in combinations([duel.route for duel in duels], 2):
        if one == other:
            raise BadInput(f"route {one!r} is in the duel twice")


def simplicity(route: Route) -> tuple[int, str]:
    """What routes are sorted by, the simplest first: how many knobs they name, then their text."""
    return len(route), str(route)


def _may_win(trial: Trial) -> bool:
    """Measured itself, to the end, with a speed that can be one."""
    measured = trial.eligible and trial.alias_of is None and not trial.abandoned
    return measured and math.isfinite(_speed(trial)) and _speed(trial) > 0


def _reach(trial: Trial) -> float:
    """The fastest that it may be."""
    return math.inf if trial.high is None else trial.high * (1 + LOAD_SHIFT)


def _speed(trial: Trial) -> float:
    return math.nan if trial.speed is None else trial.speed
