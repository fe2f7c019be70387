"""Several real GPUs in one run, beside one of them alone: what is found, and how fast."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from routetune.data import folder
from routetune.tasks.store import open_store
from routetune.tasks.targets import gpu

from conftest import Command
from tests.gpu.here import why_no_cuda
from tests.gpu.test_tune import TARGET

RESULTS = Path(__file__).parents[1] / "benchmarks/results/gpu_fleet.json"
#: 64 routes.
ROUTES = [
    *("-use_tf32=[1|0]", "-prefer_nhwc=[0|1]", "-enable_cuda_graph=[0|1]", "-fuse_conv_bias=[0|1]"),
    "-graph_optimization_level=[all|extended|basic|disabled]",
]
GPUS = gpu.count(os.environ)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.benchmark,
    pytest.mark.skipif(bool(why_no_cuda()), reason=why_no_cuda() or "can be used"),
    pytest.mark.skipif(GPUS < 2, reason=f"NVML sees {GPUS} GPUs, and several are needed"),
]


def test_several_gpus_find_what_one_finds_in_less_time(routetune: Command, tmp_path: Path) -> None:
    alone = tuned(routetune, tmp_path / "one", "cuda:0", ROUTES)
    shared = tuned(routetune, tmp_path / "all", "cuda:all", ROUTES)
    agree(alone, shared)
    assert len(shared["devices"]) == GPUS and all(one["trials"] for one in shared["devices"])
    ratio = shared["per_minute"] / alone["per_minute"]
    if os.environ.get("ROUTETUNE_WRITE_FIGURES"):
        told = ("environment", "route", "speed", "decision", "devices", "per_minute")
        found = {name: {key: one[key] for key in told} for name, one in (("one", alone), ("all", shared))}
        RESULTS.write_text(json.dumps({"gpus": GPUS, "ratio": round(ratio, 2), **found}, indent=1) + "\n")
    assert ratio > 1.0 + 0.25 * (GPUS - 1), f"{GPUS} GPUs did {ratio:.2f} times the trials of one"


def tuned(
    routetune: Command, place: Path, device: str, routes: list[str], *words: str, **variables: str
) -> dict[str, Any]:
    """The answer of a tune in a folder and a store of its own, with its trials "per_minute", in all and
    after the first, and the "first_seconds" until that was done."""
    place.mkdir()
    for name in ("models/digits_cnn.onnx", "inputs/digits.npz"):
        shutil.copy(folder() / name, place)
    lines = [
        f"routes = {json.dumps(routes)}" if line.startswith("routes = ") else line
        for line in TARGET.format(tolerance=0.02).splitlines()
    ]
    (place / "digits.toml").write_text("\n".join([*lines, "[engine]", f'device = "{device}"', ""]))
    told = ("--json", "--store", place / "store", *words)
    process = routetune("tune", place / "digits.toml", *told, **variables)
    assert process.returncode == 0, process.stderr
    answer: dict[str, Any] = json.loads(process.stdout)
    store = open_store(place / "store")
    [run] = store.runs.list()
    ends = store.records.read(run.id)["finished_at"].to_pylist()
    first, last = ((end - run.started_at).total_seconds() for end in (min(ends), max(ends)))
    return answer | {
        "per_minute": round(60 * len(ends) / last, 1),
        "per_minute_after_the_first": round(60 * (len(ends) - 1) / (last - first), 1),
        "first_seconds": round(first, 1),
    }


def agree(alone: dict[str, Any], shared: dict[str, Any]) -> None:
    """The same routes with the same verdicts, and the same winner or one that is tied with it."""
    verdicts = [
        {one["route"]: (one["outcome"], one["loss"]) for one in each["trials"]} for each in (alone, shared)
    ]
    assert verdicts[0].keys() == verdicts[1].keys()
    differing = {route for route in verdicts[0] if verdicts[0][route][0] != verdicts[1][route][0]}
    assert not differing
    tied = {alone["route"], *alone["decision"]["tie"]} & {shared["route"], *shared["decision"]["tie"]}
    assert tied, f"{alone['route']!r} and {shared['route']!r} won, and no tie was declared"
