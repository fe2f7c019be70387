"""What `status` looks at, and what it needs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from routetune.tasks.engines.tensorrt.library import tensorrt_found
from routetune.tasks.errors import BadInput
from routetune.tasks.report.answers import verification
from routetune.tasks.retune import open_night
from routetune.tasks.status import find_targets, look_at
from routetune.tasks.store import Store, digests, open_store
from routetune.tasks.store.digests import Digests
from routetune.tasks.targets.gpu import NOT_APPLICABLE

from tests import published
from tests.machine import Machine


@pytest.fixture
def store(store_folder: Path) -> Store:
    return open_store(store_folder)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    machine = Machine(tmp_path / "machine")
    return machine.write_target(tmp_path / "targets" / "a.toml", device="cpu", backend="onnxruntime")


def test_files_of_other_tools_are_passed_over(target: Path) -> None:
    folder = target.parent
    (folder / "pyproject.toml").write_text('[project]\nname = "x"\n[tool.x]\nmodel = "a"\nschema = 1\n')
    (folder / "empty.toml").write_text("")
    (folder / "forgot.toml").write_text('name = "forgot its schema"\nmodel = "m.onnx"\n')
    (folder / "broken.toml").write_text('schema = 1\nmodel = "m.onnx\n')
    found = [path.name for path in find_targets([folder])]
    assert found == ["a.toml", "broken.toml", "forgot.toml"], "what may be meant as a target is looked at"
    named = folder / "pyproject.toml"
    assert find_targets([named]) == [named], "what is named is a target"
    for path in folder.glob("*.toml"):
        if path.name not in ("pyproject.toml", "empty.toml"):
            path.unlink()
    with pytest.raises(BadInput, match="holds no target file"):
        find_targets([folder])


def test_what_is_no_regular_file_is_refused_and_holds_nothing_up(
    target: Path, routetune: Any, tmp_path: Path
) -> None:
    """A read of a pipe may never end, and one of /dev/zero does not."""
    os.mkfifo(target.parent / "pipe.toml")
    (target.parent / "zero.toml").symlink_to("/dev/zero")
    (target.parent / "large.toml").write_bytes(b"#" * (2 << 20))
    process = routetune("status", target.parent, "--json", "--store", tmp_path / "store")
    assert process.returncode == 2, process.stderr
    rows = {Path(one["path"]).name: one for one in json.loads(process.stdout)["targets"]}
    refused = {name for name, one in rows.items() if one["state"] == "refused"}
    assert refused == {"pipe.toml", "zero.toml", "large.toml"} and len(rows) == 4


def test_it_needs_neither_prefect_nor_nvml(target: Path, routetune: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    for module in ("prefect", "pynvml", "tensorrt"):
        (broken / module).mkdir(parents=True)
        (broken / module / "__init__.py").write_text("raise ImportError('not here')")
    process = routetune("status", target.parent, "--json", "--check", PYTHONPATH=str(broken))
    assert process.returncode == 3, process.stderr
    assert [one["state"] for one in json.loads(process.stdout)["targets"]] == ["never tuned"]


def test_a_look_reads_what_moved_and_nothing_else(
    target: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "RACY_SECONDS", -1.0)
    reads: list[str] = []
    asked = Digests._keep

    def keep(self: Digests, name: str, *rest: Any) -> None:
        reads.append(name)
        asked(self, name, *rest)

    monkeypatch.setattr(Digests, "_keep", keep)
    first = look_at([target], store)
    assert [name.split()[0] for name in reads] == ["model"]
    reads.clear()
    again = look_at([target], store)
    assert reads == []
    assert again[0].subject is not None and first[0].subject is not None
    assert again[0].subject == first[0].subject, "remembered or read, it is the same"
    model = target.with_suffix(".onnx")
    model.write_bytes(model.read_bytes() + b"\x12\x00")  # an empty producer version: another file, same model
    os.utime(model)
    assert look_at([target], store)[0].subject is not None
    assert len(reads) == 1
    assert look_at([target], store, rehash=True)[0].state == "never tuned"
    assert len(reads) == 2


def test_targets_of_one_name_are_refused_each(target: Path, store: Store) -> None:
    """Each would replace what the other has published, night for night."""
    other = target.parent / "copied" / "b.toml"
    other.parent.mkdir()
    shutil.copytree(target.parent, other.parent, dirs_exist_ok=True, ignore=lambda *_: ["copied"])
    (other.parent / target.name).rename(other)
    link = target.parent / "link.toml"
    link.symlink_to(target)
    states = look_at([target, other], store)
    assert [state.state for state in states] == ["refused"] * 2
    assert str(other) in states[0].detail and str(target) in states[1].detail
    night = open_night([target, other], store)
    assert [one["outcome"] for one in night.results] == ["refused"] * 2 and not night.todo
    assert [state.state for state in look_at([target, link], store)] == ["never tuned"] * 2, "one file"
    other.write_text(other.read_text().replace(f'name = "{states[0].target}"', 'name = "other"'))
    assert [state.state for state in look_at([target, other], store)] == ["never tuned"] * 2


def unusable(path: Path, backend: str = "onnxruntime") -> None:
    """Make a target one for a GPU, which this machine cannot use."""
    text = path.read_text().replace('"onnxruntime"', f'"{backend}"')
    path.write_text(text + '[engine]\ndevice = "cuda:0"\n')


def on_gpu(store: Store, place: Path, **fields: Any) -> Path:
    """A publication for a GPU, with its pointer."""
    given = {"device": "cuda", "driver": "580.1", "gpu.name": "NVIDIA H200"} | fields
    publication = published.publish(store, place, 1.0, key="b" * 16, **given)
    return publication.engine.parents[2] / "current.json"


@pytest.mark.parametrize("backend", ["onnxruntime", "tensorrt"])
def test_where_the_device_is_missing_the_gpu_and_driver_are_named(
    backend: str, store: Store, tmp_path: Path
) -> None:
    """What is published for a GPU, looked at on a machine that cannot use one."""
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers() or tensorrt_found():
        pytest.skip("a GPU could be used here")
    path = tmp_path / "plus.toml"
    published.publish(store, tmp_path, 1.0)
    unusable(path, backend)
    [state] = look_at([path], store)
    assert state.state == "refused" and not state.changes, "nothing is published for a GPU"

    on_gpu(store, tmp_path, **{"gpu.mig": NOT_APPLICABLE})
    unusable(path, backend)
    [state] = look_at([path], store)
    assert (state.state, state.cost, state.target) == ("stale", "rebuild", "plus")
    told = [str(change) for change in state.changes]
    assert told == [
        "environment.driver: 580.1 -> (none here)",
        "environment.gpu.name: NVIDIA H200 -> (none here)",
    ]
    (tmp_path / "plus.onnx").unlink()  # a host that never had the model is told the same
    assert [str(change) for change in look_at([path], store)[0].changes] == told
    assert verification(path, store)["problems"] == []
    night = open_night([path], store)
    assert not night.todo and [one["outcome"] for one in night.results] == ["refused"]


NO_GPU = pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="a GPU could be used here"
)


@NO_GPU
def test_a_gpus_publication_is_named_beside_a_newer_one_of_the_cpu(store: Store, tmp_path: Path) -> None:
    on_gpu(store, tmp_path)
    published.publish(store, tmp_path, 2.0)
    unusable(tmp_path / "plus.toml")
    [state] = look_at([tmp_path / "plus.toml"], store)
    assert state.state == "stale" and "environment.gpu.name" in {change.field for change in state.changes}


@NO_GPU
@pytest.mark.parametrize("damage", ['{"schema": 2}', "[]", "", '{"schema": 1, "generation": null}'])
def test_no_pointer_whatever_ends_a_look_without_the_device(
    damage: str, store: Store, tmp_path: Path
) -> None:
    pointer = on_gpu(store, tmp_path)
    pointer.chmod(0o600)
    pointer.write_text(damage)
    unusable(tmp_path / "plus.toml")
    [state] = look_at([tmp_path / "plus.toml"], store)
    assert state.state == "refused" and state.detail
