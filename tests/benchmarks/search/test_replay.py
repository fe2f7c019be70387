"""Regret against builds of every strategy, on recorded landscapes and on synthetic ones held out.

pytest -m benchmark tests/benchmarks/search/test_replay.py

ROUTETUNE_BENCHMARK_RUNS sets the seeds (35), ROUTETUNE_BENCHMARK_LANDSCAPES how many synthetic ones (40),
ROUTETUNE_BENCHMARK_BUILDS how many builds each replay has (64).
Recorded landscapes are the Parquet files in tests/benchmarks/search/landscapes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.benchmarks.search import landscape, replay, rivals, synthetic

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
COMMAND = "pytest -m benchmark tests/benchmarks/search/test_replay.py"
RUNS = int(os.environ.get("ROUTETUNE_BENCHMARK_RUNS", replay.SEEDS))
COUNT = int(os.environ.get("ROUTETUNE_BENCHMARK_LANDSCAPES", "40"))
#: Landscapes from this seed on were not looked at while the searches were made.
HELD_OUT = 1000
BUILDS = int(os.environ.get("ROUTETUNE_BENCHMARK_BUILDS", replay.BUILDS))
#: Those that draw nothing are replayed once.
DRAWS_NOTHING = ("fast", "mixed")
NAMES = ("auto", "fast", "mixed", "model", "optuna", "racing", "random", "screening")
AT = (8, 16, 32)


def curves(landscapes: Sequence[Any]) -> dict[str, np.ndarray[Any, Any]]:
    """By strategy: regrets of shape (landscapes, seeds, BUILDS)."""
    found = {}
    for name in NAMES:
        opener = rivals.PlainOptuna if name == "optuna" else replay.ours(name)
        seeds = range(1 if name in DRAWS_NOTHING else RUNS)
        found[name] = replay.table(landscapes, opener, seeds, BUILDS)
    return found


def summary(regrets: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Percent: median, 95th percentile and mean with its interval over landscapes (bootstrap, 95 %)."""
    rows: dict[str, Any] = {}
    rng = np.random.default_rng(0)
    for builds in AT:
        each = regrets[:, :, builds - 1] * 100
        means = each.mean(axis=1)
        drawn = rng.choice(means, (2000, len(means))).mean(axis=1)
        rows[str(builds)] = {
            "median": round(float(np.median(each)), 2),
            "p95": round(float(np.percentile(each, 95)), 2),
            "mean": round(float(each.mean()), 2),
            "mean_interval": [round(float(np.percentile(drawn, at)), 2) for at in (2.5, 97.5)],
        }
    for percent in (1, 2):
        hit = regrets <= percent / 100
        first = np.where(hit.any(axis=2), hit.argmax(axis=2) + 1, regrets.shape[2] + 1)
        rows[f"builds to {percent} %"] = float(np.median(first))
    return rows


def report(landscapes: Sequence[Any], title: str, file: str) -> dict[str, Any]:
    found = curves(landscapes)
    default = np.array([one.default_is_eligible for one in landscapes])
    groups = {"all": default | True, "default eligible": default, "default not eligible": ~default}
    document = {
        "command": COMMAND,
        "landscapes": title,
        "count": len(landscapes),
        "seeds": RUNS,
        "builds": BUILDS,
        "regret_percent": {
            group: {name: summary(table[mask]) for name, table in found.items()}
            for group, mask in groups.items()
            if mask.any()
        },
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{file}.json").write_text(json.dumps(document, indent=1) + "\n")
    plot(found, title, RESULTS / f"{file}.png")
    return document


def plot(found: Mapping[str, np.ndarray[Any, Any]], title: str, path: Path) -> None:
    """Median and 95th percentile of the regret against builds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, sides = pyplot.subplots(1, 2, figsize=(11, 4), sharex=True)
    for name, table in found.items():
        flat = table.reshape(-1, table.shape[2]) * 100
        for side, percent in zip(sides, (50, 95), strict=True):
            builds = np.arange(1, flat.shape[1] + 1)
            side.plot(builds, np.maximum(np.percentile(flat, percent, axis=0), 0.05), label=name)
            side.set(yscale="log", xlabel="builds", ylabel="regret, %")
            side.set_title(f"{title}: {'median' if percent == 50 else '95th percentile'}", fontsize=9)
    sides[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


@pytest.mark.benchmark
def test_synthetic_landscapes_held_out() -> None:
    document = report(
        synthetic.landscapes(COUNT, HELD_OUT), f"{COUNT} synthetic landscapes", "search_synthetic"
    )
    found = document["regret_percent"]["all"]
    for builds in map(str, AT):
        for rival in ("mixed", "random"):
            assert found["auto"][builds]["mean"] < found[rival][builds]["mean"], (builds, rival)


@pytest.mark.benchmark
def test_recorded_landscapes() -> None:
    files = sorted((HERE / "landscapes").glob("*.parquet"))
    if not files:
        pytest.skip("none were recorded: python -m tests.benchmarks.search.record")
    found = [landscape.read(file) for file in files]
    document = report(found, f"{len(found)} recorded landscapes", "search_recorded")
    every = document["regret_percent"]["all"]
    for builds in map(str, AT):
        for rival in ("mixed", "random"):
            assert every["auto"][builds]["mean"] <= every[rival][builds]["mean"], (builds, rival)


@pytest.mark.benchmark
def test_recorded_landscapes_of_64_to_128_routes() -> None:
    """The goal: within 16 builds a median regret of at most 1 %, and a 95th percentile of at most 5 %."""
    read = [landscape.read(file) for file in sorted((HERE / "landscapes").glob("*.parquet"))]
    found = [one for one in read if 64 <= len(one.trials) <= 128]
    if not found:
        pytest.skip("none of that size were recorded: those of GPU targets are")
    document = report(found, f"{len(found)} recorded landscapes of 64-128 routes", "search_recorded_small")
    after = document["regret_percent"]["all"]["auto"]["16"]
    assert after["median"] <= 1.0 and after["p95"] <= 5.0


@pytest.mark.benchmark
def test_200_knobs_of_which_few_matter() -> None:
    """Synthetic: found within 60 builds in nine of ten seeds, "found" meaning within 1 % of the best."""
    found = {f"{harms} of 5 harm": _found(harms) for harms in (0, 1)}
    document = {
        "command": COMMAND,
        "landscapes": "synthetic: 200 on/off knobs; 5 matter, 2 crash, 3 break accuracy, 2 help as a pair",
        "seeds": RUNS,
        "share_found_within_builds": found,
    }
    (RESULTS / "search_wide.json").write_text(json.dumps(document, indent=1) + "\n")
    assert found["0 of 5 harm"]["60"] >= 0.9


def _found(harms: int) -> dict[str, float]:
    """Builds -> share of the seeds in which the best route was found by then."""
    regrets = []
    for seed in range(RUNS):
        wide = synthetic.Wide(seed, harms)
        regrets.append(replay.regrets(wide, replay.ours("auto")(wide.space, seed), 100))
    table = np.array(regrets)
    return {str(n): float((table[:, n - 1] <= 0.01).mean()) for n in (20, 40, 60, 80, 100)}
