from __future__ import annotations

from pathlib import Path

import pytest
from routetune.tasks.errors import BadInput
from routetune.tasks.store import names

GOOD = {
    names.digest: ["0123456789abcdef" * 4],
    names.environment: ["0123456789abcdef", "ab" * 32, "01234567"],
    names.run: ["20261130T024500Z-1a2b3c4d"],
    names.target: ["digits", "a", "0.b_c-d", "x" * 200],
    names.file: ["engine.onnx", "engine.plan"],
}
# Each is a way out of a folder, a hidden or unfinished file, or something that only looks like a name.
NEVER = [
    "",
    ".",
    "..",
    "/",
    "a/b",
    "../" + "a" * 61,
    ".tmp-0",
    "-x",
    "a\0",
    "a\n",
    "a ",
    "é",
    "x" * 201,
    None,
    7,
    b"a",
]


@pytest.mark.parametrize("check", GOOD)
def test_good_names_pass_and_nothing_else_does(check):
    for name in GOOD[check]:
        assert check(name) == name
        for bad in (name + "\n", "/" + name, name + "/", f"../{name}", name + "\0", "." + name):
            with pytest.raises(BadInput, match="cannot name anything in the store: expected"):
                check(bad)
    for bad in NEVER:
        with pytest.raises(BadInput):
            check(bad)


def test_only_lower_case_hex_of_the_right_length_is_a_digest():
    for bad in ("A" * 64, "a" * 63, "a" * 65, "g" * 64, "٣" * 64):
        with pytest.raises(BadInput):
            names.digest(bad)


def test_fan_out():
    assert names.fan_out(Path("blobs"), "abcdef", ".json") == Path("blobs/ab/cd/abcdef.json")
