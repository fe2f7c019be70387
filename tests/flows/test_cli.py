"""The contract of the command line: one JSON object on stdout, a sentence on stderr, an exit code."""

from __future__ import annotations

import json
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
    ],
)
def test_every_mistake_is_one_object_and_one_sentence(
    routetune: Any, arguments: list[str], code: int, words: str
) -> None:
    process = routetune(*arguments, "--json")
    assert process.returncode == code, process.stderr
    assert words in json.loads(process.stdout)["error"]
    assert process.stderr.startswith("routetune: ") and "Traceback" not in process.stderr


def test_a_server_that_does_not_answer_is_named_before_anything_starts(
    routetune: Any, tmp_path: Path
) -> None:
    process = routetune("tune", DIGITS, "--json", **DEAD)
    assert process.returncode == 1
    assert "does not answer" in json.loads(process.stdout)["error"]
    assert "Traceback" not in process.stderr


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
