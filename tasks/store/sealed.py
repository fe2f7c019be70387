"""JSON files that carry the SHA-256 of their own text, so that one flipped byte in them is found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from routetune.tasks.canonical import dumps
from routetune.tasks.errors import BadInput
from routetune.tasks.store.files import Damaged, read_file

# The check comes first and covers the bytes of the rest, so that neither the parser nor the order of keys
# has a say in it.
_HEAD = b'{"check":"'
_TAIL = b'",'
_BODY = len(_HEAD) + 64 + len(_TAIL)


def seal(content: Mapping[str, Any], indent: int | None = None) -> bytes:
    """`content` as JSON with its own checksum in front.

    Args:
        content: plain JSON, not empty, without the key "check".
        indent: spaces a level, for files that people read; None is the compact form.

    Raises:
        TypeError: something in it is not plain JSON.
    """
    text = dumps(dict(content))
    if indent is not None:
        text = json.dumps(json.loads(text), indent=indent, sort_keys=True)
    body = text.encode("ascii")
    return _HEAD + hashlib.sha256(body).hexdigest().encode("ascii") + _TAIL + body[1:]


def unseal(raw: bytes) -> dict[str, Any]:
    """What `seal` was given.

    Raises:
        Damaged: `raw` is not, to the byte, something that `seal` wrote.
    """
    if not raw:
        raise Damaged("the file is empty")
    if not raw.startswith(_HEAD) or raw[_BODY - len(_TAIL) : _BODY] != _TAIL:
        raise Damaged("the file does not begin with a checksum")
    text = b"{" + body(raw)
    found, expected = hashlib.sha256(text).hexdigest(), raw[len(_HEAD) : len(_HEAD) + 64]
    if found.encode("ascii") != expected:
        raise Damaged(f"the checksum in it is {expected.decode('ascii', 'replace')}, its text gives {found}")
    return _parsed(text)


def is_sealed(_: str, raw: bytes) -> bool:
    """Whether `raw`, whatever its name, is something that `seal` wrote."""
    try:
        unseal(raw)
    except Damaged:
        return False
    return True


def body(raw: bytes) -> bytes:
    """The text behind the checksum, unchecked; keys in order, without the opening brace. `raw` may be cut."""
    return raw[_BODY:]


def read_sealed(path: Path, schema: int, what: str) -> dict[str, Any]:
    """Read a sealed file whose field "schema" is at most `schema`.

    Raises:
        FileNotFoundError: it is gone.
        Damaged: it cannot be read (then Unreadable), is not sealed, or has no schema.
        BadInput: a newer routetune wrote it.
    """
    return read_hashed(path, schema, what)[0]


def read_hashed(
    path: Path, schema: int, what: str, expected: str | None = None, unread: str | None = None
) -> tuple[dict[str, Any], str]:
    """As `read_sealed`, and the SHA-256 of the whole file, of the same bytes.

    Args:
        expected: the SHA-256 of the whole file, where another sealed file has it: then the checksum within
            has nothing to add, and is not computed.
        unread: a field that the caller does not want: where it can be passed over without being parsed, which
            is most of the time that a long one takes, it is missing from the answer.
    """
    raw = read_file(path)
    digest = hashlib.sha256(raw).hexdigest()
    if digest == expected:
        text = b"{" + body(raw)
        content = _parsed(text if unread is None else _without(unread, text))
    else:
        content = unseal(raw)
    _check_schema(content, schema, f"{what} {path}")
    return content, digest


def _without(field: str, text: bytes) -> bytes:
    """The text without a field of the outermost level, where it was written with an indent of 2.

    No string of JSON spans lines, so a line's blanks alone say how deep it is.
    """
    key = f'\n  "{field}": '.encode()
    start = text.find(key)
    end = start + len(key) - 1
    # From quote to quote, since a list of numbers has none, but as many line ends as numbers.
    while start >= 0 and (end := text.find(b'"', end + 1)) >= 0:
        if text[end - 3 : end] == b"\n  ":
            return text[:start] + text[end - 3 :]
    return text


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"the file is not strict JSON: {error}") from error
    return content


def _check_schema(content: Mapping[str, Any], schema: int, what: str) -> None:
    found = content.get("schema")
    if type(found) is not int or found < 1:
        raise Damaged(f"its schema is {found!r:.80}, not a number from 1 to {schema}")
    if found > schema:
        raise BadInput(
            f"{what} has schema {found}, this routetune reads up to {schema}: use a newer routetune"
        )


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not a JSON number")
