"""What exclude rules leave of a product of value lists, without ever listing the product."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence

#: A combination of positions and digits that no member may have.
_Rule = dict[int, int]

#: Above this many rules the exact count, which looks at every subset of them, is not worth its time.
_COUNTED_RULES = 12

#: Draws in a row that may hit excluded members before the search goes from member to member instead.
_MISSES = 1000


def to_digits(index: int, radices: Sequence[int]) -> list[int]:
    """The mixed-radix digits of an index, the last one fastest."""
    digits = [0] * len(radices)
    for position in reversed(range(len(radices))):
        index, digits[position] = divmod(index, radices[position])
    return digits


def to_index(digits: Sequence[int], radices: Sequence[int]) -> int:
    """The inverse of `to_digits`."""
    index = 0
    for digit, radix in zip(digits, radices, strict=True):
        index = index * radix + digit
    return index


class Remainder:
    """The members of a product of lists that no rule excludes.

    Members come as tuples of values, in lexicographic order of the lists (the last one fastest) or shuffled.
    Rules of one value only shorten the lists. For the others, whole excluded blocks are jumped over, and when
    all values at a position are excluded, the reason is kept as a rule of its own (resolution, as SAT solvers
    learn clauses): rules that conspire far apart then cost no walk through the block between them.

    Args:
        lists: the values at each position, distinct.
        rules: position -> value; a member is excluded when it has all of them. An empty rule excludes all.
    """

    def __init__(self, lists: Sequence[Sequence[str]], rules: Iterable[Mapping[int, str]] = ()) -> None:
        shortened = [list(values) for values in lists]
        left = _shorten(shortened, [dict(rule) for rule in rules])
        self._lists = [tuple(values) for values in shortened]
        self._radices = [len(values) for values in shortened]
        self._size = math.prod(self._radices)
        self._rules = [{at: self._lists[at].index(value) for at, value in rule.items()} for rule in left]
        self._by_last: dict[int, list[_Rule]] = {}
        for rule in self._rules:
            self._keep(rule)

    def count(self) -> int | None:
        """How many members there are, exactly; None when there are too many rules to tell."""
        if len(self._rules) > _COUNTED_RULES:
            return None
        return self._count(len(self._rules), {})

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        if self._size:
            yield from map(self._values, self._from([0] * len(self._radices)))

    def shuffled(self, rng: random.Random) -> Iterator[tuple[str, ...]]:
        """Every member once, in random order; memory grows with what was drawn, not with the product.

        Uniform over the members, except after a long run of misses: then the next member after a random
        place is taken.
        """
        moved: dict[int, int] = {}
        seen: set[int] = set()
        misses = 0
        # Fisher-Yates on an array that is never written out: only entries that were swapped are held.
        for place in range(self._size):
            pick = rng.randrange(place, self._size)
            index = moved.get(pick, pick)
            moved[pick] = moved.pop(place, place)
            digits = to_digits(index, self._radices)
            if self._conflict(digits) is None:
                misses = 0
                if self._rules:
                    seen.add(index)
                yield self._values(digits)
            elif (misses := misses + 1) > _MISSES:
                yield from self._scattered(rng, seen)
                return

    def _scattered(self, rng: random.Random, seen: set[int]) -> Iterator[tuple[str, ...]]:
        """The members not yet seen, each the next one after a random place, around the end."""
        while True:
            start = to_digits(rng.randrange(self._size), self._radices)
            for digits in self._around(start):
                index = to_index(digits, self._radices)
                if index not in seen:
                    seen.add(index)
                    yield self._values(digits)
                    break
            else:
                return

    def _around(self, start: list[int]) -> Iterator[list[int]]:
        yield from self._from(list(start))
        for digits in self._from([0] * len(start)):
            if digits >= start:
                return
            yield digits

    def _from(self, digits: list[int]) -> Iterator[list[int]]:
        """The members at or after `digits` in order; the list is reused from one to the next."""
        more = True
        while more and self._settle(digits):
            yield digits
            more = self._advance(digits, len(digits) - 1)

    def _settle(self, digits: list[int]) -> bool:
        """Move `digits` to the first member at or after it; False when there is none."""
        while (last := self._conflict(digits)) is not None:
            reason = self._reason(digits, last)
            if reason is not None:
                if not reason:
                    return False
                self._keep(reason)
            elif not self._advance(digits, last):
                return False
        return True

    def _advance(self, digits: list[int], position: int) -> bool:
        """Step to the next digits that differ at or before `position`; False past the end."""
        digits[position + 1 :] = [0] * (len(digits) - position - 1)
        while position >= 0:
            digits[position] += 1
            if digits[position] < self._radices[position]:
                return True
            digits[position] = 0
            position -= 1
        return False

    def _conflict(self, digits: Sequence[int]) -> int | None:
        """The last position of a rule that `digits` breaks, the smallest such; None when it breaks none."""
        for last in sorted(self._by_last):
            if any(_matches(rule, digits) for rule in self._by_last[last]):
                return last
        return None

    def _reason(self, digits: Sequence[int], last: int) -> _Rule | None:
        """Why no value at `last` can follow the digits before it, as a rule on those; None when one can."""
        reason: _Rule = {}
        tried = list(digits)
        for digit in range(self._radices[last]):
            tried[last] = digit
            rule = next((rule for rule in self._by_last[last] if _matches(rule, tried)), None)
            if rule is None:
                return None
            reason |= rule
        del reason[last]
        return reason

    def _keep(self, rule: _Rule) -> None:
        self._by_last.setdefault(max(rule), []).append(rule)

    def _count(self, rules: int, held: _Rule) -> int:
        """Members that have the digits `held` and break none of the first `rules` rules."""
        if rules == 0:
            return self._size // math.prod(self._radices[position] for position in held)
        rule = self._rules[rules - 1]
        spared = self._count(rules - 1, held)
        if any(held.get(position, digit) != digit for position, digit in rule.items()):
            return spared
        return spared - self._count(rules - 1, held | rule)

    def _values(self, digits: Sequence[int]) -> tuple[str, ...]:
        return tuple(values[digit] for values, digit in zip(self._lists, digits, strict=True))


def _matches(rule: _Rule, digits: Sequence[int]) -> bool:
    return all(digits[position] == digit for position, digit in rule.items())


def _shorten(lists: list[list[str]], rules: list[dict[int, str]]) -> list[dict[int, str]]:
    """Take values that are excluded by themselves off the lists; returns the rules of two values or more."""
    while True:
        # A rule with a value that is gone cannot match; a value that is the only one left always does.
        rules = [
            {position: value for position, value in rule.items() if len(lists[position]) > 1}
            for rule in rules
            if all(value in lists[position] for position, value in rule.items())
        ]
        short = next((rule for rule in rules if len(rule) < 2), None)
        if short is None:
            return rules
        if not short:
            lists[0].clear()
            return []
        ((position, value),) = short.items()
        lists[position].remove(value)
