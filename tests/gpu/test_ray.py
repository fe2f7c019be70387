"""A Ray cluster on this host, with a worker for each of its real GPUs, beside one GPU without Ray."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from routetune.tasks.targets import gpu

from conftest import Command
from tests.gpu.here import why_no_cuda
from tests.gpu.test_fleet import RESULTS, agree, tuned
from tests.ray_node import ray_node

GPUS = gpu.count(os.environ)
#: 32 routes.
ROUTES = [
    *("-use_tf32=[1|0]", "-prefer_nhwc=[0|1]", "-enable_cuda_graph=[0|1]", "-fuse_conv_bias=[0|1]"),
    "-graph_optimization_level=[all|basic]",
]

ray = pytest.importorskip("ray", reason="the extra [ray] is not installed")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.benchmark,
    pytest.mark.skipif(bool(why_no_cuda()), reason=why_no_cuda() or "can be used"),
]


@pytest.fixture
def cluster() -> Iterator[str]:
    """The address of a node with every GPU of this host, all of one kind, and the resource named after it."""
    with ray_node(str(gpu.describe(0, os.environ)["gpu.name"]), GPUS, num_gpus=GPUS) as address:
        yield address


def test_workers_of_a_cluster_find_what_one_gpu_finds_without(
    routetune: Command, tmp_path: Path, cluster: str
) -> None:
    alone = tuned(routetune, tmp_path / "alone", "cuda:0", ROUTES)
    spread = tuned(routetune, tmp_path / "ray", "cuda:0", ROUTES, "--ray", str(GPUS), RAY_ADDRESS=cluster)
    agree(alone, spread)
    trials = [one["trials"] for one in spread["devices"]]
    assert len(trials) == GPUS and all(trials), spread["devices"]
    again = routetune("tune", tmp_path / "ray/digits.toml", "--json", "--store", tmp_path / "ray/store")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["state"] == "fresh", "where it was tuned makes no difference"
    if os.environ.get("ROUTETUNE_WRITE_FIGURES"):
        pace = "per_minute_after_the_first"  # actors start before that
        told = ("environment", "route", "speed", "decision", "devices", "first_seconds", pace)
        found = {name: {key: one[key] for key in told} for name, one in (("alone", alone), ("ray", spread))}
        ratio = round(spread[pace] / alone[pace], 2)
        document = {"gpus": GPUS, "ray_version": ray.__version__, "ratio": ratio, **found}
        RESULTS.with_name("gpu_ray.json").write_text(json.dumps(document, indent=1) + "\n")
