"""What is pinned, and `gc` beside the product at work."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from routetune.data import folder
from routetune.tasks.collect import byte_count, collect, frontier_engines
from routetune.tasks.errors import BadInput
from routetune.tasks.store import open_store

from tests.quick import quick


@pytest.mark.parametrize("within", [1, 2, 5])
def test_every_engine_that_some_tolerance_makes_a_finalist(within: int) -> None:
    draw = random.Random(within)
    rows: list[dict[str, Any]] = [
        {
            "route": f"-a={number}" if number else "",
            "alias_of": draw.choice([None, None, None, "1"]),
            "engine": str(number),
            "loss": draw.choice([0.0, 1e-3, draw.random(), draw.random(), float("nan"), None]),
            "speed": draw.choice([draw.random(), draw.random(), 0.5, None]),
            "low": 0.1,
            "high": 2.0,
        }
        for number in range(200)
    ]
    able = [
        row
        for row in rows
        if row["route"] and row["loss"] is not None and row["speed"] and not row["alias_of"]
    ]
    expected: set[str] = set()
    for epsilon in [row["loss"] for row in able]:
        eligible = [row for row in able if row["loss"] <= epsilon]
        bound = sorted((row["speed"] for row in eligible), reverse=True)[:within]
        expected |= {row["engine"] for row in eligible if row["speed"] >= bound[-1]} if bound else set()
    found = frontier_engines(rows, within)
    # Of equal speeds at the edge all stay; those that a stricter ε let in may be overtaken since.
    assert expected == set(found) and 0 < len(found) < len(able)


def test_sizes_as_people_write_them() -> None:
    assert [byte_count(text) for text in ("1000", "20GB", "5 GiB", "1.5k")] == [
        1000,
        20 * 10**9,
        5 * 2**30,
        1500,
    ]
    for text in ("", "20 parsecs", "-1", "nan"):
        with pytest.raises(BadInput, match="is no size"):
            byte_count(text)


COLLECTOR = """
import select
import sys
from routetune.tasks import collect
collect.GRACE = 0.05  # of a clock whose ticks are some milliseconds; what protects is the run's start
print(0, flush=True)
while not select.select([sys.stdin], [], [], 0.02)[0]:
    found = collect.collect(sys.argv[1], max_size=0)
    print(found["collected"]["engines"]["files"])
"""


@pytest.mark.slow
def test_a_tune_loses_nothing_while_its_store_is_collected(
    tmp_path: Path, store_folder: Path, routetune: Any, prefect_url: str
) -> None:
    shutil.copy(folder() / "models/digits_cnn.onnx", tmp_path)
    target = tmp_path / "beside.toml"
    routes = "-graph_optimization_level=[disabled|basic|extended] -ConvBNFusion=[on|off]"
    target.write_text(quick("beside", "digits_cnn.onnx", routes, shapes={"x": "8x1x8x8"}))
    summary = json.loads(routetune("tune", target, "--json", PREFECT_API_URL=prefect_url).stdout)
    assert summary["counts"]["trials"] == 7
    gone = 0
    for _ in range(2):
        for path in store_folder.rglob("*"):
            os.utime(path, (1e9, 1e9))
        command = [sys.executable, "-c", COLLECTOR, str(store_folder)]
        collector = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert collector.stdout and collector.stdout.readline() == "0\n"
        process = routetune("tune", target, "--force", "--json", PREFECT_API_URL=prefect_url)
        counts = [int(line) for line in collector.communicate("stop\n", timeout=60)[0].split()]
        assert collector.returncode == 0 and len(counts) > 10
        gone += sum(counts)
        assert process.returncode == 0 and "counted as missing" not in process.stderr, process.stderr
        again = json.loads(process.stdout)
        assert {trial["outcome"] for trial in again["trials"]} == {"eligible"}
    assert gone > 0
    store = open_store(store_folder)
    (key,) = store.publications.environments("beside")
    assert store.publications.verify("beside", key) == []
    table = routetune("gc", "--dry-run", "--max-size", "1kB")
    assert table.returncode == 0 and "would go" in table.stdout and "published 1" in table.stdout


@pytest.mark.parametrize("thing", ["folder", "pipe", "link"])
def test_pins_that_cannot_be_read_are_refused_by_name_and_a_link_is_followed(
    tmp_path: Path, thing: str
) -> None:
    store = open_store(tmp_path / "store")
    pins = store.root / "pins"
    if thing == "folder":
        pins.mkdir()
    elif thing == "pipe":
        os.mkfifo(pins)
    else:
        (tmp_path / "mine").write_text("# nothing yet\n")
        pins.symlink_to(tmp_path / "mine")
        assert collect(store.root)["pinned"] is not None
        return
    with pytest.raises(BadInput, match="pins"):
        collect(store.root)
