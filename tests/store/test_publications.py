from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest
from routetune.tasks.errors import BadInput
from routetune.tasks.store import draft, manifests, open_store
from routetune.tasks.store.blobs import Missing
from routetune.tasks.store.draft import STEPS
from routetune.tasks.store.files import StoreWarning
from routetune.tasks.store.manifests import BadPublication
from routetune.tasks.store.sealed import seal, unseal

ENVIRONMENT = "0123456789abcdef"
FIRST, SECOND = b"first engine" * 999, b"second engine" * 999


def manifest(route="-a=on", **fields):
    environment = {"backend": "onnxruntime", "device": "cpu", "version.onnxruntime": "1.32.0"} | fields
    return {
        "bound_to": {"target": {"model": "m"}, "environment": environment},
        "route": route,
        "options": {"threads": 1},
        "speedup": {"ratio": 1.2, "low": 1.1, "high": "inf"},
    }


def publish(store, data, **changes):
    return store.publications.publish("digits", ENVIRONMENT, store.blobs.put_bytes(data), manifest(**changes))


def current(store):
    return store.publications.current("digits", ENVIRONMENT)


def change(path, old, new):
    """Edit a file that is published read-only."""
    raw = path.read_bytes()
    assert old in raw
    path.chmod(0o644)
    path.write_bytes(raw.replace(old, new))


def test_a_publication_as_it_lies_on_the_disk(store):
    assert current(store) is None
    first = publish(store, FIRST)
    second = publish(store, SECOND, route="-b=off")
    place = store.root / "publications" / "digits" / ENVIRONMENT
    assert first.engine == place / "generations" / "000001" / "engine.onnx"
    assert second.engine == place / "generations" / "000002" / "engine.onnx"
    assert [first.engine.read_bytes(), second.engine.read_bytes()] == [FIRST, SECOND]
    assert sorted(path.name for path in place.rglob("*")) == sorted(
        ["current.json", "generations", "000001", "000002", *["engine.onnx", "manifest.json"] * 2]
    )
    assert current(store) == second
    found = second.manifest
    assert {name: found[name] for name in manifest()} == manifest(route="-b=off")
    assert (found["schema"], found["target"], found["environment_key"]) == (1, "digits", ENVIRONMENT)
    assert found["generation"] == 2
    assert found["engine"] == {
        "file": "engine.onnx",
        "digest": store.blobs.put_bytes(SECOND),
        "size": len(SECOND),
    }
    pointer = unseal((place / "current.json").read_bytes())
    assert pointer["generation"] == 2
    assert pointer["manifest"] == second.reference.manifest
    assert [past["generation"] for past in pointer["history"]] == [1]
    assert store.publications.verify("digits", ENVIRONMENT) == []
    # What services load is a copy: the blob may go, or rot.
    assert second.engine.stat().st_ino != store.blobs.path(found["engine"]["digest"]).stat().st_ino


def test_targets_and_environments_never_overwrite_each_other(store):
    engine = store.blobs.put_bytes(FIRST)
    for target, environment in [("digits", "a" * 16), ("digits", "b" * 16), ("encoder", "a" * 16)]:
        published = store.publications.publish(target, environment, engine, manifest(), "engine.plan")
        assert published.reference.generation == 1
        assert published.engine.name == "engine.plan"
    assert store.publications.environments("digits") == ["a" * 16, "b" * 16]
    assert store.publications.environments("nothing") == []


@pytest.mark.parametrize("data", [None, b"x" + FIRST[1:], FIRST[:-1]])
def test_an_engine_that_is_gone_or_damaged_is_never_published(store, data):
    before = publish(store, SECOND)
    engine = store.blobs.put_bytes(FIRST)
    path = store.blobs.path(engine)
    path.unlink()
    if data is None:
        with pytest.raises(Missing, match="not in the store"):
            store.publications.publish("digits", ENVIRONMENT, engine, manifest())
    else:
        path.write_bytes(data)
        with pytest.raises(Missing, match="was damaged"), pytest.warns(StoreWarning, match=engine):
            store.publications.publish("digits", ENVIRONMENT, engine, manifest())
        assert not path.exists()
    assert current(store) == before
    assert [found.name for found in before.engine.parent.parent.iterdir()] == ["000001"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bound_to": None}, "'bound_to' must be a dict"),
        ({"bound_to": {"target": {}}}, "hold the dict 'environment'"),
        ({"options": []}, "'options' must be a dict"),
        ({"route": None}, "'route' must be a str"),
        ({"engine": {}, "schema": 3}, "engine, schema cannot be given"),
        ({"check": "x"}, "check cannot be given"),
    ],
)
def test_manifests_that_no_loader_could_use_are_refused(store, given, message):
    engine = store.blobs.put_bytes(FIRST)
    with pytest.raises(BadInput, match=message):
        store.publications.publish("digits", ENVIRONMENT, engine, manifest() | given)
    with pytest.raises(TypeError):
        store.publications.publish("digits", ENVIRONMENT, engine, manifest() | {"loss": float("nan")})
    assert current(store) is None
    for names in (("../x", ENVIRONMENT, "e"), ("digits", "../x", "e"), ("digits", ENVIRONMENT, "a/b")):
        with pytest.raises(BadInput, match="cannot name anything in the store"):
            store.publications.publish(names[0], names[1], engine, manifest(), names[2])
    with pytest.raises(BadInput, match=r"cannot be called 'manifest\.json'"):
        store.publications.publish("digits", ENVIRONMENT, engine, manifest(), "manifest.json")


def test_an_edited_version_and_a_corrupted_engine_are_both_named(store):
    """H56."""
    publish(store, FIRST)
    second = publish(store, SECOND)
    change(second.engine.with_name("manifest.json"), b'"1.32.0"', b'"1.31.0"')
    change(second.engine, b"second engine", b"Second engine")
    problems = store.publications.verify("digits", ENVIRONMENT)
    assert len(problems) == 2
    assert "000002/manifest.json was changed after it was published" in problems[0]
    assert "000002/engine.onnx was changed after it was published" in problems[1]
    assert second.reference.engine in problems[1]
    with pytest.raises(BadPublication, match=r"000002/manifest\.json"):
        current(store)
    # The earlier one is untouched, and can be gone back to.
    back = store.publications.rollback("digits", ENVIRONMENT)
    assert back.engine.read_bytes() == FIRST
    assert current(store) == back
    assert store.publications.verify("digits", ENVIRONMENT) == []


def test_a_manifest_that_was_edited_and_sealed_again_is_still_found(store):
    published = publish(store, FIRST)
    path = published.engine.with_name("manifest.json")
    edited = published.manifest | {"route": "-b=off"}
    edited.pop("check", None)
    path.chmod(0o644)
    path.write_bytes(seal(edited, indent=2))
    (problem,) = store.publications.verify("digits", ENVIRONMENT)
    assert f"published with SHA-256 {published.reference.manifest}, now it has" in problem


def test_verify_reads_earlier_generations_too_and_names_missing_files(store):
    first, _ = publish(store, FIRST), publish(store, SECOND)
    first.engine.unlink()
    (problem,) = store.publications.verify("digits", ENVIRONMENT)
    assert "000001/engine" in problem
    assert "cannot be read: No such file" in problem
    with pytest.raises(BadInput, match="nothing is published for target 'other'"):
        store.publications.verify("other", ENVIRONMENT)


def test_rollback_goes_back_one_by_one_and_passes_over_what_is_damaged(store):
    engines = [bytes([number]) * 1000 for number in range(4)]
    published = [publish(store, engine) for engine in engines]
    change(published[2].engine, b"\2", b"\0")
    with pytest.warns(StoreWarning, match=r"generation 3 is passed over: engine .*000003"):
        assert store.publications.rollback("digits", ENVIRONMENT) == published[1]
    again = publish(store, b"new")
    assert again.reference.generation == 5
    assert store.publications.rollback("digits", ENVIRONMENT) == published[1]
    assert store.publications.rollback("digits", ENVIRONMENT) == published[0]
    with pytest.raises(BadInput, match="no earlier whole publication"):
        store.publications.rollback("digits", ENVIRONMENT)
    assert current(store) == published[0]


@pytest.mark.parametrize("damage", ["empty", "gone", "flipped"])
def test_a_damaged_pointer_is_refused_by_name_and_heals(store, damage):
    publish(store, FIRST)
    second = publish(store, SECOND)
    pointer = second.engine.parents[2] / "current.json"
    if damage == "gone":
        pointer.unlink()
    else:
        pointer.write_bytes(b"" if damage == "empty" else pointer.read_bytes().replace(b"2", b"1", 1))
    with pytest.raises(BadPublication, match=rf"{pointer} is damaged"):
        current(store)
    (problem,) = store.publications.verify("digits", ENVIRONMENT)
    assert str(pointer) in problem
    if damage == "gone":  # both ways to heal
        with pytest.warns(StoreWarning, match="is damaged"):
            assert store.publications.rollback("digits", ENVIRONMENT) == second
        return
    with pytest.warns(StoreWarning, match="is damaged"):
        third = publish(store, b"third")
    assert third.reference.generation == 3
    assert current(store) == third
    assert store.publications.rollback("digits", ENVIRONMENT) == second


def test_what_a_newer_routetune_published_is_refused_by_name_and_kept(store):
    published = publish(store, FIRST)
    path = published.engine.with_name("manifest.json")
    newer = seal(published.manifest | {"schema": 2})
    path.chmod(0o644)
    path.write_bytes(newer)
    with pytest.raises(BadInput, match=rf"manifest {path} has schema 2, this routetune reads up to 1"):
        current(store)
    pointer = published.engine.parents[2] / "current.json"
    pointer.write_bytes(seal({"schema": 2}))
    for use in (lambda: current(store), lambda: publish(store, SECOND)):
        with pytest.raises(BadInput, match=rf"pointer {pointer} has schema 2"):
            use()
    assert unseal(pointer.read_bytes()) == {"schema": 2}


def test_links_out_of_the_store_are_refused(store, tmp_path):
    published = publish(store, FIRST)
    generation = published.engine.parent
    generation.rename(tmp_path / "elsewhere")
    generation.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match="leads out of the store"):
        current(store)
    problems = store.publications.verify("digits", ENVIRONMENT)
    assert [problem for problem in problems if "leads out of the store" in problem]


PUBLISHER = f"""
from routetune.tasks.store import open_store
def act(root):
    store = open_store(root)
    engine = store.blobs.put_bytes({SECOND!r})
    store.publications.publish("digits", {ENVIRONMENT!r}, engine, {manifest()!r})
"""


@pytest.mark.parametrize("earlier", [True, False])
def test_a_kill_at_any_file_operation_leaves_what_was_current_whole(store, killed_at_every_step, earlier):
    place = manifests.home(store.root, "digits", ENVIRONMENT)
    if earlier:
        publish(store, FIRST)
    for stop in killed_at_every_step(PUBLISHER, store.root):
        found = current(store)
        for number in manifests.numbers(place):  # numbered is whole, current or not
            whole = manifests.read_publication(store.root, place, number, None)
            manifests.check_engine(store.root, whole.engine, whole.reference.engine)
        if found is None:
            assert not earlier
        else:
            is_first = earlier and found.reference.generation == 1
            assert found.engine.read_bytes() == (FIRST if is_first else SECOND)
            assert stop.killed or not is_first
            assert store.publications.verify("digits", ENVIRONMENT) == []
    assert found.engine.read_bytes() == SECOND
    assert stop.step > 15
    # What the killed left is cleared away by the next.
    publish(store, SECOND)
    assert [path for path in (place / "generations").iterdir() if path.name.startswith(".")] == []


# Ends itself between two steps of the real publisher.
BETWEEN = """
import os, signal, sys
from routetune.tasks.store import draft, open_store
stop = int(sys.argv[2])
steps = list(draft.STEPS)
steps.insert(stop, lambda draft: os.kill(os.getpid(), signal.SIGKILL))
draft.STEPS = tuple(steps)
act(__import__("pathlib").Path(sys.argv[1]))
"""


@pytest.mark.parametrize("stop", range(len(STEPS) + 1))
def test_a_kill_between_two_steps_of_publishing(store, stop):
    first = publish(store, FIRST)
    code = PUBLISHER + BETWEEN
    assert subprocess.run([sys.executable, "-c", code, str(store.root), str(stop)]).returncode == -9
    found = current(store)
    assert found.engine.read_bytes() == (SECOND if stop == len(STEPS) else FIRST)
    assert (found == first) is (stop < len(STEPS))
    # The lock of the killed is free, and rolling back never leads to a generation that was not current.
    assert publish(store, b"third").reference.generation in (2, 3)
    assert store.publications.rollback("digits", ENVIRONMENT) == found


def test_a_copy_that_a_disk_garbled_never_becomes_current(store, monkeypatch):
    """The garbling stands in for a disk: nothing else changes a file between two steps."""
    first = publish(store, FIRST)
    steps = list(draft.STEPS)
    garble = lambda draft: change(draft.folder / draft.file_name, b"second", b"Second")  # noqa: E731
    monkeypatch.setattr(draft, "STEPS", (*steps[:4], garble, *steps[4:]))
    with pytest.raises(BadPublication, match=r"engine .* was changed"):
        publish(store, SECOND)
    assert current(store) == first
    assert [path.name for path in first.engine.parents[1].iterdir()] == ["000001"]


def test_many_publishers_and_readers_at_once(store):
    code = (
        "import os, sys; from routetune.tasks.store import open_store\n"
        "from routetune.tasks.store.loader import load_current\n"
        "store = open_store(sys.argv[1])\n"
        "for number in range(8):\n"
        "    engine = store.blobs.put_bytes(os.urandom(10_000))\n"
        f"    store.publications.publish('digits', {ENVIRONMENT!r}, engine, {manifest()!r})\n"
        "    for _ in range(5): load_current(store.root, 'digits')\n"
    )
    command = [sys.executable, "-W", "error", "-c", code, str(store.root)]
    processes = [subprocess.Popen(command, env=os.environ) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert current(store).reference.generation == 24
    assert store.publications.verify("digits", ENVIRONMENT) == []
    assert len(open_store(store.root).publications.environments("digits")) == 1


def test_what_a_publisher_retires_meanwhile_is_no_problem(store, monkeypatch):
    """Between the pointer and the files that it names, what it names may have gone."""
    publish(store, FIRST)
    publish(store, SECOND)
    problems, turns = store.publications._problems, iter(range(2))

    def meanwhile(place, past, keys):
        if past.generation == 1 and next(turns) == 0:
            store.publications.publish(
                "digits", ENVIRONMENT, store.blobs.put_bytes(b"third"), manifest(), keep=2
            )
        return problems(place, past, keys)

    monkeypatch.setattr(type(store.publications), "_problems", lambda self, *given: meanwhile(*given))
    assert store.publications.verify("digits", ENVIRONMENT) == []
    assert [past.reference.generation for past in store.publications.history("digits")] == [3, 2]


TEXTS = ("environment_label", "published_at")
PARTS = ("accuracy", "decision", "objective", "speed", "times", *TEXTS)
WRONG = [(name, value) for name in PARTS for value in (None, [], 7)] + [("speed", {"ratio": "x"})]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_manifest_with_parts_of_another_kind_is_damaged(store, name, value):
    """Sealed or not: whoever shows it would end in a traceback."""
    right = {name: "2026-12-01T00:00:00+00:00" if name in TEXTS else {} for name in PARTS}
    publish(store, FIRST)
    found = current(store)
    path = found.engine.with_name("manifest.json")
    content = unseal(path.read_bytes()) | right | {name: value}
    raw = seal(content, indent=2)
    path.chmod(0o644)
    path.write_bytes(raw)
    pointer = found.engine.parents[2] / "current.json"
    content = unseal(pointer.read_bytes()) | {"manifest": hashlib.sha256(raw).hexdigest()}
    pointer.write_bytes(seal(content))
    with pytest.raises(BadPublication, match=f"its '{name}' is no"):
        current(store)
