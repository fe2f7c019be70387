from __future__ import annotations

import json
from pathlib import Path

from routetune.tasks.routes.difference import difference
from routetune.tasks.routes.knob import Knob, KnobDatabase

from conftest import Command, answer_of

OLD = KnobDatabase(
    "1", [Knob("-a", ("on", "off"), "on"), Knob("-b", None, "0", hint="int32_t"), Knob("-c", ("x",), "x")]
)
NEW = KnobDatabase(
    "2", [Knob("-d", ("on",), "on"), Knob("-a", ("on", "off"), "off"), Knob("-b", ("0", "1"), "0")]
)


def test_new_gone_and_changed_knobs() -> None:
    assert difference(OLD, NEW) == {
        "old_version": "1",
        "new_version": "2",
        "new": ["-d"],
        "gone": ["-c"],
        "changed": [
            {"option": "-a", "field": "default_value", "old": "on", "new": "off"},
            {"option": "-b", "field": "allowed_values", "old": "int32_t", "new": "[0|1]"},
        ],
    }
    same = difference(OLD, OLD)
    assert same["new"] == same["gone"] == same["changed"] == []


def test_the_command_compares_a_saved_database(routetune: Command, tmp_path: Path) -> None:
    saved = tmp_path / "old.json"
    listed = routetune("knobs", "--json").stdout
    saved.write_text(listed)
    assert "the same knobs" in routetune("knobs", "--diff", saved).stdout
    document = json.loads(listed)
    gone = document["tuner_options"].pop(0)
    document["tuner_options"][0]["default_value"] = "another"
    document["tuner_options"].append(
        {"option": "-old", "allowed_values": "-old=[on|off]", "default_value": "on"}
    )
    saved.write_text(json.dumps(document))
    found = answer_of(routetune("knobs", "--diff", saved, "--json"))
    assert found["new"] == [gone["option"]]
    assert found["gone"] == ["-old"]
    [change] = found["changed"]
    assert change["old"] == "another" and change["field"] == "default_value"
    saved.write_text("no database")
    refused = routetune("knobs", "--diff", saved)
    assert refused.returncode == 2 and "old.json" in refused.stderr
