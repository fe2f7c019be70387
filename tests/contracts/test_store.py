"""What two hosts may expect of a store that they share: a folder, or a bucket with a mirror on each host."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from routetune.tasks.routes.route import Route
from routetune.tasks.routes.tuning_log import LoggedTrial, TuningLog
from routetune.tasks.store import Store, open_store
from routetune.tasks.store.files import StoreWarning
from routetune.tasks.store.keys import stage_key
from routetune.tasks.store.loader import has_moved, load_current
from routetune.tasks.store.manifests import BadPublication
from routetune.tasks.store.records import row
from routetune.tasks.trial import Trial

from tests.buckets import Server

ENVIRONMENT = "0123456789abcdef"
KEY = stage_key("build", code="0" * 64, route="-a=on")
FIRST, SECOND, THIRD = b"first engine" * 99, b"second engine" * 99, b"third engine" * 99


@dataclass
class Site:
    """A store, and two hosts that share it."""

    place: str
    open: Callable[[str], Store]
    #: Change the bytes that both hosts share under a name.
    damage: Callable[[str], None]


@pytest.fixture(params=["folder", "memory", pytest.param("file", marks=pytest.mark.slow), "s3"])
def site(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket_server: Server
) -> Site:
    shared = tmp_path / "shared"
    places = {"folder": str(shared), "file": f"file://{shared}", "memory": f"memory://{tmp_path.name}/x"}
    if request.param == "s3":
        shared = bucket_server.bucket(f"bucket-{os.urandom(4).hex()}")
        places["s3"] = f"s3://{shared.name}/a/b"
        shared = shared / "a/b"
        for name, value in bucket_server.variables.items():
            monkeypatch.setenv(name, value)

    def opened(host: str) -> Store:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / host))
        return open_store(places[request.param])

    def damage(name: str) -> None:
        if request.param == "memory":
            mirror = opened("somewhere").mirror
            assert mirror is not None and mirror.remote.read(name)
            mirror.remote.replace(name, b"damaged")
            return
        path = shared / name
        assert path.exists()
        path.chmod(0o644)
        path.write_bytes(b"damaged")

    return Site(places[request.param], opened, damage)


def manifest(route: str = "-a=on") -> dict[str, object]:
    environment = {"backend": "onnxruntime", "device": "cpu", "version.onnxruntime": "1.32.0"}
    return {
        "bound_to": {"target": {"model": "m"}, "environment": environment},
        "route": route,
        "options": {"threads": 1},
    }


def publish(store: Store, data: bytes, keep: int | None = None) -> int:
    digest = store.blobs.put_bytes(data)
    made = store.publications.publish("digits", ENVIRONMENT, digest, manifest(), keep=keep)
    return made.reference.generation


def trial(store: Store, run: str, route: str) -> None:
    assignment = dict([route.split("=")])
    store.records.append([row(run, "digits", ENVIRONMENT, Trial(Route(tuple(assignment.items()))))])


def test_what_one_host_keeps_the_other_one_has(site: Site) -> None:
    one = site.open("one")
    digest = one.blobs.put_bytes(FIRST)
    made = one.entries.put(KEY, {"engine": {"digest": digest, "size": len(FIRST)}}, [digest])
    other = site.open("other")
    found = other.entries.get(KEY)
    assert found is not None
    assert (found.key, found.value, found.blobs) == (made.key, made.value, made.blobs)
    assert other.blobs.verified(digest).read_bytes() == FIRST
    assert other.entries.get(KEY | {"route": "-a=off"}) is None


def test_trials_and_ended_runs_are_seen_by_both(site: Site) -> None:
    one = site.open("one")
    with one.runs.open("digits", {"environment": {"device": "cpu"}}) as run:
        for route in ("-a=on", "-a=off"):
            trial(one, run.id, route)
        assert site.open("other").records.read(run.id).num_rows == 2
        one = site.open("one")
        trial(one, run.id, "-a=maybe")
        one.records.compact(run.id)
        run.finish("finished", {"explanation": "so"})
    other = site.open("other")
    assert other.records.read(run.id)["route"].to_pylist() == ["-a=on", "-a=off", "-a=maybe"]
    assert other.records.read(target="digits").num_rows == 3
    assert other.runs.get(run.id).summary == {"explanation": "so"}
    assert [one.id for one in other.runs.list("digits")] == [run.id]


def test_what_is_known_of_models_and_other_tools_is_seen_by_both(site: Site) -> None:
    one = site.open("one")
    one.traits.put("a" * 64, {"operators": {"Conv": 3}})
    one.priors.add(TuningLog({}, [LoggedTrial({"-a": "on"}, 1.5, False, "", {})]), "log.jsonl")
    other = site.open("other")
    assert other.traits.get("a" * 64) == {"operators": {"Conv": 3}}
    assert other.traits.get("b" * 64) is None
    assert [found.milliseconds for found in other.priors.trials("digits")] == [1.5]


def test_one_publication_is_current_for_both(site: Site) -> None:
    assert publish(site.open("one"), FIRST) == 1
    other = site.open("other")
    assert publish(other, SECOND) == 2
    one = site.open("one")
    assert load_current(site.place, "digits").path.read_bytes() == SECOND
    assert one.publications.environments("digits") == [ENVIRONMENT]
    assert one.publications.verify("digits", ENVIRONMENT) == []
    served = load_current(site.place, "digits")
    assert not has_moved(served)
    other = site.open("other")
    assert other.publications.rollback("digits", ENVIRONMENT).reference.generation == 1
    site.open("one")
    assert has_moved(served)
    assert load_current(site.place, "digits").path.read_bytes() == FIRST
    assert publish(site.open("one"), THIRD) == 3
    history = site.open("third").publications.history("digits")
    assert [past.reference.generation for past in history] == [3, 1]
    assert load_current(site.place, "digits").path.read_bytes() == THIRD


def test_old_generations_go_for_both(site: Site) -> None:
    for data in (FIRST, SECOND, THIRD, FIRST):
        publish(site.open("one"), data, keep=2)
    other = site.open("other")
    assert [past.reference.generation for past in other.publications.history("digits")] == [4, 3]
    assert other.publications.verify("digits", ENVIRONMENT) == []
    assert other.publications.rollback("digits", ENVIRONMENT).engine.read_bytes() == THIRD


def test_a_damaged_entry_is_a_miss_and_is_made_again(site: Site) -> None:
    one = site.open("one")
    digest = one.blobs.put_bytes(FIRST)
    path = one.entries.put(KEY, {"engine": "first"}, [digest]).path
    site.damage(str(path.relative_to(one.root)))
    other = site.open("other")
    with pytest.warns(StoreWarning, match="damaged"):
        assert other.entries.get(KEY) is None
    other.entries.put(KEY, {"engine": "again"}, [other.blobs.put_bytes(FIRST)])
    third = site.open("third").entries.get(KEY)
    assert third is not None and third.value == {"engine": "again"}


def test_a_damaged_blob_is_a_miss_and_is_made_again(site: Site) -> None:
    one = site.open("one")
    digest = one.blobs.put_bytes(FIRST)
    one.entries.put(KEY, {"engine": "first"}, [digest])
    site.damage(str(one.blobs.path(digest).relative_to(one.root)))
    other = site.open("other")
    with pytest.warns(StoreWarning, match="damaged|another digest|gone"):
        assert other.entries.get(KEY) is None
    other.entries.put(KEY, {"engine": "again"}, [other.blobs.put_bytes(FIRST)])
    third = site.open("third")
    found = third.entries.get(KEY)
    assert found is not None and third.blobs.verified(digest).read_bytes() == FIRST


@pytest.mark.parametrize("file", ["engine.onnx", "manifest.json"])
def test_a_damaged_publication_is_refused_and_rollback_heals(site: Site, file: str) -> None:
    one = site.open("one")
    publish(one, FIRST)
    publish(one, SECOND)
    site.damage(f"publications/digits/{ENVIRONMENT}/generations/000002/{file}")
    other = site.open("other")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        with pytest.raises(BadPublication, match=file):
            load_current(site.place, "digits")
        assert other.publications.verify("digits", ENVIRONMENT)
        assert other.publications.rollback("digits", ENVIRONMENT).reference.generation == 1
        assert load_current(site.place, "digits").path.read_bytes() == FIRST
    assert other.publications.verify("digits", ENVIRONMENT) == []


def test_an_open_store_is_opened_again_by_its_folder(site: Site) -> None:
    one = site.open("one")
    again = open_store(one.root)
    assert (again.name, again.root) == (one.name, one.root)
    assert (one.mirror is None) == (site.place == one.name == str(one.root))
