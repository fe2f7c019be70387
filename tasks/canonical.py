"""Canonical JSON: one text for one value, so that equal keys have equal digests on every machine."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any


def dumps(value: Any) -> str:
    """`value` as JSON with sorted keys, no spaces, ASCII only.

    Only plain JSON is taken: None, bool, int, finite float, str, list, tuple (written as a list) and dict
    with string keys. Anything else would have to be guessed at, and a guess in a key is a wrong cache hit.

    Raises:
        TypeError: something in `value` is not plain JSON; the message says where. Write floats that may not
            be finite through `number`.
    """
    try:
        _check(value, "value")
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except RecursionError:
        raise TypeError("value is nested too deeply, or contains itself: not plain JSON") from None
    except ValueError as error:  # an int beyond the interpreter's limit of digits
        raise TypeError(f"not plain JSON: {error}") from None


def digest(value: Any) -> str:
    """SHA-256 of `dumps(value)`, as 64 hex digits.

    Raises:
        TypeError: as `dumps`.
    """
    return hashlib.sha256(dumps(value).encode("ascii")).hexdigest()


def number(value: float) -> float | str:
    """`value` as strict JSON can hold it: itself where finite, else "nan", "inf" or "-inf"."""
    value = float(value)
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def to_float(value: float | str) -> float:
    """The float that `number` wrote.

    Raises:
        TypeError: `value` is neither a number nor one of "nan", "inf", "-inf".
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if value in ("nan", "inf", "-inf"):
        return float(value)
    raise TypeError(f'expected a number or one of "nan", "inf", "-inf", found {value!r}')


def _check(value: Any, where: str) -> None:
    """Raise TypeError unless `value` is plain JSON all the way down.

    json.dumps alone is too kind: it turns the keys 1 and True into strings, so two keys could become one.
    """
    if value is None or isinstance(value, (str, bool, int)):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError(f"{where} is {value}, which strict JSON cannot hold; write it through number()")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _check(item, f"{where}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(
                    f"{where} has the key {key!r} of type {type(key).__name__}; keys must be strings"
                )
            _check(item, f"{where}[{key!r}]")
    else:
        raise TypeError(f"{where} is a {type(value).__name__}, which is not plain JSON")
