from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from routetune.tasks.canonical import digest, dumps, number, to_float

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(plain)
def test_round_trip_is_lossless_and_ascii(value: Any) -> None:
    text = dumps(value)
    assert text.isascii()
    assert json.loads(text) == value
    assert dumps(json.loads(text)) == text


def test_order_of_keys_does_not_count() -> None:
    assert dumps({"b": 1, "a": [1, 2.5, None, True]}) == '{"a":[1,2.5,null,true],"b":1}'
    assert digest({"b": 1, "a": 2}) == digest({"a": 2, "b": 1})
    assert digest({"a": 2}) != digest({"a": 2.0})
    assert digest([1, "1"]) != digest(["1", 1])
    assert digest((1, 2)) == digest([1, 2])
    # The known digest of '{}': a changed algorithm would orphan every store.
    assert digest({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


class Sulking:
    def __getstate__(self) -> object:
        raise RuntimeError("I have no state")


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": {1: 2}}, "'a'"),
        ({True: 1}, "True"),
        ({None: 1}, "None"),
        ([0, float("nan")], "value[1] is nan"),
        (float("inf"), "inf"),
        ({"path": Path("x")}, "PosixPath"),
        ({"s": {1, 2}}, "set"),
        (b"bytes", "bytes"),
        (np.int64(3), "int64"),
        (np.zeros(2), "ndarray"),
        ({"p": Sulking()}, "Sulking"),
        pytest.param(10**5000, "digits", id="huge"),
    ],
)
def test_what_is_not_plain_json_is_refused_by_place(value: Any, where: str) -> None:
    with pytest.raises(TypeError) as raised:
        dumps(value)
    assert where in str(raised.value)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(TypeError, match="contains itself"):
        digest(loop)


@given(st.floats() | st.integers(min_value=-(2**53), max_value=2**53))
def test_every_float_survives(value: float) -> None:
    written = json.loads(dumps(number(value)))
    back = to_float(written)
    assert math.isnan(back) if math.isnan(value) else back == value


@pytest.mark.parametrize("value", ["Infinity", "NaN", "1.5", "", True, None, [1.0]])
def test_only_numbers_and_the_three_words_are_read_back(value: Any) -> None:
    with pytest.raises(TypeError, match="expected a number"):
        to_float(value)
