from __future__ import annotations

import re

import pytest
from routetune.tasks.canonical import digest
from routetune.tasks.errors import BadInput
from routetune.tasks.store.files import StoreWarning
from routetune.tasks.store.loader import Refused, load_current
from routetune.tasks.store.manifests import BadPublication
from routetune.tasks.targets.environment import observe
from routetune.tasks.targets.gpu import UNKNOWN

from tests.loaded import loaded

CPU = {
    "backend": "onnxruntime",
    "device": "cpu",
    "cpu.architecture": "x86_64",
    "cpu.flags": "avx avx2",
    "cpu.model": "EPYC",
    "cpu.cores": 2,
    "version.onnxruntime": "1.32.0",
    "version.numpy": "2.1",
}
GPU = CPU | {
    "device": "cuda",
    "driver": "535.171.04",
    "gpu.name": "L4",
    "gpu.capability": "8.9",
    "gpu.mig": "(not applicable)",
    "gpu.power_limit": 72,
}


def publish(store, fields, data=b"engine" * 1000, target="digits"):
    manifest = {"bound_to": {"target": {}, "environment": fields}, "route": "", "options": {"threads": 1}}
    engine = store.blobs.put_bytes(data)
    return store.publications.publish(target, digest(fields)[:16], engine, manifest)


def test_a_service_gets_the_path_the_options_and_the_manifest(store, monkeypatch):
    published = publish(store, CPU)
    loaded = load_current(store.root, "digits")
    assert loaded.path == published.engine
    assert loaded.options == {"threads": 1}
    assert loaded.manifest == published.manifest
    assert loaded.stale is None
    assert load_current(store.root, "digits", digest(CPU)[:16]) == loaded
    assert load_current(store.root, "digits", today=CPU, strict=True).stale == ()
    monkeypatch.setenv("ROUTETUNE_STORE", str(store.root))
    assert load_current(None, "digits") == loaded


@pytest.mark.parametrize(
    ("fields", "change"),
    [
        (GPU, {"gpu.name": "A100"}),
        (GPU, {"gpu.capability": "9.0"}),
        (GPU, {"gpu.mig": "1g.10gb"}),
        (GPU, {"version.onnxruntime": "1.31.0"}),
        (GPU, {"gpu.name": UNKNOWN}),
        (CPU, {"version.onnxruntime": "1.31.0"}),
        (CPU, {"cpu.flags": "avx"}),
        (CPU, {"cpu.flags": "avx avx2 avx512f"}),
        (CPU, {"cpu.architecture": "aarch64"}),
        (CPU, {"backend": "tensorrt"}),
        (CPU, {"device": "cuda"}),
    ],
)
def test_another_kind_of_device_or_backend_version_is_refused_naming_old_and_new(store, fields, change):
    publish(store, fields)
    ((name, new),) = change.items()
    expected = re.escape(f"{name}: {fields[name]} -> {new}")
    with pytest.raises(Refused, match=rf"\({expected}\)"):
        load_current(store.root, "digits", today=fields | change)
    load_current(store.root, "digits")  # without a comparison it is served as it is


@pytest.mark.parametrize(
    ("fields", "change"),
    [
        (GPU, {"driver": "535.161.07"}),
        (GPU, {"gpu.power_limit": 60}),
        (GPU, {"driver": UNKNOWN}),
        (GPU, {"cpu.flags": "avx"}),
        (CPU, {"cpu.cores": 1}),
        (CPU, {"cpu.model": "Xeon"}),
        (CPU, {"version.numpy": "2.2"}),
        (CPU, {"variable.OMP_NUM_THREADS": "1"}),
    ],
)
def test_any_other_difference_is_served_as_stale_unless_strict(store, fields, change):
    publish(store, fields)
    ((name, new),) = change.items()
    (line,) = load_current(store.root, "digits", today=fields | change).stale
    assert line == f"{name}: {fields.get(name, '(not set)')} -> {new}"
    with pytest.raises(Refused, match=name):
        load_current(store.root, "digits", today=fields | change, strict=True)


def test_strict_needs_something_to_compare_with(store):
    publish(store, CPU)
    with pytest.raises(BadInput, match="give today's"):
        load_current(store.root, "digits", strict=True)


def test_of_several_environments_one_must_be_chosen_unless_only_one_fits(store):
    fleet = [CPU, GPU, GPU | {"gpu.name": "A100"}]
    paths = [publish(store, fields).engine for fields in fleet]
    with pytest.raises(BadInput, match="published for 3 environments") as raised:
        load_current(store.root, "digits")
    for fields in fleet:
        assert digest(fields)[:16] in str(raised.value)
    for fields, path in zip(fleet, paths, strict=True):
        assert load_current(store.root, "digits", digest(fields)[:16]).path == path
        assert load_current(store.root, "digits", today=fields).path == path
    # Hosts of two kinds after a driver upgrade: each still finds its own.
    loaded = load_current(store.root, "digits", today=GPU | {"driver": "999"})
    assert (loaded.path, loaded.stale) == (paths[1], ("driver: 535.171.04 -> 999",))
    # Two that fit equally badly: no guess.
    publish(store, GPU | {"driver": "1"})
    assert load_current(store.root, "digits", today=GPU).path == paths[1]
    with pytest.raises(BadInput, match="2 of them fit"):
        load_current(store.root, "digits", today=GPU | {"driver": "999"})
    with pytest.raises(BadInput, match="0 of them fit"):
        load_current(store.root, "digits", today=GPU | {"gpu.name": "T4"})


def test_nothing_published(store, tmp_path):
    with pytest.raises(BadInput, match="'digits' is not published in store"):
        load_current(store.root, "digits")
    publish(store, CPU)
    with pytest.raises(BadInput, match=rf"environment {'0' * 16} .*; published: {digest(CPU)[:16]}"):
        load_current(store.root, "digits", "0" * 16)
    with pytest.raises(BadInput, match="is not published"):
        load_current(tmp_path / "nowhere", "digits")
    assert not (tmp_path / "nowhere").exists()
    for names in (("../digits", None), ("digits", "../" + digest(CPU)[:16])):
        with pytest.raises(BadInput, match="cannot name anything in the store"):
            load_current(store.root, *names)


@pytest.mark.parametrize("name", ["engine.onnx", "manifest.json", "current.json"])
@pytest.mark.parametrize("damage", ["empty", "flipped", "gone"])
def test_damage_is_refused_by_name_and_the_earlier_publication_is_still_there(store, name, damage):
    first, second = publish(store, CPU), publish(store, CPU, b"second" * 1000)
    path = second.engine.parents[2] / name if name == "current.json" else second.engine.with_name(name)
    raw = path.read_bytes()
    path.unlink()
    if damage != "gone":
        path.write_bytes(b"" if damage == "empty" else raw[:200] + bytes([raw[200] ^ 1]) + raw[201:])
    for environment in (None, digest(CPU)[:16]):
        with pytest.raises(BadPublication, match=str(path)) as raised:
            load_current(store.root, "digits", environment)
    if name == "engine.onnx" and damage == "flipped":
        assert second.reference.engine in str(raised.value)
    if name != "current.json":
        assert store.publications.rollback("digits", digest(CPU)[:16]) == first
        assert load_current(store.root, "digits").path == first.engine


def test_a_broken_neighbour_does_not_stop_a_service(store):
    publish(store, CPU)
    other = publish(store, GPU)
    (other.engine.parents[2] / "current.json").write_bytes(b"")
    with pytest.warns(StoreWarning, match="passed over, as it is for another environment"):
        assert load_current(store.root, "digits", today=CPU).stale == ()


@pytest.mark.parametrize("what", ["current.json", "manifest.json", "engine.onnx"])
@pytest.mark.parametrize("today", [CPU, None])
def test_no_other_environments_engine_takes_the_place_of_a_damaged_one(store, what, today):
    """Without today's environment it is not known whose is damaged, and nothing is served by guess."""
    own = publish(store, CPU)
    publish(store, CPU | {"version.numpy": "0"}, b"another")
    path = own.engine.parents[2] / what if what == "current.json" else own.engine.with_name(what)
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-2])
    wanted = BadInput if today is None and what == "engine.onnx" else BadPublication
    with pytest.raises(wanted):
        load_current(store.root, "digits", today=today)


def test_engines_behind_links_are_refused(store, tmp_path):
    published = publish(store, CPU)
    published.engine.rename(tmp_path / "engine")
    published.engine.symlink_to(tmp_path / "engine")
    with pytest.raises(BadInput, match=r"engine\.onnx leads out of the store"):
        load_current(store.root, "digits")


def test_today_is_what_observe_tells(store):
    fields = observe("onnxruntime", "cpu", {"onnxruntime": "1.32.0"}).fields
    published = publish(store, fields)
    assert (
        published.manifest["environment_key"] == observe("onnxruntime", "cpu", {"onnxruntime": "1.32.0"}).key
    )
    assert load_current(store.root, "digits", today=fields, strict=True).stale == ()
    newer = observe("onnxruntime", "cpu", {"onnxruntime": "1.33.0"}).fields
    with pytest.raises(Refused, match=r"version\.onnxruntime: 1\.32\.0 -> 1\.33\.0"):
        load_current(store.root, "digits", today=newer)


def test_a_read_only_store_can_be_loaded_from_and_nothing_heavy_is_imported(store):
    published = publish(store, CPU)
    before = {path: path.stat().st_mtime_ns for path in store.root.rglob("*")}
    program = (
        "import sys; from routetune.tasks.store.loader import load_current\n"
        "print(load_current(sys.argv[1], 'digits').path)"
    )
    heavy = ("pyarrow", "numpy", "onnx", "onnxruntime", "prefect", "pydantic", "platformdirs")
    assert loaded(program, heavy, str(store.root)) == ([], f"{published.engine}\n")
    assert {path: path.stat().st_mtime_ns for path in store.root.rglob("*")} == before
