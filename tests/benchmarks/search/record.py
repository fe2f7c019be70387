"""Record landscapes: tune targets exhaustively with the product itself, and keep what came of every route.

    python -m tests.benchmarks.search.record FOLDER [--anchor=ROUTE] TARGET.toml...

Needs neither a network nor a Prefect server. Each target leaves FOLDER/<name>.parquet; one that is there is
left alone. A recording that was killed goes on where it was: its trials are in FOLDER/stores/<name>.

Where the default route's own time is unsteady (on a GPU it may wait for launches, or search for algorithms
at each load), the speeds beside it are too. With an anchor, a route of the space whose time is steady, all
routes are timed beside that one, the default among them, and divided by what the default had: its
unsteadiness then moves all speeds alike, and none beside another.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from routetune.data.make import SAMPLES
from routetune.data.make import ensure as ensure_sample
from routetune.tasks.accuracy import check_accuracy
from routetune.tasks.bench import Bench, open_bench
from routetune.tasks.build import build_engines
from routetune.tasks.calibrate import calibrate, is_needed
from routetune.tasks.errors import BadInput, RoutetuneError
from routetune.tasks.expand import open_campaign
from routetune.tasks.reference import make_references
from routetune.tasks.routes.expression import parse_route
from routetune.tasks.routes.route import Route
from routetune.tasks.routes.space import open_space
from routetune.tasks.store import open_store
from routetune.tasks.targets.inputs import input_sets
from routetune.tasks.targets.schema import load_target
from routetune.tasks.timing import set_control, time_engines
from routetune.tasks.trial import Trial

from tests.benchmarks.search.landscape import Landscape, read, write
from tests.benchmarks.search.models import MODELS, ensure
from tests.benchmarks.search.precision import precision


def record(target: Path, folder: Path, keep: bool = False, anchor: str = "") -> Path:
    """Try every route of a target, and write its landscape.

    Args:
        keep: leave the store, so that what was found can be used again.
        anchor: the route to time all others beside, in place of the default route.

    Raises:
        RoutetuneError: the target cannot be tuned, its budget ended before all its routes were tried, or the
            anchor cannot be timed.
    """
    store = store_of(target, folder)
    with open_bench(target, open_store(store)) as bench:
        tried = _tune(bench, anchor)
        search = bench.subject.target.search
        space = open_space(search.routes, bench.database, search.exclude)
        if tried < (space.count() or space.size):
            raise RoutetuneError(f"target {target.stem}: only {tried} of {space.size} routes were tried")
        about = {
            "source": "recorded",
            "target": target.stem,
            "recorded": datetime.now(UTC).isoformat(timespec="seconds"),
            "environment": {name: str(value) for name, value in bench.subject.environment.fields.items()},
            "anchor": anchor,
        }
        path = folder / f"{target.stem}.parquet"
        trials = {trial.route: trial for trial in bench.trials.values()}
        trials = _beside_default(trials) if anchor else trials
        write(Landscape(target.stem, space, trials, about), path)
    if not keep:
        shutil.rmtree(store)
    return path


def store_of(target: Path, folder: Path) -> Path:
    """Where the trials of a recording are kept while it lasts."""
    return folder / "stores" / target.stem


def _tune(bench: Bench, anchor: str) -> int:
    """The flow's body without its end; returns how many routes were tried."""
    target = bench.subject.target
    if target.search.algorithm != "full":
        raise BadInput(f'target {target.name}: search.algorithm must be "full" to record a landscape')
    # The stages as plain functions: `fn` is what Prefect wraps.
    stages: list[Any] = [build_engines, check_accuracy, time_engines]
    make_references.fn(bench, input_sets(target, bench.subject.model))  # type: ignore[attr-defined]
    if is_needed(bench):
        calibrate.fn(bench, bench.references)  # type: ignore[attr-defined]
    anchored = _anchored(bench, anchor, stages[:-1]) if anchor else []
    campaign = open_campaign(bench)
    while trials := campaign.ask():
        for stage in stages:
            trials = stage.fn(bench, trials)
        campaign.tell(trials)
        if anchored:  # only after the default, which no route that is on record may make hopeless
            time_engines.fn(bench, anchored)  # type: ignore[attr-defined]
            anchored = []
        print(f"\r{target.name}: {len(bench.trials)} routes", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return len(bench.trials)


def _anchored(bench: Bench, anchor: str, stages: Sequence[Any]) -> list[Trial]:
    """The trial of the anchor, as what all others are timed beside."""
    trials: list[Any] = [parse_route(anchor, bench.database)]
    for stage in stages:
        trials = stage.fn(bench, trials)
    if trials[0].losses is None:
        raise RoutetuneError(f"the anchor {anchor!r} cannot be timed: {trials[0].reason}")
    set_control(bench, replace(trials[0], speed=1.0, low=1.0, high=1.0))
    return trials


def _beside_default(trials: dict[Route, Trial]) -> dict[Route, Trial]:
    """The trials with speeds that are 1 for the default route; intervals are those beside the anchor."""
    one = trials[Route()].speed
    if one is None or trials[Route()].alias_of:
        raise RoutetuneError(
            "the default route was not timed beside the anchor: choose one that differs from it"
        )

    def scaled(trial: Trial) -> Trial:
        if trial.route == Route():
            return replace(trial, speed=1.0, low=1.0, high=1.0)
        told = {name: getattr(trial, name) for name in ("speed", "low", "high")}
        return replace(trial, **{name: value and value / one for name, value in told.items()})

    return {route: scaled(trial) for route, trial in trials.items()}


def make_model(target: Path) -> None:
    """Make the model that a target names where it is one of ours and not there yet."""
    path = load_target(target).model
    if path.stem in MODELS:
        ensure(path.stem, path.parent)
    elif path.stem in SAMPLES:
        ensure_sample(path.stem)


def main(arguments: Sequence[str] | None = None) -> int:
    """Record the targets, one after the other; a target that fails leaves the others alone."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--anchor", default="", help="the route to time all beside, not the default route")
    parser.add_argument("targets", type=Path, nargs="+")
    given = parser.parse_args(arguments)
    failed = 0
    for target in given.targets:
        if (given.folder / f"{target.stem}.parquet").exists():
            continue
        started = time.monotonic()
        try:
            make_model(target)
            path = record(target, given.folder, anchor=given.anchor)
        except (RoutetuneError, OSError) as error:
            print(f"{target.stem}: {error}", file=sys.stderr)
            failed += 1
            continue
        told = precision(read(path))
        print(
            f"{path}: {time.monotonic() - started:.0f} s; {told['sharp_share']:.0%} of the speeds are sharp"
        )
        if not told["fit_for_regret"]:
            print(
                f"{target.stem}: too noisy to judge a search by; remove {path}, and record it again with "
                "nothing else on the machine, or with more timing.seconds",
                file=sys.stderr,
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
