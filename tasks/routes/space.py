"""The route space: every combination of an expression's values, counted and indexed but never listed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice

from routetune.tasks.errors import BadInput
from routetune.tasks.routes.expression import Expression, Term, parse, parse_partial
from routetune.tasks.routes.knob import KnobDatabase
from routetune.tasks.routes.remainder import Remainder, to_digits
from routetune.tasks.routes.route import Route


class RouteSpace:
    """The Cartesian product of the values of an expression, in trtexec's order: the last knob fastest.

    Counting, indexing and drawing cost O(knobs), also for 2**200 routes. Indices run over the whole
    product: `size` and `space[i]` do not look at the exclude rules, while iterating and drawing skip what
    they exclude.

    Attributes:
        terms: the knobs of the expression with their values, in its order.
        database: the knobs that there are; what the expression does not name is at its default.
        exclude: partial assignments that no generated route may contain. They are matched against full
            assignments, so a rule may name a default or a knob that the expression leaves out.
        size: the number of combinations, an exact int, exclude rules not subtracted.

    Raises:
        BadInput: no term, a knob in two terms, or an unknown knob in an exclude rule.
    """

    def __init__(
        self,
        terms: Sequence[Term],
        database: KnobDatabase,
        exclude: Sequence[Mapping[str, str]] = (),
    ) -> None:
        self.terms = tuple(terms)
        self.database = database
        self.exclude = tuple(dict(rule) for rule in exclude)
        self._names = tuple(term.knob.name for term in self.terms)
        self._radices = tuple(len(term.values) for term in self.terms)
        self.size = math.prod(self._radices)
        if not self.terms:
            raise BadInput("a route space needs at least one knob; name it as in -knob=[a|b]")
        if len(set(self._names)) < len(self._names):
            raise BadInput(f"a route space has a knob twice: {' '.join(self._names)}"[:300])
        self._rules = [
            [(name, value, database[name].default) for name, value in rule.items()] for rule in self.exclude
        ]

    def route_of(self, given: Mapping[str, str]) -> Route | None:
        """The route of an assignment made elsewhere, or None when it is not one of this space's.

        It is when it allows no rule, gives each knob of the expression a listed value (or, where a list was
        written, the default), and leaves every other knob at its default. Knobs that are not in the
        database make it another library's.
        """
        if any(name not in self.database for name in given):
            return None
        full = {term.knob.name: given.get(term.knob.name, term.knob.default) for term in self.terms}
        others = {name: value for name, value in given.items() if name not in full}
        if any(value != self.database[name].default for name, value in others.items()):
            return None
        for term in self.terms:
            offered = (*term.values, term.knob.default) if term.variable else term.values
            if full[term.knob.name] not in offered:
                return None
        return self.route(full) if self.allows(full) else None

    def assignment(self, index: int) -> dict[str, str]:
        """Knob -> value of one combination in the expression's order, values at their default included.

        Raises:
            IndexError: the index is not in [-size, size).
        """
        if not -self.size <= index < self.size:
            raise IndexError(f"route {index} of a space of {self.size}")
        digits = to_digits(index % self.size, self._radices)
        return {
            name: term.values[digit]
            for name, term, digit in zip(self._names, self.terms, digits, strict=True)
        }

    def __getitem__(self, index: int) -> Route:
        return self.route(self.assignment(index))

    def __iter__(self) -> Iterator[Route]:
        """Every route that no rule excludes, in order."""
        return map(self.route, self.assignments())

    def assignments(self) -> Iterator[dict[str, str]]:
        """As iterating, but as full assignments in the expression's order."""
        return map(self._named, self._remainder)

    def count(self) -> int | None:
        """The number of routes that no rule excludes; None when there are too many rules to tell."""
        return self._remainder.count()

    def draw(self, rng: random.Random) -> Iterator[Route]:
        """Every route that no rule excludes, in random order and without repetition, one at a time."""
        return map(self.route, self.drawn_assignments(rng))

    def drawn_assignments(self, rng: random.Random) -> Iterator[dict[str, str]]:
        """As `draw`, but as full assignments in the expression's order."""
        return map(self._named, self._remainder.shuffled(rng))

    def sample(self, rng: random.Random, n: int) -> list[Route]:
        """`n` different routes that no rule excludes, fewer where there are not so many."""
        return list(islice(self.draw(rng), n))

    def baseline(self) -> dict[str, str]:
        """Every variable knob at its default, listed or not; fixed knobs at their value."""
        return {term.knob.name: term.knob.default if term.variable else term.values[0] for term in self.terms}

    def allows(self, assignment: Mapping[str, str]) -> bool:
        """Whether the assignment contains no exclude rule; a knob that it does not name is at its default."""
        return not any(
            all(assignment.get(name, default) == value for name, value, default in rule)
            for rule in self._rules
        )

    def permits(self, assignment: Mapping[str, str]) -> bool:
        """Whether a route made elsewhere has what the expression fixes and no exclude rule, whatever else."""
        return self.keeps(assignment) and self.allows(assignment)

    def keeps(self, assignment: Mapping[str, str]) -> bool:
        """Whether the assignment has what the expression fixes; what it does not name is at its default."""
        fixed = (term for term in self.terms if not term.variable)
        return all(assignment.get(term.knob.name, term.knob.default) == term.values[0] for term in fixed)

    def route(self, assignment: Mapping[str, str]) -> Route:
        """The canonical route of an assignment."""
        return self.database.route(assignment)

    def restricted(self, values: Mapping[str, Sequence[str]]) -> RouteSpace:
        """The same knobs in the same order under the same rules, with other values; see `Term.variable`.

        Args:
            values: knob -> values; a knob that is missing is fixed at its value in the baseline.
        """
        baseline = self.baseline()
        terms = [
            Term(term.knob, tuple(values[name]), True)
            if name in values
            else Term(term.knob, (baseline[name],), False)
            for name, term in zip(self._names, self.terms, strict=True)
        ]
        return RouteSpace(terms, self.database, self.exclude)

    @cached_property
    def _remainder(self) -> Remainder:
        return Remainder([term.values for term in self.terms], self._placed_rules())

    def _placed_rules(self) -> Iterator[dict[int, str]]:
        """The rules by position; without those that hold a value which no route here has."""
        position = {name: at for at, name in enumerate(self._names)}
        for rule in self._rules:
            if all(name in position or value == default for name, value, default in rule):
                yield {position[name]: value for name, value, _ in rule if name in position}

    def _named(self, values: Sequence[str]) -> dict[str, str]:
        return dict(zip(self._names, values, strict=True))


def open_space(routes: Expression, database: KnobDatabase, exclude: Iterable[str] = ()) -> RouteSpace:
    """The space of a route expression and its exclude rules, both as the user writes them.

    Raises:
        BadInput: what `parse` and `parse_partial` refuse.
    """
    rules = [parse_partial(rule, database) for rule in exclude]
    return RouteSpace(parse(routes, database), database, rules)
