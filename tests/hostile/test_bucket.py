"""Objects of a bucket that somebody edited, with all checksums put right, as a host with no mirror yet meets
them: refused, passed over or taken; never a traceback, never a file outside the mirror."""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from routetune.tasks.routes.tuning_log import parse_log
from routetune.tasks.store import Store, mirror, open_store
from routetune.tasks.store.files import StoreWarning
from routetune.tasks.store.inventory import list_remote
from routetune.tasks.store.loader import load_current
from routetune.tasks.store.sealed import seal

from tests.hostile.bounds import LONG, fuzzing, refusal, tree
from tests.hostile.documents import mutations

ENVIRONMENT = "0" * 16
KEY = {"stage": "build", "route": "-a=on"}
LOG = '{"iter":0,"build_route":"-a=b","gpu_time":1.0,"accuracy_loss":{"y":0.5}}'
MANIFEST = {
    "bound_to": {"target": {}, "environment": {"device": "cpu", "backend": "onnxruntime"}},
    "route": "-a=on",
    "options": {"threads": 1},
}


def fill(store: Store) -> None:
    blob = store.blobs.put_bytes(b"engine")
    store.entries.put(KEY, {"engine": {"digest": blob, "size": 6}}, [blob])
    store.publications.publish("t", ENVIRONMENT, blob, MANIFEST)
    store.publications.publish("t", ENVIRONMENT, blob, MANIFEST)
    store.priors.add(parse_log(LOG), "log.jsonl", "t")
    store.traits.put("0" * 64, {"operators": {"Conv": 1}})
    with store.runs.open("t", {"target": {}, "environment": {}}) as run:
        run.finish("finished", {"routes": 1})


def use_all(url: str) -> None:
    """Everything that reads a bucket."""
    store = open_store(url)
    refusal(lambda: store.entries.get(KEY))
    refusal(lambda: store.entries.put(KEY, {"engine": None}))
    refusal(store.runs.list)
    refusal(lambda: store.priors.promising("t"))
    refusal(lambda: store.traits.get("0" * 64))
    refusal(lambda: store.publications.current("t", ENVIRONMENT))
    refusal(lambda: store.publications.verify("t", ENVIRONMENT))
    refusal(lambda: load_current(url, "t"))
    refusal(lambda: store.publications.rollback("t", ENVIRONMENT))
    refusal(lambda: store.mirror and list_remote(store.mirror))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["entries", "runs", "priors", "traits", "switches", "manifest"])
def test_an_edited_object(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, cache = tmp_path / "shared", tmp_path / "cache"
    url = f"file://{shared}"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    fill(open_store(url))
    original = tmp_path / "original"
    shutil.copytree(shared, original)
    path = sorted(one for one in shared.rglob("*.json") if kind in str(one.relative_to(shared)))[-1]
    content = json.loads(path.read_bytes())
    del content["check"]
    inside = (shared, cache)
    outside = elsewhere(tmp_path, *inside)

    @fuzzing(LONG // 40)
    @given(mutations(content) | st.just(None))
    def check(edited: Any) -> None:
        for folder in inside:
            shutil.rmtree(folder, ignore_errors=True)
        mirror._known.clear()
        shutil.copytree(original, shared)
        try:
            path.unlink()
            path.write_bytes(b"\0damaged" if edited is None else seal(edited))
        except (TypeError, AttributeError, UnicodeEncodeError, ValueError):
            return  # nothing that the format can hold
        if kind == "manifest":
            _make_known(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StoreWarning)
            use_all(url)

    check()
    assert elsewhere(tmp_path, *inside) == outside


def elsewhere(home: Path, *folders: Path) -> set[Path]:
    return {path for path in tree(home) if not any(path.is_relative_to(folder) for folder in folders)}


def _make_known(manifest: Path) -> None:
    """The newest switch knows the edited manifest, as one who forges it would have it."""
    switch = sorted((manifest.parents[2] / "switches").glob("*.json"))[-1]
    now = json.loads(switch.read_bytes()) | {"manifest": hashlib.sha256(manifest.read_bytes()).hexdigest()}
    del now["check"]
    switch.unlink()
    switch.write_bytes(seal(now))
