"""A mirror: what becomes of a store in a bucket when its remote is away, crowded, damaged or planted."""

from __future__ import annotations

from pathlib import Path

import pytest
from routetune.tasks.errors import BadInput, RoutetuneError
from routetune.tasks.routes.route import Route
from routetune.tasks.store import Store, mirror, open_store
from routetune.tasks.store.files import StoreWarning
from routetune.tasks.store.keys import stage_key
from routetune.tasks.store.loader import load_current
from routetune.tasks.store.manifests import lock_of
from routetune.tasks.store.mirror import folder_of, mirror_of
from routetune.tasks.store.records import row
from routetune.tasks.store.sealed import seal
from routetune.tasks.trial import Trial

from tests.buckets import ENVIRONMENT, FIRST, SECOND, Server, Site, history, publish

RUN = "20261130T024500Z-1a2b3c4d"
KEY = stage_key("build", code="0" * 64, route="-a=on")


def test_of_two_that_make_one_key_the_first_keeps_its_value_and_the_other_takes_it(site: Site) -> None:
    one, other = site.open("one"), site.open("other")
    assert other.entries.get(KEY) is None
    one.entries.put(KEY, {"engine": "first"}, [one.blobs.put_bytes(FIRST)])
    taken = other.entries.put(KEY, {"engine": "second"}, [other.blobs.put_bytes(SECOND)])
    assert taken.value == {"engine": "first"}
    assert other.blobs.verified(taken.blobs[0]).read_bytes() == FIRST
    assert other.entries.get(KEY) == taken


def test_a_blob_and_an_entry_damaged_in_the_mirror_are_fetched_again(site: Site) -> None:
    site.open("one").entries.put(KEY, {"engine": "first"}, [site.open("one").blobs.put_bytes(FIRST)])
    other = site.open("other")
    entry = other.entries.get(KEY)
    assert entry is not None
    for path in (entry.path, other.blobs.path(entry.blobs[0])):
        path.chmod(0o644)
        path.write_bytes(b"damaged")
    with pytest.warns(StoreWarning, match="damaged entry"):
        assert other.entries.get(KEY) == entry
    assert other.blobs.verified(entry.blobs[0]).read_bytes() == FIRST


def test_what_is_made_anew_on_purpose_stays_on_its_host_and_changes_nothing_for_others(
    site: Site, bucket_server: Server
) -> None:
    site.open("one").entries.put(KEY, {"engine": "first"})
    other = site.open("other")
    assert other.entries.put(KEY, {"engine": "second"}, anew=True).value == {"engine": "second"}
    found = site.open("other").entries.get(KEY)
    assert found is not None and found.value == {"engine": "second"}
    found = site.open("third").entries.get(KEY)
    assert found is not None and found.value == {"engine": "first"}
    site.go_away()
    with pytest.warns(StoreWarning, match="going on with"):
        site.open("other").entries.put(KEY, {"engine": "third"}, anew=True)
    site.come_back(bucket_server)
    found = site.open("other").entries.get(KEY)
    assert found is not None and found.value == {"engine": "third"}


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


def test_trials_that_were_merged_while_the_bucket_is_away_are_all_shared(
    site: Site, bucket_server: Server
) -> None:
    def record(store: Store, route: str) -> None:
        trial = Trial(Route((tuple(route.split("=")),)))  # type: ignore[arg-type]
        store.records.append([row(RUN, "digits", ENVIRONMENT, trial)])

    record(site.open("one"), "-a=first")
    site.go_away()
    with pytest.warns(StoreWarning, match="going on with"):
        one = site.open("one")
        record(one, "-a=second")
        one.records.compact(RUN)
    site.come_back(bucket_server)
    one = site.open("one")
    assert one.mirror is not None and list((one.root / "outbox").iterdir()) == []
    for host in ("one", "other"):
        routes = site.open(host).records.read(RUN)["route"].to_pylist()
        assert routes == ["-a=first", "-a=second"]


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


def test_two_urls_have_two_mirrors_and_one_url_one(site: Site) -> None:
    assert folder_of("s3://a/b") == folder_of("s3://a/b/") != folder_of("s3://a/c")
    one = site.open("one")
    assert mirror_of(one.root) is one.mirror
    assert lock_of("digits", ENVIRONMENT) != lock_of("digits", ENVIRONMENT[::-1])
    assert one.root.stat().st_mode & 0o777 == 0o700
