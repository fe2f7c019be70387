"""Ten workloads on a GPU: every route once, and beside that what a tune with few trials finds.

    python -m tests.gpu.sweep FOLDER [--seconds N] [--part PART]... [NAME...]

Each workload is exported, swept exhaustively by the product (a landscape for the replays of searches), and
then tuned by the command line with `algorithm = "auto"` and few trials: for a loose and a strict tolerance,
and for the loose one with float16 as one more knob, and with fused attention as another where there is any.
The tunes find builds and outputs of the sweep in the store; they time all that they try, beside the default
route. Each of these is a part (PART: sweep, 5e-2, 1e-4, float16 or fused), and goes to
FOLDER/gpu_workloads.json once it is done; what is there already is left alone, and so is a landscape,
FOLDER/<name>.parquet. After N seconds no further part is begun. Run it with nothing else on the machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

from routetune.tasks.canonical import number
from routetune.tasks.errors import RoutetuneError
from routetune.tasks.routes.route import Route

from tests.benchmarks.search import landscape as landscapes
from tests.benchmarks.search.precision import judged, precision
from tests.benchmarks.search.record import record, store_of
from tests.gpu import workloads

#: Of the largest difference beside the largest reference value. TF32 is within the first and over the second:
#: random networks of fifty layers carry its rounding to 2e-2, where trained ones have 1e-3.
TOLERANCES = {"5e-2": 5e-2, "1e-3": 1e-3, "1e-4": 1e-4}
LOOSE, STRICT = "5e-2", "1e-4"
SWEEP, HALF, FUSED = "sweep", "float16", "fused"
PARTS = (SWEEP, LOOSE, STRICT, HALF, FUSED)
COMMAND = (sys.executable, "-c", "from routetune.flows.cli import main; main()")
#: What a tune may try, of 64 or 128 routes.
TRIALS = 16
#: Knobs beside those swept, in tunes of their own for the loose tolerance, and what each of those may try.
MORE = {HALF: ("@fp16=[off|on]",), FUSED: ("@fp16=[off|on]", "@fused=[off|on]")}
MORE_TRIALS = 24


def sweep(name: str, folder: Path) -> dict[str, Any]:
    """The row of one workload without its tunes: what a sweep of its routes found."""
    began = time.monotonic()
    workloads.export(name, folder)
    exported = time.monotonic()
    recorded = folder / f"{name}.parquet"
    anchor = workloads.ANCHORS[workloads.WORKLOADS[name].routes]
    if not recorded.exists():
        record(folder / f"{name}.toml", folder, keep=True, anchor=anchor)
    found = landscapes.read(recorded)
    ended = time.monotonic()
    return {
        "workload": workloads.WORKLOADS[name].about,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": found.about["environment"],
        "anchor": found.about.get("anchor"),
        "seconds": {"export": round(exported - began), "sweep": round(ended - exported)},
        "routes": len(found.trials),
        "outcomes": dict(Counter(str(trial.outcome) for trial in found.trials.values())),
        "precision": precision(found),
        "rules": {rule: _rule(found, rule) for rule in TOLERANCES},
    }


def tune(name: str, folder: Path, part: str, row: dict[str, Any]) -> None:
    """Put what a tune finds into the row of its workload: for one tolerance, or with more knobs."""
    workloads.export(name, folder)
    found = landscapes.read(folder / f"{name}.parquet")
    if part in MORE:
        routes = (*_routes(found), *MORE[part])
        tuned = _tune(name, folder, part, TOLERANCES[LOOSE], routes, MORE_TRIALS)[1]
    else:
        tuned = _tuned(name, folder, part, judged(found, "rel_lInf", TOLERANCES[part]))
    place, key = _place(row, part)
    place[key] = tuned


def _place(row: dict[str, Any], part: str) -> tuple[dict[str, Any], str]:
    """Where in a row what a tune finds is, and under which key."""
    return (row, f"with {part}") if part in MORE else (row["rules"][part], "tuned")


def _lacks(name: str, row: dict[str, Any], part: str) -> bool:
    """Whether a part can be done, and was not yet or failed."""
    if part == SWEEP or "rules" not in row:
        return "rules" not in row
    if part == FUSED and not workloads.WORKLOADS[name].attends:
        return False
    place, key = _place(row, part)
    return bool(place.get("best", True)) and "failed" in place.get(key, {"failed": "not tried"})


def _rule(found: landscapes.Landscape, rule: str) -> dict[str, Any]:
    """The best of the sweep under one tolerance."""
    seen = judged(found, "rel_lInf", TOLERANCES[rule])
    best = max((t for t in seen.trials.values() if t.eligible and t.speed), key=_speed, default=None)
    return {
        "tolerance": {"rel_lInf": TOLERANCES[rule]},
        "default": {"loss": seen.trials[Route()].loss, "eligible": seen.default_is_eligible},
        "eligible": sum(trial.eligible for trial in seen.trials.values()),
        "best": best and _row(best),
        "excluded": _excluded(seen),
    }


def _tuned(name: str, folder: Path, rule: str, seen: landscapes.Landscape) -> dict[str, Any]:
    """What a tune with few trials found, beside what the sweep had of that route."""
    done, row = _tune(name, folder, rule, TOLERANCES[rule], _routes(seen))
    if not done:
        return row
    # The landscape writes knobs in the order of the target, the product in that of its database.
    words = set(row["route"].split())
    chosen = next(trial for route, trial in seen.trials.items() if set(str(route).split()) == words)
    best = max(seen.eligible)
    return row | {"in the sweep": _row(chosen), "of the best": round(_speed(chosen) / best, 4)}


def _routes(found: landscapes.Landscape) -> list[str]:
    """What was swept, as a target says it."""
    return [f"{term.knob.name}=[{'|'.join(term.values)}]" for term in found.space.terms]


def _tune(
    name: str, folder: Path, rule: str, tolerance: float, routes: Sequence[str], trials: int = TRIALS
) -> tuple[bool, dict[str, Any]]:
    """Whether a tune by the command line ended well, and its row."""
    target = folder / f"{name}_{rule}.toml"
    text = workloads.target(name, "auto", trials, routes).replace(
        f'name = "{name}"', f'name = "{name}_{rule}"'
    )
    target.write_text(text.replace("tolerance = 1e-3", f"tolerance = {tolerance}"))
    store = store_of(folder / f"{name}.toml", folder)
    words = ["tune", str(target), "--store", str(store), "--json"]
    began = time.monotonic()
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        return False, {"failed": done.returncode, "said": done.stderr[-1000:]}
    answer = json.loads(done.stdout)
    return True, {
        "route": answer["route"],
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began),
        "speed": answer["speed"],
        "decision": answer["decision"]["reason"],
        "tie": answer["decision"]["tie"],
        "trials": answer["counts"]["trials"],
        "from_store": answer["counts"].get("from_store"),
        "times": answer["times"],
    }


def _excluded(seen: landscapes.Landscape) -> list[dict[str, Any]]:
    """Why routes may not win, with how many and an example each."""
    reasons: dict[str, list[Any]] = {}
    for route, trial in seen.trials.items():
        if not trial.eligible:
            said = str(trial.outcome) if trial.failure is None else trial.reason
            reasons.setdefault(said, []).append((str(route), trial.loss))
    return [{"why": why, "routes": len(of), "such as": of[0]} for why, of in sorted(reasons.items())]


def _row(trial: Any) -> dict[str, Any]:
    told = ("speed", "low", "high", "loss")
    return {"route": str(trial.route)} | {name: getattr(trial, name) for name in told}


def _speed(trial: Any) -> float:
    return trial.speed or 0.0


def strict(value: Any) -> Any:
    """The same with every number as JSON can hold it: the loss of broken outputs may be no number."""
    if isinstance(value, dict):
        return {name: strict(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    return number(value) if isinstance(value, float) else value


def main(arguments: Sequence[str] | None = None) -> int:
    """Sweep and tune the workloads, part by part; one that fails leaves the others alone."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("names", nargs="*")
    given = parser.parse_intermixed_args(arguments)
    began, given_up = time.monotonic(), set[str]()
    results = given.folder / "gpu_workloads.json"
    command = "python -m tests.gpu.sweep FOLDER"
    document = json.loads(results.read_text()) if results.exists() else {"command": command, "workloads": {}}
    for name, part in product(given.names or workloads.WORKLOADS, given.part or PARTS):
        row = document["workloads"].get(name, {})
        if name in given_up or not _lacks(name, row, part) or time.monotonic() - began > given.seconds:
            continue
        try:
            if "rules" not in row:
                row |= sweep(name, given.folder)
            if _lacks(name, row, part):
                tune(name, given.folder, part, row)
        except (RoutetuneError, OSError, RuntimeError) as error:
            print(f"{name}, {part}: {error}", file=sys.stderr)
            given_up.add(name)
            continue
        document["workloads"][name] = row
        results.write_text(json.dumps(strict(document), indent=1, allow_nan=False) + "\n")
        print(f"{name}, {part}: done after {time.monotonic() - began:.0f} s", flush=True)
    return 1 if given_up else 0


if __name__ == "__main__":
    sys.exit(main())
