"""Documents with one part replaced by something that does not belong there."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

texts = st.text(st.characters(codec=None), max_size=30)
odd = st.sampled_from(
    [
        "",
        "\0",
        "../x",
        "/etc/passwd",
        "a/b",
        "a" * 5000,
        "\u202e",
        "\ud800",
        "ａ",
        "-a=[on",
        "∞",
        "nan",
        "%s{}",
        "x" * 300,
    ]
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    texts,
    odd,
    st.just(10**400),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts | odd, inner, max_size=4),
    max_leaves=8,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every part of a document."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, part in inside for place in places(part, (*at, key)))]


def changed(document: Any, place: tuple[Any, ...], value: Any, key: str | None) -> Any:
    """A copy of a document with one part replaced, or with a key added to the table there."""
    copy = json.loads(json.dumps(document))
    if not place:
        return {**copy, key: value} if key is not None else value
    part = copy
    for step in place[:-1]:
        part = part[step]
    if key is not None and isinstance(part[place[-1]], dict):
        part[place[-1]][key] = value
    else:
        part[place[-1]] = value
    return copy


def mutations(document: Any) -> st.SearchStrategy[Any]:
    return st.builds(
        changed, st.just(document), st.sampled_from(places(document)), values, st.none() | texts | odd
    )
