"""Which routes to choose among anew, where only the rule of the choice moved."""

from __future__ import annotations

import warnings

from routetune.tasks.bench import Bench
from routetune.tasks.build import is_kept
from routetune.tasks.errors import BadInput, NeedsBuild
from routetune.tasks.routes.expression import parse_route
from routetune.tasks.routes.route import Route
from routetune.tasks.status import Freshness
from routetune.tasks.trial import REPRODUCIBLE


def recorded_routes(bench: Bench, state: Freshness) -> list[Route] | None:
    """The published route and those of the run that the publication came from, where they need no build.

    None where the target asks for more than another choice, or where one of them would have to be built: then
    the ordinary tune does what is needed, with a warning that says why. Routes that timed out or were killed
    are left out: nothing is known of them, so they cannot be chosen without a build.
    """
    if state.cost != "reselect" or state.publication is None:
        return None
    try:
        return _kept(bench, str(state.publication.manifest["run"]), str(state.publication.manifest["route"]))
    except (NeedsBuild, BadInput) as why:
        warnings.warn(
            f"target {state.target!r} needs build: {why}; tuning it as usual, and building what is missing",
            stacklevel=2,
        )
        return None


def _kept(bench: Bench, run: str, published: str) -> list[Route]:
    table = bench.store.records.read(run)
    pairs = zip(table["route"].to_pylist(), table["outcome"].to_pylist(), strict=True)
    tried = [text for text, outcome in pairs if outcome in REPRODUCIBLE]
    if not tried:
        raise NeedsBuild(f"the records of its run {run} are gone")
    # An engine that was published before and has stayed was not among what that run has tried.
    routes = [parse_route(text, bench.database) for text in dict.fromkeys([*tried, published])]
    for route in routes:
        if not is_kept(bench, route):
            raise NeedsBuild(f"the engine of {route.label} is gone, or was built by other code")
    return routes
