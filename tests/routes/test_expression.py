from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from routetune.tasks.errors import BadInput
from routetune.tasks.routes.expression import parse, parse_partial, parse_route, read_expression_file
from routetune.tasks.routes.knob import Knob, KnobDatabase

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "trtexec_routes.json").read_text())
DATABASE = KnobDatabase.from_json(VECTORS["database"]).merged(
    KnobDatabase("1", [Knob("+tf32", ("on", "off"), "on"), Knob("@conv1", ("off", "on"), "off")])
)


def read(expression: str | list[str]) -> dict[str, tuple[tuple[str, ...], bool]]:
    return {term.knob.name: (term.values, term.variable) for term in parse(expression, DATABASE)}


@pytest.mark.parametrize(
    ("expression", "terms"),
    [
        ("-copy_ppg=[off|on]", {"-copy_ppg": (("off", "on"), True)}),
        ("-copy_ppg=off", {"-copy_ppg": (("off",), False)}),
        ("-copy_ppg=[off]", {"-copy_ppg": (("off",), True)}),
        ("-copy_ppg=[ off |\ton ]", {"-copy_ppg": (("off", "on"), True)}),
        ("-copy_ppg=[off||on|]", {"-copy_ppg": (("off", "on"), True)}),  # as trtexec
        ("-three=[*]", {"-three": (("a", "b", "c"), True)}),
        ("-peep:max=7", {"-peep:max": (("7",), False)}),
        ("-peep:max=a=b", {"-peep:max": (("a=b",), False)}),
        ("+tf32=[*] @conv1=on", {"+tf32": (("on", "off"), True), "@conv1": (("on",), False)}),
        ("-kgen:*=[*]", {"-kgen:codegen:cuda_tile": (("0", "1", "2", "3"), True)}),
        (
            "-*_ppg=[on|off]",
            dict.fromkeys(("-reshape_ppg", "-transpose_ppg", "-copy_ppg"), (("on", "off"), True)),
        ),
        (
            "-copy*=off -reshape*=[off] -copy_ppg=on",  # what is named itself is left to its own token
            {"-reshape_ppg": (("off",), True), "-copy_ppg": (("on",), False)},
        ),
        (
            ["-three=a", "-copy_ppg=on\n+tf32=off"],
            {"-three": (("a",), False), "-copy_ppg": (("on",), False), "+tf32": (("off",), False)},
        ),
    ],
)
def test_terms(expression: str | list[str], terms: dict[str, tuple[tuple[str, ...], bool]]) -> None:
    found = read(expression)
    assert found == terms
    assert list(found) == list(terms)


def test_a_glob_over_a_family_takes_all_its_bounded_knobs() -> None:
    assert list(read("-*=[*]")) == [
        name for name, knob in DATABASE.items() if name[0] == "-" and knob.bounded
    ]


REFUSALS = {
    "": "route expression is empty",
    " \n": "route expression is empty",
    "-copy_ppq=[on|off]": "unknown knob '-copy_ppq'; did you mean -copy_ppg",
    "copy_ppg=[on|off]": "unknown knob 'copy_ppg'; did you mean -copy_ppg",
    "-copy_ppg=maybe": "does not allow 'maybe'; allowed: on, off",
    "-copy_ppg=[on|maybe]": "does not allow 'maybe'; allowed: on, off",
    "-copy_ppg=[*|on]": r"does not allow '\*'",
    "-copy_ppg=[]": "empty list in",
    "-copy_ppg=[ | ]": "empty list in",
    "-copy_ppg=[on|off|on]": "value 'on' is listed 2 times",
    "-copy_ppg=on -copy_ppg=off": "knob '-copy_ppg' is there twice",
    "-copy*=on -copy*=off": r"glob '-copy\*' is there twice",
    "-copy_ppg=x[on|off]": "text 'x' before the brackets",
    "-copy_ppg=[on|off]y": "text 'y' after the brackets",
    "-copy_ppg=[on][off]": r"text '\[off\]' after the brackets",
    "-copy_ppg": "no '=' in '-copy_ppg'",
    "-copy_ppg =[on|off]": "no '=' in '-copy_ppg'",
    "-copy_ppg=": "no value after '='",
    "-copy_ppg= [on|off]": "no value after '='",
    "-copy_ppg=on|off": r"several values without brackets.*write -copy_ppg=\[on\|off\]",
    "-peep:max=1|2": "several values without brackets",
    "-copy_ppg=[on|off": r"unbalanced bracket \[",
    "-copy_ppg=on]": r"unbalanced bracket \]",
    "-copy_ppg=[on|[off]]": r"unbalanced bracket \[",
    "-peep:max=[1|2]": r"-peep:max is unbounded \(int32_t\)",
    "-peep:max=[*]": "is unbounded",
    "-peep:max=int32_t": "names a type",
    "-open_range=[0|1]": r"-open_range is unbounded \(\[0\|1\|...\]\)",
    "-open_range=[0|...]": "open range in",
    "-peep:*=[*]": "matches no bounded knob",
    "-nope*=[*]": "matches no bounded knob",
    "*=[*]": r"has no family.*as in -\*",
    "-*=[on|off]": r"glob '-\*=.*does not allow 'on'; allowed: 0, 1, 2, 3",
    "-copy*=[*] -*_ppg=[*]": "two globs match knob -copy_ppg",
}


@pytest.mark.parametrize("expression", REFUSALS)
def test_each_refusal_says_what_is_wrong(expression: str) -> None:
    with pytest.raises(BadInput, match=REFUSALS[expression]):
        parse(expression, DATABASE)


_NAMES = ("-copy_ppg", "-three", "-peep:max", "-open_range", "+tf32", "-kgen:*", "-*", "*")
_MARKS = ("=", "=", "[", "]", "|", " ", "\n", "...", "int32_t", "#", "\udc80", "\x00", "")
_PIECES = st.sampled_from((*_NAMES, *_MARKS, "on", "off", "a", "1"))
TEXTS = st.lists(_PIECES, max_size=14).map("".join) | st.text(st.characters(), max_size=40)


@settings(deadline=None)
@given(TEXTS)
@example("[" * 5000)
@example("-" + "*" * 60 + "!=1")
@example("-three=[" + "a|" * 5000 + "]")
def test_arbitrary_text_is_read_or_refused(text: str) -> None:
    for reader in (parse, parse_partial, parse_route):
        try:
            reader(text, DATABASE)
        except BadInput as refusal:
            assert str(refusal)


def _value(knob: Knob) -> st.SearchStrategy[str]:
    return st.sampled_from(knob.values) if knob.values else st.integers(0, 99).map(str)


ASSIGNMENTS = st.lists(st.sampled_from(list(DATABASE.values())), unique_by=lambda knob: knob.name).flatmap(
    lambda knobs: st.fixed_dictionaries({knob.name: _value(knob) for knob in knobs})
)


@settings(deadline=None)
@given(ASSIGNMENTS, st.randoms(use_true_random=False), st.sampled_from([" ", "\n", "\t  "]))
def test_two_spellings_are_one_route(assignment: dict[str, str], rng: object, space: str) -> None:
    route = DATABASE.route(assignment)
    assert parse_route(str(route), DATABASE) == route
    shuffled = list(assignment.items())
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    spelled = parse_route(space.join(f"{name}={value}" for name, value in shuffled), DATABASE)
    assert (spelled, str(spelled), spelled.id) == (route, str(route), route.id)


@settings(deadline=None)
@given(ASSIGNMENTS, ASSIGNMENTS)
def test_routes_that_differ_have_ids_that_differ(one: dict[str, str], other: dict[str, str]) -> None:
    full = [{name: knob.default for name, knob in DATABASE.items()} | spelled for spelled in (one, other)]
    first, second = DATABASE.route(one), DATABASE.route(other)
    assert (full[0] == full[1]) == (first == second) == (first.id == second.id)


def test_an_exclude_rule_may_name_a_default() -> None:
    assert parse_partial("-copy_ppg=on  -three=c", DATABASE) == {"-copy_ppg": "on", "-three": "c"}


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("", "exclude rule is empty"),
        ("-copy_ppg=[on|off]", "fixed values only"),
        ("-copy*=on", "fixed values only"),
        ("-copy_ppg=on -copy_ppg=off", "there twice"),
        ("-copy_ppg=maybe", "does not allow"),
        ("-nope=on", "unknown knob"),
    ],
)
def test_an_exclude_rule_is_refused(rule: str, problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        parse_partial(rule, DATABASE)


def test_the_file_form(tmp_path: Path) -> None:
    path = tmp_path / "mod èle 士.txt"
    path.write_text(
        "# all\n-copy_ppg=[on|off]   # a comment\n\n  -peep:max=a#b\n#-three=a\n", encoding="utf-8-sig"
    )
    text = read_expression_file(path)
    assert {name: values for name, (values, _) in read(text).items()} == {
        "-copy_ppg": ("on", "off"),
        "-peep:max": ("a#b",),
    }


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "cannot be read"), (b"\xff\xfe", "cannot be read"), (b"# only\n", "no token")],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, content: bytes | None, problem: str) -> None:
    path = tmp_path / "routes.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInput, match=f"routes.txt.*{problem}"):
        read_expression_file(path)


def test_an_expression_of_another_type_is_refused() -> None:
    with pytest.raises(BadInput, match="found int"):
        parse(["-three=a", 3], DATABASE)  # type: ignore[list-item]
