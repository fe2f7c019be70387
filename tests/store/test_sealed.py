from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from routetune.tasks.errors import BadInput
from routetune.tasks.store.files import Damaged
from routetune.tasks.store.sealed import read_hashed, read_sealed, seal, unseal

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(
    st.dictionaries(st.text().filter(lambda key: key != "check"), PLAIN, min_size=1),
    st.sampled_from([None, 2]),
)
def test_what_was_sealed_comes_back_and_is_strict_json(content, indent):
    raw = seal(content, indent)
    assert unseal(raw) == content
    check, rest = json.loads(raw).pop("check"), json.loads(raw)
    assert len(check) == 64
    del rest["check"]
    assert rest == content


@pytest.mark.parametrize("indent", [None, 2])
def test_every_flipped_bit_every_cut_and_every_insertion_is_found(indent):
    raw = seal({"schema": 1, "value": {"loss": 0.001, "name": "check"}}, indent)
    for place in range(len(raw)):
        flipped = [raw[:place] + bytes([raw[place] ^ (1 << bit)]) + raw[place + 1 :] for bit in range(8)]
        for bad in (*flipped, raw[:place], raw[:place] + b" " + raw[place:]):
            with pytest.raises(Damaged):
                unseal(bad)
    with pytest.raises(Damaged, match="checksum"):
        unseal(raw + b" ")


def test_what_is_not_json_is_refused_even_with_a_right_checksum():
    import hashlib

    for body in (b'{"value":NaN}', b'{"value":', b"{}{}"):
        raw = b'{"check":"' + hashlib.sha256(body).hexdigest().encode() + b'",' + body[1:]
        with pytest.raises(Damaged, match="strict JSON"):
            unseal(raw)
    with pytest.raises(TypeError):
        seal({"value": float("nan")})


def test_schemas(tmp_path):
    path = tmp_path / "file.json"
    path.write_bytes(seal({"schema": 2, "x": 1}))
    assert read_sealed(path, 2, "thing")["x"] == 1
    with pytest.raises(BadInput, match=r"thing .*file.json has schema 2, this routetune reads up to 1"):
        read_sealed(path, 1, "thing")
    for schema in (0, "1", None, True):
        path.write_bytes(seal({"schema": schema}))
        with pytest.raises(Damaged, match="schema"):
            read_sealed(path, 1, "thing")
    with pytest.raises(FileNotFoundError):
        read_sealed(tmp_path / "none", 1, "thing")
    with pytest.raises(Damaged, match="cannot be read"):
        read_sealed(tmp_path, 1, "thing")


@given(st.dictionaries(st.text(), PLAIN), st.dictionaries(st.text(), PLAIN | st.lists(PLAIN), max_size=3))
def test_a_field_is_passed_over_only_in_what_is_known_to_the_byte(tmp_path_factory, long, rest):
    path = tmp_path_factory.mktemp("sealed") / "file.json"
    content = {**rest, "schema": 1, "duel": {"deeper": long, "duel": [long]}}
    content.pop("check", None)
    path.write_bytes(seal(content, 2))
    whole, digest = read_hashed(path, 1, "thing")
    assert whole == content
    kept = {name: value for name, value in content.items() if name != "duel"}
    assert read_hashed(path, 1, "thing", digest, unread="duel") == (kept, digest)
    assert read_hashed(path, 1, "thing", digest) == (content, digest)
    path.write_bytes(path.read_bytes().replace(b'"schema": 1', b'"schema": 2'))
    with pytest.raises(Damaged, match="checksum"):
        read_hashed(path, 1, "thing", digest, unread="duel")
