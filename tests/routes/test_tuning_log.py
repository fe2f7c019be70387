"""Logs as trtexec 11 and Torch-TensorRT write them, and what goes wrong in such files."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from routetune.tasks.routes.tuning_log import LoggedTrial, dump_log, parse_log, parse_tokens

HEADER = {
    "tuner_version": "2.19.15",
    "accuracy_algorithm": "l0",
    "accuracy_parameter": {"atol": 1e-05, "rtol": 1e-05, "epsilon": 0.5},
    "searching_algorithm": "fast",
    "command_line": "trtexec --onnx=model.onnx '--tuneBuildRoutes=-copy_ppg=[on|off]'",
    "default_build_route": "-copy_ppg=on",
    "tuning_expr": "-copy_ppg=[on|off]",
    "files": {"onnx": "/model.onnx"},
    "argv": ["trtexec", "--onnx=/model.onnx"],
}


def line(iteration: int = 0, route: str = "-copy_ppg=on", **fields: object) -> str:
    content = {
        "iter": iteration,
        "build_route": route,
        "crash": False,
        "error_message": "",
        "accuracy_loss": {"y": 0.25},
        "gpu_time": 0.5,
    }
    return json.dumps(content | fields)


def test_a_log_of_trtexec() -> None:
    text = "\n".join(
        [
            json.dumps(HEADER),
            line(0),
            line(1, "-copy_ppg=off -b=2", gpu_time=0.25),
            line(2, "", crash=True, error_message="SIGSEGV", accuracy_loss=None, gpu_time=None),
            line(3, error_message="accuracy"),
            "",
        ]
    )
    log = parse_log(text)
    assert log.header == HEADER
    assert log.problems == ()
    assert log.trials == (
        LoggedTrial({"-copy_ppg": "on"}, 0.5, losses={"y": 0.25}),
        LoggedTrial({"-copy_ppg": "off", "-b": "2"}, 0.25, losses={"y": 0.25}),
        LoggedTrial({}, None, crashed=True, error="SIGSEGV"),
        LoggedTrial({"-copy_ppg": "on"}, 0.5, error="accuracy", losses={"y": 0.25}),
    )
    assert [trial.usable for trial in log.trials] == [True, True, False, False]


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ('{"iter": 7', "line 2: "),
        ("[1]", "line 2: expected an object, found list"),
        ('{"iter": 7}', '"build_route" must be a string, found None'),
        (line(7, "copy_ppg=on"), "token 'copy_ppg=on' of the route"),
        (line(7, "-copy_ppg"), "token '-copy_ppg' of the route"),
        (line(7, "-a=1 -a=2"), "knob -a is in the route twice"),
    ],
)
def test_a_line_that_cannot_be_used_is_named_and_the_others_are_used(bad: str, named: str) -> None:
    log = parse_log("\n".join([json.dumps(HEADER), bad, line(8)]))
    [problem] = log.problems
    assert problem.startswith("line 2: ") and named in problem
    assert len(log.trials) == 1


@pytest.mark.parametrize(
    ("fields", "named", "usable"),
    [
        ({"gpu_time": 0}, "'gpu_time\" 0 is no time'".strip("'"), False),
        ({"gpu_time": -1.5}, '"gpu_time" -1.5 is no time', False),
        ({"gpu_time": math.nan}, '"gpu_time" nan is no time', False),
        ({"gpu_time": "fast"}, "\"gpu_time\" 'fast' is no time", False),
        ({"gpu_time": True}, '"gpu_time" True is no time', False),
        ({"accuracy_loss": {"y": "low"}}, "\"accuracy_loss\" of 'y' is 'low'", True),
        ({"crash": "yes"}, "\"crash\" is 'yes'", False),
    ],
)
def test_a_field_that_cannot_be_used_is_named(fields: dict[str, object], named: str, usable: bool) -> None:
    log = parse_log(line(**fields))
    assert named in log.problems[0]
    assert [trial.usable for trial in log.trials] == [usable]


def test_what_tools_do_differently() -> None:
    """No header; one loss for all outputs; an iteration written again after a resume; no message at all."""
    log = parse_log("\n".join([line(0, accuracy_loss=0.5), line(0, gpu_time=0.25, error_message=None)]))
    assert log.header == {} and log.problems == ()
    assert log.trials == (LoggedTrial({"-copy_ppg": "on"}, 0.25, losses={"y": 0.25}),)
    assert parse_log(line(accuracy_loss=0.5)).trials[0].losses == {"": 0.5}


def test_nothing_is_a_log_without_trials() -> None:
    assert parse_log("") == parse_log("\n\n")
    assert parse_log("").trials == ()
    assert parse_log(json.dumps(HEADER)).header == HEADER


NAMES = st.from_regex(r"-[a-z:_]{1,8}", fullmatch=True)
TRIALS = st.lists(
    st.builds(
        LoggedTrial,
        st.dictionaries(NAMES, st.from_regex(r"[a-z0-9]{1,4}", fullmatch=True), max_size=4),
        st.floats(min_value=1e-6, max_value=1e6),
        st.just(False),
        st.text(max_size=10),
        st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False, allow_infinity=False), max_size=3),
    ),
    max_size=5,
)


@given(TRIALS)
def test_what_is_written_is_read_again(trials: list[LoggedTrial]) -> None:
    log = parse_log(dump_log(HEADER, trials))
    assert (log.header, list(log.trials), log.problems) == (HEADER, trials, ())


@given(st.text())
def test_no_text_breaks_the_reader(text: str) -> None:
    parse_log(text)


def test_tokens_of_every_family() -> None:
    assert parse_tokens(" -a=1  +b=x=y\t@c=on ") == {"-a": "1", "+b": "x=y", "@c": "on"}
