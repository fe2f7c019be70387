from __future__ import annotations

import pytest
from routetune.tasks.errors import BadInput
from routetune.tasks.store import Store
from routetune.tasks.store.files import StoreWarning

MODEL = "a" * 64


def test_a_signature_is_kept_once_and_can_change(store: Store) -> None:
    assert store.traits.get(MODEL) is None
    store.traits.put(MODEL, {"operators": {"Conv": 1}})
    (path,) = store.traits.folder.iterdir()
    before = path.stat().st_mtime_ns
    store.traits.put(MODEL, {"operators": {"Conv": 1}})
    assert path.stat().st_mtime_ns == before
    store.traits.put(MODEL, {"operators": {"Conv": 2}})
    assert store.traits.get(MODEL) == {"operators": {"Conv": 2}}


def test_a_damaged_one_is_set_aside_and_made_again(store: Store) -> None:
    store.traits.put(MODEL, {"operators": {}})
    (path,) = store.traits.folder.iterdir()
    path.write_bytes(b"")
    with pytest.warns(StoreWarning, match="damaged traits"):
        assert store.traits.get(MODEL) is None
    store.traits.put(MODEL, {"operators": {}})
    assert store.traits.get(MODEL) == {"operators": {}}


def test_only_a_digest_names_one(store: Store) -> None:
    with pytest.raises(BadInput):
        store.traits.put("../x", {})
