from __future__ import annotations

import random
from itertools import islice, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routetune.tasks.routes import remainder
from routetune.tasks.routes.remainder import Remainder

Rules = list[dict[int, str]]


def problem(seed: int) -> tuple[list[str], Rules]:
    """Short lists and up to ten rules, most of several values, so that many conspire."""
    rng = random.Random(seed)
    lists = [rng.choice(["xy", "yx", "xyz", "xy", "z"]) for _ in range(rng.randint(2, 5))]
    rules = []
    for _ in range(rng.randint(0, 6)):
        places = rng.sample(range(len(lists)), min(len(lists), rng.choice([1, 2, 2, 2, 3, 3])))
        rules.append({at: rng.choice(lists[at] + rng.choice(["", "", "", "w"])) for at in places})
    if rng.random() < 0.5:  # no value is left at the last position, each for a reason of its own
        last = len(lists) - 1
        for value in lists[last]:
            at = rng.randrange(last)
            rules.append({at: rng.choice(lists[at]), last: value})
    return lists, rules


def truth(lists: list[str], rules: Rules) -> list[tuple[str, ...]]:
    return [member for member in product(*lists) if not excluded(member, rules)]


def excluded(member: tuple[str, ...], rules: Rules) -> bool:
    return any(all(member[at] == value for at, value in rule.items()) for rule in rules)


@pytest.mark.parametrize("misses", [0, remainder._MISSES])
@settings(deadline=None, max_examples=300)
@given(seed=st.integers(0, 2**32))
def test_it_is_the_product_without_what_is_excluded(misses: int, seed: int) -> None:
    lists, rules = problem(seed)
    expected = truth(lists, rules)
    found = Remainder(lists, rules)
    assert found.count() == len(expected)
    assert list(found) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remainder, "_MISSES", misses)  # 0 takes the way of dense rules at once
        shuffled = list(found.shuffled(random.Random(seed)))
    assert sorted(shuffled) == sorted(expected)


def test_the_order_of_drawing_is_even() -> None:
    rng, lists, rules = random.Random(1), ["xyz", "xy", "xy"], [{0: "x", 2: "x"}, {1: "y"}]
    members = truth(lists, rules)
    first = [next(iter(Remainder(lists, rules).shuffled(rng))) for _ in range(2000)]
    expected = 2000 / len(members)
    statistic = sum((first.count(member) - expected) ** 2 / expected for member in members)
    assert statistic < 18.5  # chi-square, 4 degrees of freedom, p = 0.001
    assert len(members) == 5


HUGE = ["01"] * 200


@pytest.mark.parametrize(
    ("rules", "first"),
    [
        ([{0: "0"}], "1" + "0" * 199),  # half of everything comes first
        ([{0: "0", 199: "0"}, {0: "0", 199: "1"}], "1" + "0" * 199),  # ... and says so only at its end
        ([{0: "0", 199: "0"}, {0: "0", 198: "0", 199: "1"}], "0" * 198 + "11"),
        ([{0: "0", 150: "0"}, {50: "0", 150: "1"}], "0" * 50 + "1" + "0" * 99 + "1" + "0" * 49),
        ([{at: "1", 199: "0"} for at in range(199)] + [{at: "1", 199: "1"} for at in range(199)], "0" * 200),
    ],
)
def test_excluded_blocks_are_jumped_over(rules: Rules, first: str) -> None:
    found = Remainder(HUGE, rules)
    assert "".join(next(iter(found))) == first
    drawn = list(islice(found.shuffled(random.Random(0)), 2))
    assert len(set(drawn)) == 2
    assert not any(excluded(member, rules) for member in drawn)


def test_nothing_may_be_left_of_a_huge_product() -> None:
    for rules in (
        [{7: "0"}, {7: "1"}],
        [{0: a, 199: b} for a in "01" for b in "01"],
        [{0: "0", 100: "0"}, {0: "1", 100: "0"}, {100: "1", 199: "0"}, {100: "1", 199: "1"}],
        [{}],
    ):
        found = Remainder(HUGE, rules)
        assert found.count() == 0
        assert list(found) == [] == list(found.shuffled(random.Random(0)))


def test_rare_members_of_a_huge_product_are_drawn() -> None:
    # Pairs of rules that leave one member in 2**40: no luck finds one.
    rules = [{at: "1", at + 100: last} for at in range(40) for last in "01"]
    drawn = list(islice(Remainder(HUGE, rules).shuffled(random.Random(0)), 50))
    assert len(set(drawn)) == 50
    assert {member[:40] for member in drawn} == {("0",) * 40}


def test_many_rules_are_not_counted() -> None:
    rules = [{at: "0", at + 1: "1"} for at in range(0, 60, 2)]
    assert Remainder(HUGE, rules).count() is None
    assert Remainder(HUGE, rules[:12]).count() == 3**12 * 2**176
