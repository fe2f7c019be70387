"""Trials of other tools into a real tune, and its own trials out again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import Command, answer_of
from tests.engines.small_models import mlp
from tests.quick import quick

LOG = [
    {"tuner_version": "another", "tuning_expr": "..."},
    {"iter": 0, "build_route": "-graph_optimization_level=all", "crash": False, "gpu_time": 0.9},
    {
        "iter": 1,
        "build_route": "-intra_op_num_threads=1 -graph_optimization_level=disabled",
        "crash": False,
        "error_message": "",
        "accuracy_loss": {"y": 0.0},
        "gpu_time": 0.1,
    },
    {"iter": 2, "build_route": "-copy_ppg=on", "crash": False, "gpu_time": 0.2},
    {"iter": 3, "build_route": "-intra_op_num_threads=1", "crash": True, "gpu_time": None},
]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    mlp().save(tmp_path)
    path = tmp_path / "mlp.toml"
    text = quick(
        "mlp",
        "mlp.onnx",
        "-graph_optimization_level=[disabled|basic|all] -intra_op_num_threads=[0|1]",
        shapes={"x": {"min": "1x16", "opt": "4x16", "max": "8x16"}},
        search={"algorithm": "fast"},
        budget={"trials": 3},
    )
    path.write_text(text)
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "tune.jsonl"
    path.write_text("\n".join(map(json.dumps, LOG)) + "\nnot json\n")
    return path


@pytest.mark.slow
def test_what_another_tool_found_is_tried_first_and_comes_out_again(
    routetune: Command, target: Path, log: Path
) -> None:
    imported = answer_of(routetune("import-trials", log, "--target", target, "--json"))
    assert (imported["trials"], imported["usable"], imported["crashed"]) == (4, 3, 1)
    assert imported["target"] == "mlp"
    line, version, knob = imported["problems"]
    assert line.startswith("line 6: ")
    assert version.startswith("the log is of tuner another, today's is ")
    assert knob.startswith("routes with -copy_ppg=on will not be tried: unknown knob '-copy_ppg'")

    tuned = answer_of(routetune("tune", target, "--json"))
    routes = [trial["route"] for trial in tuned["trials"]]
    assert routes[:2] == ["", "-graph_optimization_level=disabled -intra_op_num_threads=1"]
    assert len(routes) == 3  # the budget counts them like any other

    header, *lines = map(json.loads, routetune("export-trials", target).stdout.splitlines())
    assert list(header) == [
        "tuner_version",
        "accuracy_algorithm",
        "accuracy_parameter",
        "searching_algorithm",
        "command_line",
        "default_build_route",
        "tuning_expr",
        "files",
        "argv",
    ]
    assert "-graph_optimization_level=all" in header["default_build_route"].split()
    assert [line["build_route"] for line in lines] == routes
    for index, line in enumerate(lines):
        assert list(line) == ["iter", "build_route", "crash", "error_message", "accuracy_loss", "gpu_time"]
        assert line["iter"] == index
        assert 0 < line["gpu_time"] < 1000
        assert line["crash"] is False and line["error_message"] == ""
        assert 0 <= line["accuracy_loss"]["y"] <= 1e-3

    log.write_text(routetune("export-trials", target).stdout)
    again = answer_of(routetune("import-trials", log, "--target", target, "--json"))
    assert (again["trials"], again["usable"], again["problems"]) == (3, 3, [])


def test_a_file_without_trials_is_refused(routetune: Command, tmp_path: Path, target: Path) -> None:
    path = tmp_path / "empty.jsonl"
    for content in ("", "no log\n", '{"tuner_version": "1"}\n'):
        path.write_text(content)
        refused = routetune("import-trials", path)
        assert refused.returncode == 2
        assert "empty.jsonl holds no trial that could be used" in refused.stderr
    assert "no trials of target 'mlp'" in routetune("export-trials", target).stderr
