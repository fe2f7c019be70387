"""Which values of knobs are to blame for routes that fail, told from the trials that there are anyway.

A setting that also stands in a route that passed is innocent, so every route that passes clears half of the
knobs of a random one. Where all are innocent one by one, pairs are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from routetune.tasks.routes.route import Route, spell
from routetune.tasks.trial import Outcome, Trial

Settings = frozenset[tuple[str, str]]

#: How a route can fail, and the outcomes of routes that did not fail so. The rest says nothing of a route.
_RAN = frozenset({Outcome.ELIGIBLE, Outcome.INACCURATE})
KINDS: Mapping[str, tuple[frozenset[Outcome], frozenset[Outcome]]] = {
    "does not run": (frozenset({Outcome.CRASHED, Outcome.FAILED}), _RAN),
    "is not accurate": (frozenset({Outcome.INACCURATE}), frozenset({Outcome.ELIGIBLE})),
}
#: Failing routes that must hold the settings: another knob beside them may save one, and of two that fail
#: only together each looks guilty at first.
PROOFS = 5
#: The most settings that are blamed together, and the checks that one failing route is worth.
MAX_TOGETHER = 2
MAX_CHECKS = 200_000


@dataclass(frozen=True, slots=True)
class Blame:
    """Settings that no route which passed had, and the routes that failed with them.

    Attributes:
        settings: knob and value, one or two of them.
        kind: one of KINDS.
        proofs: how many routes with them failed.
    """

    settings: Settings
    kind: str
    proofs: int

    def to_json(self) -> dict[str, Any]:
        return {"settings": spell(dict(sorted(self.settings))), "kind": self.kind, "routes": self.proofs}


def blamed(trials: Iterable[Trial], proofs: int = PROOFS) -> list[Blame]:
    """The smallest sets of settings that are the only explanation of a failure, in canonical order.

    Nothing is blamed for what the default route does too.

    Args:
        proofs: failing routes that must hold a set before it is named.
    """
    # An alias failed with the engine of another route, so it proves nothing more; that it passed, it did.
    told = [(frozenset(trial.route.settings), trial.outcome, trial.alias_of) for trial in trials]
    found: dict[Settings, Blame] = {}
    for kind, (bad, good) in KINDS.items():
        failed = [settings for settings, outcome, alias_of in told if outcome in bad and not alias_of]
        passed = [settings for settings, outcome, _ in told if outcome in good]
        if frozenset() not in passed:
            continue
        for settings in {only for route in failed if (only := _only_suspects(route, passed))}:
            count = sum(settings <= route for route in failed)
            if count >= proofs:
                found.setdefault(settings, Blame(settings, kind, count))
    return sorted(found.values(), key=lambda blame: sorted(blame.settings))


def _only_suspects(route: Settings, passed: Sequence[Settings]) -> Settings | None:
    """The smallest set of settings that no passing route holds, where there is only one of its size."""
    for size in range(1, MAX_TOGETHER + 1):
        if math.comb(len(route), size) * len(passed) > MAX_CHECKS:
            return None
        groups = (frozenset(group) for group in combinations(sorted(route), size))
        suspects = [group for group in groups if not any(group <= other for other in passed)]
        if suspects:
            return suspects[0] if len(suspects) == 1 else None
    return None


def holds(route: Route, blames: Iterable[Blame]) -> Blame | None:
    """The first blame whose settings are all in a route, or None."""
    settings = frozenset(route.settings)
    return next((blame for blame in blames if blame.settings <= settings), None)
