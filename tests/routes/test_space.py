from __future__ import annotations

import random
from itertools import islice, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routetune.tasks.errors import BadInput
from routetune.tasks.routes.expression import Term
from routetune.tasks.routes.knob import Knob, KnobDatabase
from routetune.tasks.routes.route import Route, spell
from routetune.tasks.routes.space import RouteSpace, open_space

DATABASE = KnobDatabase(
    "1",
    [
        Knob("-a", ("on", "off"), "on"),
        Knob("-b", ("1", "2", "3"), "2"),
        Knob("-c", ("x", "y"), "x"),
        Knob("-d", ("on", "off"), "off"),
        Knob("-n", None, "0", hint="int32_t"),
    ],
)
HUGE = KnobDatabase("1", [Knob(f"-k{number}", ("on", "off"), "on") for number in range(200)])


@st.composite
def expressions(draw: st.DrawFn) -> str:
    tokens = []
    for knob in draw(st.lists(st.sampled_from(list(DATABASE.values())), min_size=1, unique_by=id)):
        if knob.values is None or draw(st.booleans()):
            tokens.append(f"{knob.name}={draw(st.sampled_from(knob.values or ('0', '5')))}")
        else:
            values = draw(st.lists(st.sampled_from(knob.values), min_size=1, unique=True))
            tokens.append(f"{knob.name}=[{'|'.join(values)}]")
    return " ".join(tokens)


LITERALS = [f"{knob.name}={value}" for knob in DATABASE.values() for value in (*(knob.values or ("0", "5")),)]
RULES = st.lists(
    st.lists(st.sampled_from(LITERALS), min_size=1, max_size=3, unique_by=lambda literal: literal[:2]).map(
        " ".join
    ),
    max_size=4,
)


def spelled_out(expression: str) -> list[dict[str, str]]:
    """The product by itertools, from the text itself."""
    tokens = [token.partition("=")[::2] for token in expression.split()]
    lists = [values.strip("[]").split("|") for _, values in tokens]
    return [dict(zip((name for name, _ in tokens), values, strict=True)) for values in product(*lists)]


@settings(deadline=None)
@given(expressions())
def test_the_space_is_the_product_in_order(expression: str) -> None:
    space = open_space(expression, DATABASE)
    expected = spelled_out(expression)
    assert space.size == space.count() == len(expected)
    assert [list(space.assignment(i).items()) for i in range(space.size)] == [
        list(assignment.items()) for assignment in expected
    ]
    routes = [space[i] for i in range(space.size)]
    assert routes == list(space) == [DATABASE.route(assignment) for assignment in expected]
    assert len(set(routes)) == len({route.id for route in routes}) == space.size


@settings(deadline=None)
@given(expressions(), RULES, st.integers(0, 5))
def test_no_route_has_what_a_rule_excludes(expression: str, rules: list[str], seed: int) -> None:
    space = open_space(expression, DATABASE, rules)
    defaults = {name: knob.default for name, knob in DATABASE.items()}
    partial = [dict(token.split("=") for token in rule.split()) for rule in rules]
    expected = [
        assignment
        for assignment in spelled_out(expression)
        if not any(rule.items() <= (defaults | assignment).items() for rule in partial)
    ]
    assert list(space.assignments()) == expected
    assert [a for a in map(space.assignment, range(space.size)) if space.allows(a)] == expected
    assert space.count() == len(expected)
    allowed = [DATABASE.route(assignment) for assignment in expected]
    drawn = space.sample(random.Random(seed), space.size + 3)
    assert len(drawn) == len(allowed) and set(drawn) == set(allowed)


def test_indices_outside_are_refused() -> None:
    space = open_space("-a=[on|off] -b=[1|3]", DATABASE)
    assert space[-1] == space[3] == DATABASE.route({"-a": "off", "-b": "3"})
    for index in (4, -5):
        with pytest.raises(IndexError):
            space[index]


def test_the_baseline_takes_defaults_that_are_not_listed() -> None:
    space = open_space("-n=7 -b=[3] -d=on -a=[off|on]", DATABASE)
    assert spell(space.baseline()) == "-n=7 -b=2 -d=on -a=on"


def test_a_rule_may_name_a_default_or_a_knob_that_is_not_searched() -> None:
    assert list(open_space("-a=[on|off]", DATABASE, ["-a=on"])) == [Route((("-a", "off"),))]
    assert list(open_space("-a=[on|off]", DATABASE, ["-d=off"])) == []
    assert len(list(open_space("-a=[on|off]", DATABASE, ["-d=on"]))) == 2
    assert list(open_space("-a=[on|off] -n=5", DATABASE, ["-n=5 -a=off"])) == [Route((("-n", "5"),))]


def test_other_values_keep_order_and_rules() -> None:
    space = open_space("-n=7 -c=[y] -b=[3|1] -a=[off]", DATABASE, ["-b=1"])
    other = space.restricted({"-b": ("1", "3")})
    assert [spell(assignment) for assignment in other.assignments()] == ["-n=7 -c=x -b=3 -a=on"]


def test_a_space_of_200_knobs_is_never_listed() -> None:
    space = open_space("-*=[*]", HUGE, ["-k0=on -k199=on", "-k0=on -k199=off"])
    assert (space.size, space.count()) == (2**200, 2**199)
    assert str(space[0]) == ""
    assert str(space[1]) == "-k199=off"
    assert len(space[2**200 - 1]) == 200
    assert [str(route) for route in islice(space, 2)] == ["-k0=off", "-k0=off -k199=off"]
    drawn = space.sample(random.Random(0), 300)
    assert len(set(drawn)) == 300
    assert all(route.as_dict()["-k0"] == "off" for route in drawn)
    assert drawn[:100] == space.sample(random.Random(0), 100)


@pytest.mark.parametrize(
    ("terms", "exclude", "problem"),
    [
        ([], [], "at least one knob"),
        ([Term(DATABASE["-a"], ("on",), False)] * 2, [], "twice"),
        ([Term(DATABASE["-a"], ("on",), False)], [{"-aa": "on"}], "unknown knob '-aa'"),
    ],
)
def test_what_makes_no_space_is_refused(
    terms: list[Term], exclude: list[dict[str, str]], problem: str
) -> None:
    with pytest.raises(BadInput, match=problem):
        RouteSpace(terms, DATABASE, exclude)


@pytest.mark.parametrize(
    ("given", "route"),
    [
        ({}, ""),
        ({"-a": "off"}, "-a=off"),
        ({"-b": "2", "-a": "off"}, "-a=off -b=2"),
        ({"-a": "off", "-c": "x"}, "-a=off"),
        ({"-a": "off", "-c": "y"}, None),
        ({"-b": "3"}, None),
        ({"-a": "maybe"}, None),
        ({"-gone": "on"}, None),
        ({"-a": "off", "-b": "1"}, None),
    ],
)
def test_an_assignment_of_another_tool_is_a_route_of_the_space_or_none(
    given: dict[str, str], route: str | None
) -> None:
    database = KnobDatabase(
        "1",
        [
            Knob("-a", ("on", "off"), "on"),
            Knob("-b", ("0", "1", "2", "3"), "0"),
            Knob("-c", ("x", "y"), "x"),
        ],
    )
    space = open_space("-a=[on|off] -b=[1|2]", database, ["-a=off -b=1"])
    found = space.route_of(given)
    assert (None if found is None else str(found)) == route
    fixed = open_space("-a=off -b=[1|2]", database)
    assert fixed.route_of({"-b": "2"}) is None
    assert fixed.route_of({"-b": "2", "-a": "off"}) is not None
