"""A mirror: what becomes of a store in a bucket when its remote is away, crowded, damaged or planted."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from routetune.tasks.collect import collect
from routetune.tasks.errors import BadInput, RoutetuneError
from routetune.tasks.store import Store, mirror, open_store
from routetune.tasks.store.files import StoreWarning
from routetune.tasks.store.keys import stage_key
from routetune.tasks.store.loader import load_current
from routetune.tasks.store.manifests import lock_of
from routetune.tasks.store.mirror import folder_of, mirror_of
from routetune.tasks.store.sealed import seal
from routetune.tasks.store.signing import open_signer

from tests.buckets import Server

ENVIRONMENT = "0123456789abcdef"
KEY = stage_key("build", code="0" * 64, route="-a=on")
FIRST, SECOND, THIRD = b"first engine" * 99, b"second engine" * 99, b"third engine" * 99
DAY = 86_400.0


class Site:
    """Hosts that share a bucket which can be away, each with a cache of its own."""

    def __init__(self, url: str, bucket: Path, home: Path, patch: pytest.MonkeyPatch) -> None:
        self.url, self.bucket, self.home, self._patch = url, bucket, home, patch

    def open(self, host: str, write: bool = True) -> Store:
        """The store as a new process of a host opens it."""
        mirror._known.clear()
        self._patch.setenv("XDG_CACHE_HOME", str(self.home / host))
        return open_store(self.url, write)

    def go_away(self) -> None:
        self._patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # discard: nobody listens there

    def come_back(self, server: Server) -> None:
        self._patch.setenv("AWS_ENDPOINT_URL", server.variables["AWS_ENDPOINT_URL"])

    def files(self, name: str = "**/*") -> list[str]:
        return sorted(str(p.relative_to(self.bucket)) for p in self.bucket.glob(name) if p.is_file())


@pytest.fixture
def site(bucket_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name, value in bucket_server.variables.items():
        monkeypatch.setenv(name, value)
    folder = bucket_server.bucket(f"bucket-{os.urandom(4).hex()}")
    yield Site(f"s3://{folder.name}/team", folder / "team", tmp_path, monkeypatch)
    mirror._known.clear()


def manifest(route: str = "-a=on") -> dict[str, Any]:
    environment = {"backend": "onnxruntime", "device": "cpu", "version.onnxruntime": "1.32.0"}
    bound_to = {"target": {"model": "m"}, "environment": environment}
    return {"bound_to": bound_to, "route": route, "options": {}}


def publish(store: Store, data: bytes, **more: Any) -> int:
    digest = store.blobs.put_bytes(data)
    made = store.publications.publish("digits", ENVIRONMENT, digest, manifest(), **more)
    return made.reference.generation


def history(store: Store) -> list[int]:
    return [past.reference.generation for past in store.publications.history("digits")]


# Entries.


def test_of_two_that_make_one_key_the_first_keeps_its_value_and_the_other_takes_it(site: Site) -> None:
    one, other = site.open("one"), site.open("other")
    assert other.entries.get(KEY) is None
    one.entries.put(KEY, {"engine": "first"}, [one.blobs.put_bytes(FIRST)])
    taken = other.entries.put(KEY, {"engine": "second"}, [other.blobs.put_bytes(SECOND)])
    assert taken.value == {"engine": "first"}
    assert other.blobs.verified(taken.blobs[0]).read_bytes() == FIRST
    assert other.entries.get(KEY) == taken


def test_what_is_made_anew_on_purpose_stays_on_its_host_and_changes_nothing_for_others(site: Site) -> None:
    site.open("one").entries.put(KEY, {"engine": "first"})
    other = site.open("other")
    assert other.entries.put(KEY, {"engine": "second"}, anew=True).value == {"engine": "second"}
    found = site.open("other").entries.get(KEY)
    assert found is not None and found.value == {"engine": "second"}
    found = site.open("third").entries.get(KEY)
    assert found is not None and found.value == {"engine": "first"}


def test_a_death_that_may_yet_be_the_machines_doing_is_told_to_nobody_until_it_is_shared(site: Site) -> None:
    one = site.open("one")
    path = one.entries.put(KEY, {"failure": {"outcome": "crashed"}}, share=False).path
    assert site.open("other").entries.get(KEY) is None
    again = site.open("one")
    assert again.mirror is not None and again.mirror.pending() == []
    again.entries.share(path)
    assert site.open("other").entries.get(KEY) is not None


def test_what_is_made_while_the_bucket_is_away_is_shared_by_the_next_run(
    site: Site, bucket_server: Server
) -> None:
    one = site.open("one")
    site.go_away()
    with pytest.warns(StoreWarning, match="going on with") as told:
        one = site.open("one")
        one.entries.put(KEY, {"engine": "first"}, [one.blobs.put_bytes(FIRST)])
        with one.runs.open("digits", {"environment": {}}) as run:
            pass
        assert publish(one, FIRST) == 1
        assert one.entries.get(KEY | {"route": "other"}) is None
    assert len(told) == 1
    assert history(one) == [1] and site.files() == []
    with pytest.warns(StoreWarning, match="going on with"):  # still away: a new process says so, too
        one = site.open("one")
    assert load_current(site.url, "digits").path.read_bytes() == FIRST
    site.come_back(bucket_server)
    one = site.open("one")
    assert one.mirror is not None and one.mirror.pending() == []
    other = site.open("other")
    assert other.entries.get(KEY) is not None
    assert other.runs.get(run.id).status == "finished"
    assert history(other) == [1] and other.publications.verify("digits", ENVIRONMENT) == []


def test_a_mirror_without_its_bucket_and_without_the_target_says_so(
    site: Site, bucket_server: Server
) -> None:
    site.go_away()
    with (
        pytest.warns(StoreWarning, match="going on with"),
        pytest.raises(RoutetuneError, match="cannot be reached, and nothing of target"),
    ):
        site.open("one", write=False)
        load_current(site.url, "digits")


def test_a_run_under_way_is_gone_on_with_by_its_own_host_alone(site: Site) -> None:
    bound_to = {"environment": {"device": "cpu"}}
    one = site.open("one").runs.open("digits", bound_to)
    other = site.open("other").runs.open("digits", bound_to)
    assert one.id != other.id
    one.finish("interrupted")
    other.finish("failed", reason="no memory")
    assert [run.reason for run in site.open("third").runs.list("digits")] == ["no memory"]


def test_a_large_entry_is_created_once_as_any_other(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "CHUNK", 100)
    one, other = site.open("one"), site.open("other")
    one.entries.put(KEY, {"samples": "1" * 999})
    taken = other.entries.put(KEY, {"samples": "2" * 999})
    assert taken.value == {"samples": "1" * 999}


# Publications.


def test_a_publication_made_meanwhile_on_another_host_is_followed_and_none_is_lost(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_between(site, monkeypatch), pytest.warns(StoreWarning, match="by another host meanwhile"):
        assert publish(site.open("one"), FIRST) == 3
    third = site.open("third")
    assert history(third) == [3, 2, 1]
    assert third.publications.verify("digits", ENVIRONMENT) == []
    assert load_current(site.url, "digits").path.read_bytes() == FIRST


def test_a_publication_gives_way_to_the_same_of_another_host_and_leaves_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_between(site, monkeypatch):
        one = site.open("one")
        with pytest.warns(UserWarning, match="it stays"):
            assert publish(one, FIRST, yields=lambda theirs: theirs.reference.generation == 2) == 2
    assert history(site.open("one")) == [2, 1]
    assert load_current(site.url, "digits").path.read_bytes() == THIRD
    numbers = {name.split("/")[4] for name in site.files("publications/**/*") if "generations" in name}
    assert numbers == {"000001", "000002"}


class in_between:  # reads as a word of the tests
    """Another host publishes twice, once each time that the first one is just about to switch."""

    def __init__(self, site: Site, patch: pytest.MonkeyPatch) -> None:
        from routetune.tasks.store import draft

        self.site, self.patch, self.draft, self.data = site, patch, draft, [SECOND, THIRD]

    def __enter__(self) -> None:
        *before, switch = self.draft.STEPS

        def outrun(made: Any) -> None:
            if self.data:
                data, cache = self.data.pop(0), os.environ["XDG_CACHE_HOME"]
                known = dict(mirror._known)
                self.patch.setattr(self.draft, "STEPS", (*before, switch))
                publish(self.site.open("other"), data)
                self.patch.setattr(self.draft, "STEPS", (*before, outrun, switch))
                self.patch.setenv("XDG_CACHE_HOME", cache)
                mirror._known.update(known)

        self.patch.setattr(self.draft, "STEPS", (*before, outrun, switch))

    def __exit__(self, *_: object) -> None:
        assert self.data in ([], [THIRD])


def test_what_was_published_away_from_the_bucket_gives_way_to_what_came_first(
    site: Site, bucket_server: Server
) -> None:
    publish(site.open("one"), FIRST)
    site.go_away()
    with pytest.warns(StoreWarning, match="going on with"):
        assert publish(site.open("one"), SECOND) == 2
        assert load_current(site.url, "digits").path.read_bytes() == SECOND
    site.come_back(bucket_server)
    assert publish(site.open("other"), THIRD) == 2
    with pytest.warns(StoreWarning, match="theirs counts. Tune again"):
        one = site.open("one")
    assert load_current(site.url, "digits").path.read_bytes() == THIRD
    assert history(one) == [2, 1] and one.publications.verify("digits", ENVIRONMENT) == []
    assert publish(one, SECOND) == 3
    assert history(site.open("other")) == [3, 2, 1]


def test_nothing_is_rolled_back_while_the_bucket_is_away(site: Site, bucket_server: Server) -> None:
    publish(site.open("one"), FIRST)
    publish(site.open("one"), SECOND)
    site.go_away()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        with pytest.raises(RoutetuneError, match="cannot be reached, so nothing was rolled back"):
            site.open("one").publications.rollback("digits", ENVIRONMENT)
    site.come_back(bucket_server)
    assert history(site.open("one")) == [2, 1]


def test_a_signature_travels_and_is_asked_for_on_another_host(site: Site) -> None:
    key, public = site.home / "sign.pem", site.home / "sign.pub.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(key)], check=True)
    subprocess.run(["openssl", "pkey", "-in", str(key), "-pubout", "-out", str(public)], check=True)
    key.chmod(0o600)
    one = site.open("one")
    signer = open_signer(key, one.root)
    assert signer is not None
    publish(one, FIRST, signer=signer)
    site.open("other")
    assert load_current(site.url, "digits", require_signature=[public]).path.read_bytes() == FIRST
    publish(site.open("one"), SECOND)
    with pytest.raises(RoutetuneError, match=r"not signed|no signature"):
        site.open("other")
        load_current(site.url, "digits", require_signature=[public])
    one = site.open("one")
    current = one.publications.current("digits", ENVIRONMENT)
    assert current is not None
    one.publications.sign(current, signer)  # as a tune does with what stays
    site.open("other")
    assert load_current(site.url, "digits", require_signature=[public]).path.read_bytes() == SECOND


def test_what_is_damaged_in_the_mirror_is_fetched_again(site: Site) -> None:
    publish(site.open("one"), FIRST)
    other = site.open("other")
    published = load_current(site.url, "digits")
    for path in (published.path, published.path.with_name("manifest.json")):
        path.chmod(0o644)
        path.write_bytes(b"damaged")
        assert load_current(site.url, "digits").path.read_bytes() == FIRST
    assert other.publications.verify("digits", ENVIRONMENT) == []


@pytest.mark.slow
def test_many_processes_publish_at_once_and_every_generation_is_there(site: Site) -> None:
    code = f"""
import os, sys, warnings
warnings.simplefilter("ignore")
from routetune.tasks.store import open_store
store = open_store({site.url!r})
for at in range(4):
    data = f"{{sys.argv[1]}} {{at}}".encode() * 99
    store.publications.publish("digits", {ENVIRONMENT!r}, store.blobs.put_bytes(data), {manifest()!r})
"""
    writers = []
    for host in ("one", "other", "third"):
        variables = os.environ | {"XDG_CACHE_HOME": str(site.home / host)}
        writers.append(subprocess.Popen([sys.executable, "-c", code, host], env=variables))
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0, 0]
    fourth = site.open("fourth")
    found = fourth.publications.history("digits")
    assert len({past.reference.engine for past in found}) == len(found) == 12
    assert fourth.publications.verify("digits", ENVIRONMENT) == []


@pytest.mark.slow
def test_a_publisher_killed_at_any_step_leaves_the_old_or_the_new_one_for_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at_every_step: Any
) -> None:
    url = f"file://{tmp_path}/shared"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "one"))
    root = open_store(url).root
    publish(open_store(url), FIRST)
    code = f"""
from routetune.tasks.store import open_store
import obstore.store
def act(root):
    store = open_store({url!r})
    data = {SECOND!r}
    store.publications.publish("digits", {ENVIRONMENT!r}, store.blobs.put_bytes(data), {manifest()!r}, keep=3)
"""
    kills = 0
    for stop in killed_at_every_step(code, root):
        kills += stop.killed
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for host in (f"host-{stop.step}", "one"):
                mirror._known.clear()
                monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / host))
                found = load_current(url, "digits").path.read_bytes()
                assert found in (FIRST, SECOND) and (stop.killed or found == SECOND)
            assert open_store(url).publications.verify("digits", ENVIRONMENT) == []
    assert kills > 20


# What others put into a bucket, or into a folder.


def test_a_marker_planted_in_another_folder_sends_nobody_anywhere(site: Site, tmp_path: Path) -> None:
    planted = open_store(tmp_path / "planted")
    (planted.root / "remote.json").write_bytes(seal({"schema": 1, "url": "s3://elsewhere/x"}))
    again = open_store(planted.root)
    assert again.mirror is None and again.name == str(planted.root)


def test_a_damaged_marker_is_refused_by_name_and_healed_by_the_url(site: Site) -> None:
    root = site.open("one").root
    (root / "remote.json").write_bytes(b"{}")
    with pytest.raises(BadInput, match=r"remote\.json is damaged .*: give the store by its URL"):
        open_store(root)
    assert site.open("one").name == site.url


def test_objects_of_other_names_are_left_alone(site: Site) -> None:
    good = site.open("one").runs.open("digits", {})
    good.finish("finished")
    raw = (site.bucket / f"runs/{good.id}.json").read_bytes()
    strange = [
        "runs/notes.json",
        "runs/deeper/20261130T024500Z-1a2b3c4d.json",
        "records/20261130T024500Z-1a2b3c4d/part.parquet",
        "priors/..hidden.json",
        f"publications/digits/{ENVIRONMENT}/switches/x.json",
        f"publications/digits/..%2f/switches/{1:08d}.json",
        f"publications/digits/{ENVIRONMENT}/generations/000001/.manifest.sig",
    ]
    for name in strange:
        path = site.bucket / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
    other = site.open("other")
    assert [run.id for run in other.runs.list()] == [good.id]
    assert other.records.read().num_rows == 0 and other.priors.trials("digits") == []
    assert other.publications.environments("digits") == []
    here = {str(p.relative_to(other.root)) for p in other.root.rglob("*") if p.is_file()}
    assert not here & set(strange)


def test_a_damaged_run_or_part_of_the_records_is_passed_over(site: Site) -> None:
    run = site.open("one").runs.open("digits", {})
    run.finish("finished")
    (site.bucket / f"runs/{run.id}.json").write_bytes(b"damaged")
    part = site.bucket / f"records/{run.id}/part-{1:020d}-{'0' * 16}.parquet"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"damaged")
    other = site.open("other")
    with pytest.warns(StoreWarning, match="is damaged") as told:
        assert other.runs.list() == []
        assert other.records.read().num_rows == 0
    assert len(told) == 2


# Garbage.


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


def test_two_urls_have_two_mirrors_and_one_url_one(site: Site) -> None:
    assert folder_of("s3://a/b") == folder_of("s3://a/b/") != folder_of("s3://a/c")
    one = site.open("one")
    assert mirror_of(one.root) is one.mirror
    assert lock_of("digits", ENVIRONMENT) != lock_of("digits", ENVIRONMENT[::-1])
    assert one.root.stat().st_mode & 0o777 == 0o700
