"""The contract of the command line: one JSON object on stdout, a sentence on stderr, an exit code."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from routetune.data import folder

from tests.loaded import loaded

DIGITS = str(folder() / "targets/digits.toml")
DEAD = {"PREFECT_API_URL": "http://127.0.0.1:9/api"}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["tune"], 2, "Missing argument"),
        (["tune", "--bogus", "x.toml"], 2, "No such option"),
        (["tune", "nowhere.toml"], 2, "does not exist"),
        (["status", "nowhere"], 2, "does not exist"),
        (["show", "nowhere.toml"], 2, "does not exist"),
        (["knobs", "-nope"], 2, "-nope"),
        (["knobs", "-zzz*"], 2, "matches"),
        (["expand", "-enable_mem_pattern=[on|of]"], 2, "of"),
        (["expand", "-" + "x" * 5000], 2, "xxx"),
        (["expand", "no such file"], 2, "cannot be read"),
        (["report", DIGITS, "--output", "/tmp"], 2, "'/tmp' is a directory"),
        (["metrics", DIGITS, "--file", "/tmp"], 2, "'/tmp' is a directory"),
        (["frontier", DIGITS, "--plot", "/tmp"], 2, "'/tmp' is a directory"),
        (["export", DIGITS, "--triton", DIGITS], 2, "is a file"),
    ],
)
def test_every_mistake_is_one_object_and_one_sentence(
    routetune: Any, arguments: list[str], code: int, words: str
) -> None:
    process = routetune(*arguments, "--json")
    assert process.returncode == code, process.stderr
    assert words in json.loads(process.stdout)["error"]
    assert process.stderr.startswith("routetune: ") and "Traceback" not in process.stderr


@pytest.mark.parametrize("command", ["tune", "serve"])
def test_a_server_that_does_not_answer_is_named_before_anything_starts(routetune: Any, command: str) -> None:
    process = routetune(command, DIGITS, "--json", **DEAD)
    assert process.returncode == 1
    assert "does not answer" in json.loads(process.stdout)["error"]
    assert "Traceback" not in process.stderr


def test_settings_that_prefect_refuses_are_bad_input(routetune: Any) -> None:
    process = routetune("tune", DIGITS, "--json", PREFECT_LOGGING_LEVEL="bogus")
    assert process.returncode == 2 and "Traceback" not in process.stderr
    assert "Prefect's settings are not valid" in json.loads(process.stdout)["error"]


@pytest.mark.parametrize("command", ["tune", "status"])
def test_a_path_that_is_not_utf_8_is_refused_before_a_server_is_started(
    routetune: Any, tmp_path: Path, command: str
) -> None:
    path = tmp_path / os.fsdecode(b"y\xfe.toml")
    path.write_text(Path(DIGITS).read_text())
    process = routetune(command, path, "--json")
    assert process.returncode == 2 and "is not UTF-8: rename" in process.stdout, process.stderr


def test_a_home_that_prefect_cannot_write_to_is_named_before_its_server_is_waited_for(routetune: Any) -> None:
    nowhere = {"PREFECT_HOME": "/proc/nowhere"}
    process = routetune("tune", DIGITS, "--json", **nowhere)
    assert process.returncode == 1
    assert "/proc/nowhere cannot be written to" in json.loads(process.stdout)["error"]
    checked = json.loads(routetune("doctor", "--json", **nowhere).stdout)
    assert "set PREFECT_HOME" in next(c["found"] for c in checked["checks"] if c["name"] == "Prefect API")


@pytest.mark.parametrize(
    ("to", "arguments", "code", "told"),
    [
        (">&-", "status {here}", 2, ""),
        (">&-", "status {here} --json", 2, ""),
        (">&-", "status {here}/nowhere --json", 2, "does not exist"),
        ("2>&-", "status {here}/nowhere", 2, ""),
        (">/dev/full", "status {here}", 1, "No space left on device"),
        (">/dev/full", "status {here} --json", 1, "No space left on device"),
        (">/dev/full", "status {here}/nowhere --json", 2, "does not exist"),
        ("| true", "status {here}", 0, ""),
    ],
)
def test_where_the_answer_cannot_go_the_work_is_still_done_and_told(
    tmp_path: Path, to: str, arguments: str, code: int, told: str
) -> None:
    (tmp_path / "one.toml").write_text("schema = 1\n")
    words = [sys.executable, "-m", "routetune.flows", *arguments.format(here=tmp_path).split()]
    process = subprocess.run(["sh", "-c", f"{shlex.join(words)} {to}"], capture_output=True, text=True)
    assert process.returncode == code, process.stderr
    assert told in process.stderr and "Traceback" not in process.stderr and "Exception" not in process.stderr


@pytest.mark.parametrize("coding", ["latin-1", "ascii", "utf-8"])
def test_what_an_encoding_lacks_is_written_by_number(routetune: Any, tmp_path: Path, coding: str) -> None:
    (tmp_path / "\N{GREEK SMALL LETTER EPSILON}.toml").write_text("schema = 1\n")
    process = routetune("status", tmp_path, PYTHONIOENCODING=coding)
    assert process.returncode == 2, process.stderr
    assert ("\N{GREEK SMALL LETTER EPSILON}" if coding == "utf-8" else "\\u03b5") in process.stdout


def test_what_only_prints_makes_no_store(routetune: Any, tmp_path: Path) -> None:
    process = routetune("export-trials", DIGITS, "--store", tmp_path / "nowhere")
    assert process.returncode == 2 and "no trials" in process.stderr
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.slow
def test_a_server_that_a_profile_names_is_asked_too(routetune: Any, tmp_path: Path) -> None:
    profile = f'[profiles.ours]\nPREFECT_API_URL = "{DEAD["PREFECT_API_URL"]}"\n'
    (tmp_path / "profiles.toml").write_text(f'active = "ours"\n{profile}')
    named = {"PREFECT_PROFILES_PATH": str(tmp_path / "profiles.toml")}
    process = routetune("tune", DIGITS, "--json", **named)
    assert process.returncode == 1, process.stderr
    assert f"{DEAD['PREFECT_API_URL']} does not answer" in json.loads(process.stdout)["error"]


def test_knobs_can_be_typed_as_arguments(routetune: Any, tmp_path: Path) -> None:
    found = json.loads(routetune("knobs", "-session.*", "--json").stdout)["tuner_options"]
    assert len(found) > 5 and all(one["option"].startswith("-session.") for one in found)
    routes = json.loads(routetune("expand", "-enable_mem_pattern=[on|off]", "--json").stdout)["routes"]
    assert routes == ["-enable_mem_pattern=on", "-enable_mem_pattern=off"]
    (tmp_path / "routes.txt").write_text("# as trtexec takes them\n-enable_mem_pattern=[on|off]\n")
    assert json.loads(routetune("expand", tmp_path / "routes.txt", "--json").stdout)["routes"] == routes


def test_looking_makes_no_store(routetune: Any, tmp_path: Path) -> None:
    process = routetune("status", DIGITS, "--store", tmp_path / "none", "--json")
    assert json.loads(process.stdout)["targets"][0]["state"] == "never tuned"
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "words", [["verify", DIGITS], ["records", DIGITS], ["gc"]], ids=lambda words: words[0]
)
def test_what_reads_files_alone_loads_no_engine_and_no_server(words: list[str], store_folder: Path) -> None:
    """Each of these costs a second or more of every call, on some machines, or in some version."""
    program = "from routetune.flows.cli import main; main()"
    heavy = ("onnx", "ml_dtypes", "onnxruntime", "polygraphy", "prefect", "torch", "numba")
    assert loaded(program, heavy, *words, "--store", str(store_folder))[0] == []
