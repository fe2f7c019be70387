"""The answers of `frontier` and `epsilon` from records whose losses and speeds are known."""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from routetune.tasks.errors import BadInput
from routetune.tasks.report import dial
from routetune.tasks.report.epsilon import epsilon
from routetune.tasks.report.staircase import frontier
from routetune.tasks.store import Store, open_store

from tests.report.planted import crashed, record, sixteen, trial, write_target


@pytest.fixture
def store(store_folder: Path) -> Store:
    return open_store(store_folder)


def test_sixteen_placements_give_the_staircase_that_was_planted(store: Store, tmp_path: Path) -> None:
    path = write_target(tmp_path)
    failed = crashed({"@p0": "on", "@p9": "on"}, "crashed (SIGSEGV) while building")
    record(path, store, [*sixteen(), failed])
    found = frontier(path, store, None, [0.0, 0.1, 0.25, math.inf], None)
    steps = found["steps"]
    assert [step["eligible"] for step in steps] == list(range(16, 0, -1))
    assert [step["epsilon"] for step in steps] == [at / 32 for at in range(15, -1, -1)]
    assert [step["fastest"] for step in steps[:3]] == ["@p1=on @p2=on @p3=on"] * 2 + ["@p1=on @p2=on"]
    assert steps[-1]["fastest"] == "" and steps[-1]["leaving"] == [""]
    fastest = {one["epsilon"]: (one["eligible"], one["fastest"]) for one in found["answers"]}
    assert fastest == {
        0.0: (1, ""),
        0.1: (4, "@p1=on"),
        0.25: (9, "@p1=on @p2=on"),
        "inf": (16, "@p1=on @p2=on @p3=on"),
    }
    speed = found["answers"][1]["speed"]
    assert (speed["ratio"], speed["low"], speed["high"]) == (2.0, 2.0 * 0.99, 2.0 * 1.01)
    assert [one["top1"] for one in found["answers"]] == [1.0, 1 - 0.0625, 1 - 0.1875, 1 - 0.4375]
    assert [one["outcome"] for one in found["never"]] == ["crashed"] and found["runnable"] == 16


def test_other_metrics_are_in_the_same_records(store: Store, tmp_path: Path) -> None:
    path = write_target(tmp_path)
    record(path, store, sixteen())
    squares = frontier(path, store, "l2", [], None)
    assert [step["epsilon"] for step in squares["steps"]] == [(at / 32) ** 2 for at in range(15, -1, -1)]
    with pytest.raises(BadInput, match="accuracy_drop"):
        frontier(path, store, "accuracy_drop", [], None)


def test_aliases_never_win_and_what_was_given_up_does_where_the_faster_one_drops_out(
    store: Store, tmp_path: Path
) -> None:
    path = write_target(tmp_path)
    trials = [
        trial({}, 0.0, 1.0),
        trial({"-a": "1"}, 0.0, 3.0, alias_of="x"),
        trial({"-b": "1"}, 0.0, 2.0, abandoned=True),
        trial({"-c": "1"}, 0.0, 1.5),
        trial({"-d": "1"}, 0.5, 6.5),
    ]
    record(path, store, trials)
    steps = frontier(path, store, None, [], None)["steps"]
    assert [(step["eligible"], step["fastest"]) for step in steps] == [(5, "-d=1"), (4, "-b=1")]


def test_what_a_step_costs_in_the_task(store: Store, tmp_path: Path) -> None:
    path = write_target(tmp_path)
    half = trial({"@fp16": "on", "-intra_op_num_threads": "1"}, 2**-10, 1.01)
    record(path, store, [*sixteen(), half])
    found = epsilon(path, store, None, None)
    assert found["labels"] == {"rows": 32, "sets": {"digits": 32}, "top1": 1.0}
    by_epsilon = {step["epsilon"]: (step["top1"], step["lowest_top1"]) for step in found["steps"]}
    assert by_epsilon[0.25] == (1 - 0.1875, 0.75) and by_epsilon[0.0] == (1.0, 1.0)
    marks = {one["name"]: (one["route"], one["loss"]) for one in found["marks"]}
    assert marks["the default route, run twice"] == ("", 0.0)
    assert marks["the default route"] == ("", 0.0)
    assert marks["float16 throughout"] == ("@fp16=on -intra_op_num_threads=1", 2**-10)
    assert marks["most places in 8 bits"] == ("@p0=on @p1=on @p2=on @p3=on", 15 / 32)
    assert marks["8 bits, scaled while running"] == (None, None)


def test_the_run_is_the_latest_that_ended_here_unless_named(store: Store, tmp_path: Path) -> None:
    path = write_target(tmp_path)
    with pytest.raises(BadInput, match="routetune tune"):
        frontier(path, store, None, [], None)
    _, first = record(path, store, sixteen())
    _, second = record(path, store, sixteen()[:4])
    assert frontier(path, store, None, [], None)["run"] == second
    assert frontier(path, store, None, [], first)["trials"] == 16
    path.write_text(path.read_text().replace("tolerance = 0.25", "tolerance = 0.5\natol = 1e-3"))
    assert frontier(path, store, None, [], None)["moved"] == ["target.accuracy.atol: 1e-05 -> 0.001"]


def test_the_commands_answer_as_json_and_as_tables(store: Store, tmp_path: Path, routetune: Any) -> None:
    path = write_target(tmp_path)
    record(path, store, sixteen())
    plot = tmp_path / "plot.svg"
    process = routetune("frontier", path, "--epsilon", "0.1", "--epsilon", "inf", "--plot", plot, "--json")
    assert [one["eligible"] for one in json.loads(process.stdout)["answers"]] == [4, 16], process.stderr
    assert plot.read_text().startswith("<?xml") and "ε, bound of lInf" in plot.read_text()
    table = io.StringIO()
    dial.frontier(frontier(path, store, None, [], None), Console(file=table, width=200))
    assert re.search(r"fastest +its loss +speed +clears +its top-1", table.getvalue())
    assert "top-1 accuracy over 32 labelled rows (32 of digits)" in table.getvalue()
    shown = routetune("epsilon", path).stdout
    step = re.escape("2.750x [2.723, 2.777]")
    assert re.search(rf"@p1=on @p2=on @p3=on +0\.4375 +{step} +yes +56\.25% +53\.12%", shown), shown
    for arguments in (["--epsilon", "-1"], ["--plot", "plot.bmp"]):
        process = routetune("frontier", path, *arguments)
        assert process.returncode == 2 and "Traceback" not in process.stderr, arguments
