"""Garbage of a store in a bucket: of the mirror, and when asked of the bucket itself."""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path

import pytest
from routetune.tasks.collect import collect
from routetune.tasks.errors import BadInput
from routetune.tasks.store import open_store
from routetune.tasks.store.files import StoreWarning
from routetune.tasks.store.keys import stage_key

from tests.buckets import FIRST, SECOND, THIRD, Server, Site, publish

KEY = stage_key("build", code="0" * 64, route="-a=on")
DAY = 86_400.0


def age(paths: list[Path], days: float) -> None:
    then = time.time() - days * DAY
    for path in paths:
        os.utime(path, (then, then))


def test_a_collector_takes_nothing_that_others_have_not_got_yet(site: Site, bucket_server: Server) -> None:
    one = site.open("one")
    site.go_away()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        one = site.open("one")
        digest = one.blobs.put_bytes(FIRST)
        value = {"engine": {"digest": digest, "size": len(FIRST)}}
        path = one.entries.put(KEY, value, [digest]).path
        age([path, *(one.root / "blobs").glob("??/??/*")], 30)
        collected = collect(site.url, max_size=0)
    assert collected["kept"] == {"entries": 1, "blobs": 1}
    site.come_back(bucket_server)
    site.open("one")
    age([path, *(one.root / "blobs").glob("??/??/*")], 30)
    assert collect(site.url, max_size=0)["kept"] == {"entries": 0, "blobs": 0}
    assert len(site.files("entries/**/*")) == 1  # the bucket is not collected
    assert site.open("one").entries.get(KEY) is not None


def test_the_bucket_is_collected_when_asked_and_keeps_what_is_pinned_or_new(site: Site) -> None:
    one = site.open("one")
    kept = {}
    for name, data in {"old": FIRST, "pinned": SECOND, "published": THIRD, "new": b"new" * 99}.items():
        kept[name] = one.blobs.put_bytes(data)
        value = {"engine": {"digest": kept[name], "size": len(data)}}
        one.entries.put(KEY | {"route": name}, value, [kept[name]])
    publish(one, THIRD)
    (site.bucket / "pins").write_text(f"{kept['pinned']}  # mine\n")
    loose = site.bucket / f"blobs/ab/cd/{'abcd' + '0' * 60}"
    loose.parent.mkdir(parents=True)
    loose.write_bytes(b"named by nothing")
    everything = [path for path in site.bucket.rglob("*") if path.is_file()]
    age(
        [path for path in everything if kept["new"] not in str(path) and b'"new"' not in path.read_bytes()],
        30,
    )
    before = site.files()
    dry = collect(site.url, max_size=0, dry_run=True, remote=True)
    assert site.files() == before
    done = collect(site.url, max_size=0, remote=True)
    assert {k: v for k, v in done.items() if k != "dry_run"} == {
        k: v for k, v in dry.items() if k != "dry_run"
    }
    assert done["store"] == site.url
    gone = {"engines": 1, "blobs": 1, "entries": 1}
    assert {kind: tally["files"] for kind, tally in done["collected"].items() if tally["files"]} == gone
    assert {name.split("/")[-1] for name in site.files("blobs/**/*")} == {
        kept[name] for name in ("pinned", "published", "new")
    }
    fresh = site.open("fresh")
    names = [name for name in kept if fresh.entries.get(KEY | {"route": name})]
    assert names == ["pinned", "published", "new"]


def test_a_folder_has_no_bucket_to_collect(tmp_path: Path) -> None:
    open_store(tmp_path / "store")
    with pytest.raises(BadInput, match="--remote is for one in a bucket"):
        collect(tmp_path / "store", remote=True)
