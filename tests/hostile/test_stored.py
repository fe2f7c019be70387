"""JSON of the store that somebody edited, with all checksums put right: refused, set aside or taken."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from routetune.tasks.routes.tuning_log import parse_log
from routetune.tasks.store import Store, open_store
from routetune.tasks.store.files import StoreWarning
from routetune.tasks.store.loader import load_current
from routetune.tasks.store.manifests import BadPublication
from routetune.tasks.store.sealed import seal

from tests.hostile.bounds import LONGEST, fuzzing, refusal, runs, tree
from tests.hostile.documents import changed, mutations, places

#: What is passed over is told of, and here that is most of what is read.
pytestmark = pytest.mark.filterwarnings("ignore::routetune.tasks.store.files.StoreWarning")

MANIFEST = {
    "bound_to": {"target": {}, "environment": {"device": "cpu", "backend": "onnxruntime"}},
    "route": "-a=on",
    "options": {"threads": 1},
}


class Published:
    """A publication in a store of its own, whose files are edited by one who can write to the store."""

    def __init__(self, folder: Path) -> None:
        self.store = open_store(folder / "store")
        engine = self.store.blobs.put_bytes(b"engine")
        published = self.store.publications.publish("t", "0" * 16, engine, MANIFEST).engine
        self.manifest, self.pointer = (
            published.with_name("manifest.json"),
            published.parents[2] / "current.json",
        )
        self.manifest.chmod(0o644)
        self._originals = {path: path.read_bytes() for path in (self.manifest, self.pointer)}
        self.contents = {path: json.loads(raw) for path, raw in self._originals.items()}
        for content in self.contents.values():
            del content["check"]

    def edit(self, path: Path, content: Any) -> None:
        """Put `content` there with all checksums right; it is refused in a sentence, or loaded."""
        for original, raw in self._originals.items():
            original.write_bytes(raw)
        try:
            path.write_bytes(seal(content))
        except (TypeError, AttributeError, UnicodeEncodeError, ValueError):
            return  # nothing that the format can hold
        if path == self.manifest:  # as `forge` would: the pointer knows the edited file
            known = {"manifest": hashlib.sha256(path.read_bytes()).hexdigest()}
            self.pointer.write_bytes(seal(self.contents[self.pointer] | known))
        root, environment = self.store.root, MANIFEST["bound_to"]["environment"]  # type: ignore[index]
        refusal(lambda: load_current(root, "t"))
        refusal(lambda: load_current(root, "t", today=environment))
        refusal(lambda: self.store.publications.verify("t", "0" * 16))


@runs
def test_stored_json_that_was_edited_with_all_checksums_put_right(examples: int, tmp_path: Path) -> None:
    """By one who can write to the store: refused or loaded, never a traceback, never a file outside."""
    published = Published(tmp_path)
    outside = tree(tmp_path) - tree(published.store.root)

    @fuzzing(examples)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(list(published.contents)))
        published.edit(path, data.draw(mutations(published.contents[path])))

    check()
    assert tree(tmp_path) - tree(published.store.root) == outside


def test_of_what_is_too_long_a_sentence_quotes_the_beginning(tmp_path: Path) -> None:
    published = Published(tmp_path)
    for path, content in published.contents.items():
        for place in places(content):
            for junk in ("a" * 2 * LONGEST, ["a" * 2 * LONGEST]):
                published.edit(path, changed(content, place, junk, None))


def test_stored_json_that_is_deep_is_damage(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    published = store.publications.publish("t", "0" * 16, store.blobs.put_bytes(b"engine"), MANIFEST)
    body = b'{"a":' + b"[" * 10**5
    raw = b'{"check":"' + hashlib.sha256(body).hexdigest().encode() + b'",' + body[1:]
    for path in (published.engine.with_name("manifest.json"), published.engine.parents[2] / "current.json"):
        path.chmod(0o644)
        path.write_bytes(raw)
        with pytest.raises(BadPublication):
            load_current(store.root, "t")


KEY = {"stage": "build", "route": "-a=on"}
LOG = '{"iter":0,"build_route":"-a=b","gpu_time":1.0,"accuracy_loss":{"y":0.5}}'


def a_run(store: Store) -> None:
    with store.runs.open("t", {"target": {}, "environment": {}}) as run:
        run.finish("finished", {"routes": 1})


#: Folder of the store -> what writes a file there, and what reads it.
STORED: dict[str, tuple[Callable[[Store], Any], Callable[[Store], Any]]] = {
    "entries": (
        lambda store: store.entries.put(KEY, {"engine": [1]}, [store.blobs.put_bytes(b"x")]),
        lambda store: (store.entries.get(KEY), list(store.entries)),
    ),
    "priors": (
        lambda store: store.priors.add(parse_log(LOG), "log.jsonl", "t"),
        lambda store: (store.priors.trials("t"), store.priors.promising("t")),
    ),
    "traits": (
        lambda store: store.traits.put("0" * 64, {"operators": {"Conv": 1}}),
        lambda store: store.traits.get("0" * 64),
    ),
    "runs": (
        a_run,
        lambda store: [(run.started_at, run.device_seconds) for run in store.runs.list("t")],
    ),
}


@runs
@pytest.mark.parametrize("kind", STORED)
def test_other_files_of_the_store(kind: str, examples: int, tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    write, read = STORED[kind]
    write(store)
    [path] = (store.root / kind).rglob("*.json")
    original = path.read_bytes()
    content = json.loads(original)
    del content["check"]
    outside = tree(tmp_path) - tree(store.root)

    @fuzzing(examples)
    @given(mutations(content))
    def check(edited: Any) -> None:
        try:
            raw = seal(edited)
        except (TypeError, AttributeError, UnicodeEncodeError, ValueError):
            return  # nothing that the format can hold
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StoreWarning)
            refusal(lambda: read(store))

    check()
    path.write_bytes(original)
    assert read(store)
    assert tree(tmp_path) - tree(store.root) == outside
