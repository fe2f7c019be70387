"""Record landscapes: tune targets exhaustively with the product itself, and keep what came of every route.

    python -m tests.benchmarks.search.record FOLDER TARGET.toml...

Needs neither a network nor a Prefect server. Each target leaves FOLDER/<name>.parquet; one that is there is
left alone. A recording that was killed goes on where it was: its trials are in FOLDER/stores/<name>.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
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
from routetune.tasks.routes.space import open_space
from routetune.tasks.store import open_store
from routetune.tasks.targets.inputs import input_sets
from routetune.tasks.targets.schema import load_target
from routetune.tasks.timing import time_engines

from tests.benchmarks.search.landscape import Landscape, read, write
from tests.benchmarks.search.models import MODELS, ensure
from tests.benchmarks.search.precision import precision


def record(target: Path, folder: Path, keep: bool = False) -> Path:
    """Try every route of a target, and write its landscape.

    Args:
        keep: leave the store, so that what was found can be used again.

    Raises:
        RoutetuneError: the target cannot be tuned, or its budget ended before all its routes were tried.
    """
    store = store_of(target, folder)
    with open_bench(target, open_store(store)) as bench:
        tried = _tune(bench)
        search = bench.subject.target.search
        space = open_space(search.routes, bench.database, search.exclude)
        if tried < (space.count() or space.size):
            raise RoutetuneError(f"target {target.stem}: only {tried} of {space.size} routes were tried")
        about = {
            "source": "recorded",
            "target": target.stem,
            "recorded": datetime.now(UTC).isoformat(timespec="seconds"),
            "environment": {name: str(value) for name, value in bench.subject.environment.fields.items()},
        }
        path = folder / f"{target.stem}.parquet"
        trials = {trial.route: trial for trial in bench.trials.values()}
        write(Landscape(target.stem, space, trials, about), path)
    if not keep:
        shutil.rmtree(store)
    return path


def store_of(target: Path, folder: Path) -> Path:
    """Where the trials of a recording are kept while it lasts."""
    return folder / "stores" / target.stem


def _tune(bench: Bench) -> int:
    """The flow's body without its end; returns how many routes were tried."""
    target = bench.subject.target
    if target.search.algorithm != "full":
        raise BadInput(f'target {target.name}: search.algorithm must be "full" to record a landscape')
    # The stages as plain functions: `fn` is what Prefect wraps.
    stages: list[Any] = [build_engines, check_accuracy, time_engines]
    make_references.fn(bench, input_sets(target, bench.subject.model))  # type: ignore[attr-defined]
    if is_needed(bench):
        calibrate.fn(bench, bench.references)  # type: ignore[attr-defined]
    campaign = open_campaign(bench)
    while trials := campaign.ask():
        for stage in stages:
            trials = stage.fn(bench, trials)
        campaign.tell(trials)
        print(f"\r{target.name}: {len(bench.trials)} routes", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return len(bench.trials)


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
    parser.add_argument("targets", type=Path, nargs="+")
    given = parser.parse_args(arguments)
    failed = 0
    for target in given.targets:
        if (given.folder / f"{target.stem}.parquet").exists():
            continue
        started = time.monotonic()
        try:
            make_model(target)
            path = record(target, given.folder)
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
