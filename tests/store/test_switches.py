"""Publications of hosts that share a bucket: which one counts, and what becomes of the others."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from routetune.tasks.errors import RoutetuneError
from routetune.tasks.store import Store, draft, mirror, open_store
from routetune.tasks.store.files import StoreWarning
from routetune.tasks.store.loader import load_current
from routetune.tasks.store.signing import open_signer

from tests.buckets import ENVIRONMENT, FIRST, SECOND, THIRD, Server, Site, history, manifest, publish

Act = Callable[[Store], object]


def test_a_publication_made_meanwhile_on_another_host_is_followed_and_none_is_lost(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts = [partial(publish, data=data) for data in (SECOND, THIRD)]
    with in_between(site, monkeypatch, *acts), pytest.warns(StoreWarning, match="by another host meanwhile"):
        assert publish(site.open("one"), FIRST) == 3
    third = site.open("third")
    assert history(third) == [3, 2, 1]
    assert third.publications.verify("digits", ENVIRONMENT) == []
    assert load_current(site.url, "digits").path.read_bytes() == FIRST


def test_a_publication_gives_way_to_the_same_of_another_host_and_leaves_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts = [partial(publish, data=data) for data in (SECOND, THIRD)]
    with in_between(site, monkeypatch, *acts), pytest.warns(UserWarning) as told:
        one = site.open("one")
        assert publish(one, FIRST, yields=lambda theirs: theirs.reference.generation == 2) == 2
    assert "it stays" in str(told[-1].message)
    assert history(site.open("one")) == [2, 1]
    assert load_current(site.url, "digits").path.read_bytes() == THIRD
    assert generations(site) == {1, 2}


def test_of_a_rollback_and_a_publication_at_once_neither_is_lost_and_no_generation_is_left_over(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(site.open("one"), FIRST)
    publish(site.open("one"), SECOND)
    back: Act = lambda store: store.publications.rollback("digits", ENVIRONMENT)  # noqa: E731
    with in_between(site, monkeypatch, back), pytest.warns(StoreWarning, match="by another host meanwhile"):
        assert publish(site.open("one"), THIRD, keep=2) == 3
    third = site.open("third")
    assert history(third) == [3, 1] and third.publications.verify("digits", ENVIRONMENT) == []
    assert load_current(site.url, "digits").path.read_bytes() == THIRD
    assert generations(site) == {1, 3}
    assert third.publications.rollback("digits", ENVIRONMENT).engine.read_bytes() == FIRST


def generations(site: Site) -> set[int]:
    return {int(name.split("/")[4]) for name in site.files("publications/**/*") if "/generations/" in name}


def claim(site: Site, number: int) -> None:
    """As a writer does that was killed right after it claimed a number."""
    manifest = site.bucket / f"publications/digits/{ENVIRONMENT}/generations/{number:06d}/manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_bytes(b"{}")


def test_a_number_that_a_killed_writer_claimed_is_passed_over(site: Site) -> None:
    claim(site, 1)
    assert publish(site.open("one"), FIRST) == 2
    claim(site, 3)
    assert publish(site.open("other"), SECOND) == 4
    assert history(site.open("third")) == [4, 2]
    assert publish(site.open("third"), THIRD, keep=1) == 5
    assert generations(site) == {4, 5}


def test_what_was_published_away_under_a_number_that_is_taken_is_published_anew(
    site: Site, bucket_server: Server
) -> None:
    site.go_away()
    with pytest.warns(StoreWarning, match="going on with"):
        assert publish(site.open("one"), FIRST) == 1
    claim(site, 1)
    site.come_back(bucket_server)
    with pytest.warns(StoreWarning, match="Tune again"):
        one = site.open("one")
    assert history(one) == [] and history(site.open("other")) == []
    assert publish(site.open("one"), FIRST) == 2
    assert history(site.open("other")) == [2]


@contextmanager
def in_between(site: Site, patch: pytest.MonkeyPatch, *acts: Act) -> Iterator[None]:
    """Another host acts each time that a publication is just about to switch; all of it has been done."""
    *before, switch = draft.STEPS
    left = list(acts)

    def act(_: draft.Draft) -> None:
        if left:
            cache, known = os.environ["XDG_CACHE_HOME"], dict(mirror._known)
            patch.setattr(draft, "STEPS", (*before, switch))
            left.pop(0)(site.open("other"))
            patch.setattr(draft, "STEPS", (*before, act, switch))
            patch.setenv("XDG_CACHE_HOME", cache)
            mirror._known.update(known)

    patch.setattr(draft, "STEPS", (*before, act, switch))
    yield
    assert not left


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
    with pytest.warns(StoreWarning, match="what is there counts"):
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


@pytest.mark.parametrize("number", [2, 7, 99_999_999])
@pytest.mark.parametrize("content", [b"", b"scrap", b"{}"])
def test_scrap_among_the_switches_takes_nothing_away(site: Site, number: int, content: bytes) -> None:
    """Somebody who may only add to a bucket must not unpublish what is there, nor keep others from it."""
    publish(site.open("one"), FIRST)
    (site.bucket / f"publications/digits/{ENVIRONMENT}/switches/{number:08d}.json").write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        assert history(site.open("two")) == [1]
        assert load_current(site.url, "digits").path.read_bytes() == FIRST
        assert publish(site.open("one"), SECOND) == 2
        assert history(site.open("three")) == [2, 1]
        assert load_current(site.url, "digits").path.read_bytes() == SECOND
