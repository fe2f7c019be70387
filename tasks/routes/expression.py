"""The route language: trtexec's expressions, with globs and exclude rules besides.

    -knob=[a|b|c]    variable: the listed values, in this order
    -knob=[*]        variable: all allowed values
    -knob=a          fixed
    -kgen:*=[*]      a glob: each bounded knob of that name; a list must be allowed for all of them

White space separates the tokens; within brackets it does not count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from routetune.tasks.errors import BadInput
from routetune.tasks.reading import TEXT, read_bounded
from routetune.tasks.routes.knob import FAMILIES, OPEN, Knob, KnobDatabase, quoted, split_list
from routetune.tasks.routes.route import Route

_TOKEN = re.compile(r"(?:[^\s\[\]]|\[[^\[\]]*\])+")
_LIST = re.compile(r"(?P<before>[^\[]*)\[(?P<inside>[^\]]*)\](?P<after>.*)", re.DOTALL)
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*")

#: Of a glob; the time to match goes with their number.
_MOST_STARS = 100

Expression = str | Sequence[str]


@dataclass(frozen=True, slots=True)
class Term:
    """One knob of an expression.

    Attributes:
        knob: the knob.
        values: the values to try in the user's order; exactly one when fixed.
        variable: whether it was written as a list, if only of one value: a search then also looks at
            the knob's default.
    """

    knob: Knob
    values: tuple[str, ...]
    variable: bool


@dataclass(frozen=True, slots=True)
class _Token:
    """A token, split but not yet looked up: `-name=[a|b]` or `-name=a`."""

    text: str
    name: str
    values: tuple[str, ...]
    listed: bool

    @property
    def is_glob(self) -> bool:
        return "*" in self.name


def parse(expression: Expression, database: KnobDatabase) -> tuple[Term, ...]:
    """The terms of an expression, given as one string or as several that white space joins.

    Raises:
        BadInput: no token at all, unknown knob, value not allowed, empty list, duplicate value, the same
            knob twice, text before or after brackets, no `=`, no value, unbalanced bracket, a list for an
            unbounded knob, a glob that matches no bounded knob.
    """
    tokens = list(_tokens(expression))
    if not tokens:
        raise BadInput("the route expression is empty; name at least one knob, as in -knob=[a|b]")
    named = _named_once(tokens)
    terms: list[Term] = []
    owner: dict[str, str] = {}
    for token in tokens:
        for term in _glob_terms(token, database, named) if token.is_glob else [_term(token, database)]:
            name = term.knob.name
            if name in owner:
                raise BadInput(
                    f"two globs match knob {name}: {quoted(owner[name])} and {quoted(token.text)}; "
                    "name the knob itself, or narrow one of them"
                )
            owner[name] = token.text
            terms.append(term)
    return tuple(terms)


def parse_partial(text: str, database: KnobDatabase) -> dict[str, str]:
    """An exclude rule: fixed values that must not come together, as knob name -> value.

    It stays a dict, and is matched against full assignments: a rule may name a default, which a canonical
    route leaves out.

    Raises:
        BadInput: an empty rule (it would exclude everything), a list or a glob in it, and what `parse`
            refuses.
    """
    rule = _fixed(text, database, "an exclude rule")
    if not rule:
        raise BadInput("an exclude rule is empty, which would exclude everything; write it as -a=on -b=2")
    return rule


def parse_route(text: str, database: KnobDatabase) -> Route:
    """One route from its string, in any order and spelling; "" is the default route.

    Raises:
        BadInput: a list or a glob in it, and what `parse` refuses.
    """
    return database.route(_fixed(text, database, "a route"))


def read_expression_file(path: str | PathLike[str]) -> str:
    """The expression in a file of one token a line; `#` begins a comment at a line's start or after space.

    Raises:
        BadInput: the file cannot be read, is not UTF-8, or holds no token.
    """
    try:
        text = read_bounded(Path(path), "route file", TEXT).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise BadInput(f"route file {str(path)!r} cannot be read as UTF-8 text: {error}") from error
    lines = (_COMMENT.sub("", line).strip() for line in text.splitlines())
    expression = "\n".join(line for line in lines if line)
    if not expression:
        raise BadInput(f"route file {str(path)!r} holds no token; write one a line, as in -knob=[a|b]")
    return expression


def _tokens(expression: Expression) -> Iterator[_Token]:
    parts = [expression] if isinstance(expression, str) else list(expression)
    for part in parts:
        if not isinstance(part, str):
            raise BadInput(f"a route expression is text or a list of texts, found {type(part).__name__}")
    text = " ".join(parts).strip()
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        end = match.end() if match else position
        if end < len(text) and not text[end].isspace():
            raise BadInput(
                f"unbalanced bracket {text[end]} in {quoted(text[position : end + 40])}; "
                "lists are written -knob=[a|b] and do not nest"
            )
        yield _split(text[position:end])
        position = end
        while position < len(text) and text[position].isspace():
            position += 1


def _split(text: str) -> _Token:
    name, equals, rest = text.partition("=")
    if not equals:
        raise BadInput(f"no '=' in {quoted(text)}; write -knob=value or -knob=[a|b], without spaces")
    found = _LIST.fullmatch(rest)
    if found is None:
        if not rest:
            raise BadInput(f"no value after '=' in {quoted(text)}; write -knob=value, without spaces")
        if "|" in rest:
            raise BadInput(f"several values without brackets in {quoted(text)}; write {name}=[{rest}]"[:300])
        return _Token(text, name, (rest,), listed=False)
    for where in ("before", "after"):
        if found[where]:
            raise BadInput(f"text {quoted(found[where])} {where} the brackets in {quoted(text)}; remove it")
    if OPEN in found["inside"]:
        raise BadInput(f"open range in {quoted(text)}; it can be fixed to one value, never swept")
    values = split_list(found["inside"])
    if not values:
        raise BadInput(f"empty list in {quoted(text)}; list at least one value")
    for value, count in Counter(values).items():
        if count > 1:
            raise BadInput(f"value {quoted(value)} is listed {count} times in {quoted(text)}; list it once")
    return _Token(text, name, tuple(values), listed=True)


def _named_once(tokens: Sequence[_Token]) -> set[str]:
    """The knobs named in full; BadInput when one is named twice."""
    named: set[str] = set()
    for token in tokens:
        if token.name in named:
            kind = "glob" if token.is_glob else "knob"
            raise BadInput(f"{kind} {quoted(token.name)} is there twice; keep one of the two tokens")
        named.add(token.name)
    return named


def _term(token: _Token, database: KnobDatabase) -> Term:
    return _checked(database[token.name], token)


def _glob_terms(token: _Token, database: KnobDatabase, named: set[str]) -> list[Term]:
    """A term for each bounded knob that the glob matches, but for those that are named in full."""
    if token.name[0] not in FAMILIES:
        raise BadInput(
            f"glob {quoted(token.name)} has no family; begin it with -, + or @, as in -{token.name}"
        )
    if token.name.count("*") > _MOST_STARS:
        raise BadInput(
            f"glob {quoted(token.name)} has more than {_MOST_STARS} stars; name the knobs themselves"
        )
    knobs = database.glob(token.name)
    if not knobs:
        raise BadInput(f"glob {quoted(token.name)} matches no bounded knob; `routetune knobs` lists them")
    try:
        return [_checked(knob, token) for knob in knobs if knob.name not in named]
    except BadInput as problem:
        raise BadInput(f"glob {quoted(token.text)}: {problem}") from None


def _checked(knob: Knob, token: _Token) -> Term:
    if token.listed and knob.values is None:
        raise BadInput(
            f"knob {knob.name} is unbounded ({knob.allowed or 'any value'}), so it can be fixed, never "
            f"swept; found {quoted(token.text)}"
        )
    if token.listed and knob.values is not None and token.values == ("*",):
        return Term(knob, knob.values, variable=True)
    for value in token.values:
        knob.check(value)
    return Term(knob, token.values, variable=token.listed)


def _fixed(text: str, database: KnobDatabase, what: str) -> dict[str, str]:
    tokens = list(_tokens(text))
    _named_once(tokens)
    for token in tokens:
        if token.listed or token.is_glob:
            raise BadInput(f"{what} holds fixed values only, as in -a=on -b=2; found {quoted(token.text)}")
    return {token.name: _term(token, database).values[0] for token in tokens}
