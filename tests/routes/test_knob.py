from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routetune.tasks.errors import BadInput
from routetune.tasks.routes.knob import Knob, KnobDatabase
from routetune.tasks.routes.route import Route

DOCUMENT = json.loads((Path(__file__).parents[1] / "vectors" / "trtexec_routes.json").read_text())["database"]

ANY_TEXT = st.text(st.characters(), max_size=12)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4)
)


@pytest.fixture
def database() -> KnobDatabase:
    return KnobDatabase.from_json(DOCUMENT)


def test_reads_the_format_of_tensorrt_in_its_order(database: KnobDatabase) -> None:
    assert database.version == "2.19.15"
    assert list(database) == [entry["option"] for entry in DOCUMENT["tuner_options"]]
    assert database["-kgen:codegen:cuda_tile"] == Knob("-kgen:codegen:cuda_tile", tuple("0123"), "1", "help")
    assert [name for name, knob in database.items() if not knob.bounded] == ["-peep:max", "-open_range"]
    assert database["-peep:max"].allowed == "int32_t"
    assert database["-open_range"].allowed == "[0|1|...]"
    assert database.malformed == ()


def test_writes_what_it_reads(database: KnobDatabase) -> None:
    assert database.to_json() == DOCUMENT
    assert KnobDatabase.from_json(json.dumps(DOCUMENT)) == database
    reordered = DOCUMENT | {"tuner_options": DOCUMENT["tuner_options"][::-1]}
    assert KnobDatabase.from_json(reordered) != database  # order is part of what a canonical route means


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ("-copy_ppq", "-copy_ppg"),
        ("copy_ppg", "-copy_ppg"),
        ("zzz", "begin with"),
        ("-zzz", "11 known names"),
    ],
)
def test_an_unknown_knob_is_refused_with_the_nearest_names(
    database: KnobDatabase, asked: str, named: str
) -> None:
    with pytest.raises(BadInput, match=rf"unknown knob '{asked}'.*{named}"):
        database[asked]
    assert asked not in database
    assert database.get(asked) is None


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("-a=[on|off]", "expected an object"),
        ({}, "option"),
        ({"option": 3}, "option"),
        ({"option": "a", "allowed_values": "a=[1]", "default_value": "1"}, "signs"),
        ({"option": "-", "allowed_values": "-=[1]", "default_value": "1"}, "signs"),
        ({"option": "-a b", "allowed_values": "-a b=[1]", "default_value": "1"}, "white space"),
        ({"option": "-a*", "allowed_values": "-a*=[1]", "default_value": "1"}, "marks"),
        ({"option": "-a", "allowed_values": ["on"], "default_value": "on"}, "allowed_values.*string"),
        ({"option": "-a", "allowed_values": "-a=[]", "default_value": "on"}, "no allowed value"),
        ({"option": "-a", "allowed_values": "-a=[x y]", "default_value": "x y"}, "white space"),
        ({"option": "-a", "allowed_values": "-a=[on|off]"}, "is empty"),
        ({"option": "-a", "allowed_values": "-a=[on|off]", "default_value": None}, "default_value.*nothing"),
        (DOCUMENT["tuner_options"][0], "listed twice"),
    ],
)
def test_a_malformed_entry_is_named_and_costs_no_other(entry: Any, problem: str) -> None:
    found = KnobDatabase.from_json(DOCUMENT | {"tuner_options": [*DOCUMENT["tuner_options"], entry]})
    assert list(found) == [good["option"] for good in DOCUMENT["tuner_options"]]
    assert len(found.malformed) == 1
    with pytest.raises(BadInput, match=f"entry 11: .*{problem}"):
        raise BadInput(found.malformed[0])


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("", "empty"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        (b"\xff", "not JSON"),
        ("[]", "expected an object"),
        ("{}", "tuner_options"),
        ({"tuner_options": {}}, "tuner_options"),
        ({"tuner_options": [1, 2]}, "none of its 2 entries"),
    ],
)
def test_a_document_of_another_form_is_refused(source: Any, problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        KnobDatabase.from_json(source)


@settings(deadline=None)
@given(JSON | st.fixed_dictionaries({"tuner_options": JSON}))
def test_arbitrary_json_is_read_or_refused(document: Any) -> None:
    for source in (document, json.dumps(document)):
        try:
            KnobDatabase.from_json(source)
        except BadInput as refusal:
            assert str(refusal)


_NAMES = st.sampled_from(["-a", "+b", "@c:d"])
_ALLOWED = st.sampled_from(
    ["-a=[on|off]", "[on|1| off]", "+b=[1|2|...]", "int32_t", "", "][", "[on|on]", "@c:d=[1"]
)
_ENTRY = st.fixed_dictionaries(
    {"option": _NAMES | JSON, "allowed_values": _ALLOWED | JSON, "default_value": st.just("on") | JSON},
    optional={"help": ANY_TEXT | JSON},
)


@settings(deadline=None)
@given(st.lists(_ENTRY | JSON, max_size=6))
def test_whatever_is_read_can_be_written_and_read_again(entries: list[Any]) -> None:
    try:
        database = KnobDatabase.from_json({"tuner_version": "1", "tuner_options": entries})
    except BadInput:
        return
    assert len(database) + len(database.malformed) == len(entries)
    assert KnobDatabase.from_json(json.dumps(database.to_json())) == database


@pytest.mark.parametrize("value", ["7", "-1", "1e-3", "abc"])
def test_an_unbounded_knob_takes_any_word(database: KnobDatabase, value: str) -> None:
    database["-peep:max"].check(value)


@pytest.mark.parametrize("value", ["", "int32_t", "...", "*", "1|2", "[1", "1 2", "a\nb", "\udc80"])
def test_an_unbounded_knob_refuses_what_is_no_value(database: KnobDatabase, value: str) -> None:
    with pytest.raises(BadInput, match="-peep:max"):
        database["-peep:max"].check(value)


def test_a_value_that_is_not_allowed_is_refused_with_the_allowed_ones(database: KnobDatabase) -> None:
    with pytest.raises(BadInput, match=r"-copy_ppg does not allow 'maybe'; allowed: on, off"):
        database["-copy_ppg"].check("maybe")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("-kgen:*", ["-kgen:codegen:cuda_tile"]),
        ("-*_ppg", ["-reshape_ppg", "-transpose_ppg", "-copy_ppg"]),
        ("-peep:*", []),
        ("+*", []),
        ("-cop?_ppg*", []),
    ],
)
def test_a_glob_finds_bounded_knobs_in_order(database: KnobDatabase, pattern: str, names: list[str]) -> None:
    assert [knob.name for knob in database.glob(pattern)] == names


def test_families_are_merged_side_by_side(database: KnobDatabase) -> None:
    settings = KnobDatabase(
        "11.1", [Knob("@conv1", ("off", "on"), "off"), Knob("+tf32", ("on", "off"), "on")]
    )
    merged = settings.merged(database)
    assert list(merged) == [*database, "+tf32", "@conv1"]
    assert merged.version == "11.1, 2.19.15"
    with pytest.raises(BadInput, match="in the knob database twice"):
        merged.merged(database)


def test_a_route_is_canonical(database: KnobDatabase) -> None:
    spelled = {"-three": "c", "-copy_ppg": "on", "-reshape_ppg": "off", "-peep:max": "7"}
    route = database.route(spelled)
    assert str(route) == "-reshape_ppg=off -peep:max=7 -three=c"
    assert database.route(dict(reversed(spelled.items()))) == route
    assert database.route({"-three": "b", "-copy_ppg": "on"}) == Route()
    for wrong in ({"-nope": "on"}, {"-three": "d"}):
        with pytest.raises(BadInput):
            database.route(wrong)
