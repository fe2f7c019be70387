from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from routetune.tasks.errors import BadInput
from routetune.tasks.targets.onnxfile import read_model
from routetune.tasks.targets.sidecars import check_sidecars

FLOATS = np.arange(1024, dtype=np.float32)
Layout = Callable[[Path, SimpleNamespace], Path]


def plain(
    folder: Path, make: SimpleNamespace, location: str = "w.bin", at: str = "w.bin", **entries: Any
) -> Path:
    (folder / at).parent.mkdir(parents=True, exist_ok=True)
    FLOATS.tofile(folder / at)
    onnx.save(make.add_with_sidecar(location, 1024, **entries), folder / "m.onnx")
    return folder / "m.onnx"


def hub(folder: Path, make: SimpleNamespace) -> Path:
    """A3: model and sidecar are links into a folder of blobs, as in a downloaded snapshot."""
    (folder / "blobs").mkdir()
    (folder / "snapshot").mkdir()
    FLOATS.tofile(folder / "blobs" / "1")
    onnx.save(make.add_with_sidecar("m.onnx_data", 1024), folder / "blobs" / "2")
    (folder / "snapshot" / "m.onnx_data").symlink_to("../blobs/1")
    (folder / "snapshot" / "m.onnx").symlink_to("../blobs/2")
    return folder / "snapshot" / "m.onnx"


def blobs_below(folder: Path, make: SimpleNamespace) -> Path:
    path = hub(folder, make)
    for name, blob in {"m.onnx_data": "1", "m.onnx": "2"}.items():
        (folder / name).symlink_to(f"blobs/{blob}")
    return folder / path.name


def only_data_linked_out(folder: Path, make: SimpleNamespace) -> Path:
    path = hub(folder, make)
    path.unlink()
    onnx.save(make.add_with_sidecar("m.onnx_data", 1024), path)
    return path


def only_model_linked(folder: Path, make: SimpleNamespace) -> Path:
    """The sidecar is beside the file that the link points to, not beside the link."""
    (folder / "real").mkdir()
    plain(folder / "real", make)
    (folder / "m.onnx").symlink_to("real/m.onnx")
    return folder / "m.onnx"


def folder_linked(folder: Path, make: SimpleNamespace) -> Path:
    (folder / "real").mkdir()
    plain(folder / "real", make)
    (folder / "link").symlink_to("real")
    return folder / "link" / "m.onnx"


def accents(folder: Path, make: SimpleNamespace) -> Path:
    """A9."""
    inner = folder / "mod èle 士"
    inner.mkdir()
    return plain(inner, make, "w é 士.bin", "w é 士.bin").rename(inner / "mon modèle.onnx")


def climbing(folder: Path, make: SimpleNamespace) -> Path:
    (folder / "sub").mkdir()
    path = plain(folder, make, "../w.bin")
    return path.rename(folder / "sub" / "m.onnx")


def absolute(folder: Path, make: SimpleNamespace) -> Path:
    return plain(folder, make, str(folder / "w.bin"))


def memory_address(folder: Path, make: SimpleNamespace) -> Path:
    """onnxruntime's own marker for data in memory, which no file may carry."""
    return plain(folder, make, "*/_ORT_MEM_ADDR_/*", offset=4096)


def truncated(folder: Path, make: SimpleNamespace) -> Path:
    path = plain(folder, make)
    os.truncate(folder / "w.bin", 100)
    return path


def deleted(folder: Path, make: SimpleNamespace) -> Path:
    path = plain(folder, make)
    (folder / "w.bin").unlink()
    return path


def dangling(folder: Path, make: SimpleNamespace) -> Path:
    path = deleted(folder, make)
    (folder / "w.bin").symlink_to("gone")
    return path


def is_folder(folder: Path, make: SimpleNamespace) -> Path:
    path = deleted(folder, make)
    (folder / "w.bin").mkdir()
    return path


# Layout -> what the refusal must name, or None where the model loads. onnxruntime must agree with each.
LAYOUTS: list[tuple[Layout, list[str] | None]] = [
    (plain, None),
    (lambda folder, make: plain(folder, make, "sub/w.bin", "sub/w.bin"), None),
    (lambda folder, make: plain(folder, make, offset=0, length=4096), None),
    (hub, None),
    (blobs_below, None),
    (folder_linked, None),
    (accents, None),
    (only_data_linked_out, ["m.onnx_data leads through a link to", "blobs/1", "'w'"]),
    (only_model_linked, ["w.bin, which is missing"]),
    (climbing, ["'../w.bin'", "without '..'"]),
    (absolute, ["/w.bin'", "must be a relative path"]),
    (memory_address, ["_ORT_MEM_ADDR_"]),
    # A4: tensor, file, expected and actual size.
    (truncated, ["'w'", "w.bin", "4096 bytes", "100 bytes"]),
    (
        lambda folder, make: plain(folder, make, offset=16),
        ["'w'", "4096 bytes from byte 16 on", "has 4096 bytes"],
    ),
    (deleted, ["'w'", "4096 bytes", "w.bin, which is missing"]),
    (dangling, ["'w'", "w.bin is a broken link to gone"]),
    (is_folder, ["'w'", "w.bin is not a regular file"]),
    (lambda folder, make: plain(folder, make, length=100), ["'w'", "needs 4096 bytes", "says 100"]),
    (lambda folder, make: plain(folder, make, offset=-16), ["'w'", "offset '-16'"]),
    (lambda folder, make: plain(folder, make, ""), ["'w'", "''"]),
]


@pytest.mark.parametrize(("layout", "refusal"), LAYOUTS)
def test_what_onnxruntime_loads_is_accepted_and_the_rest_refused_by_name(
    tmp_path: Path, make: SimpleNamespace, layout: Layout, refusal: list[str] | None
) -> None:
    path = layout(tmp_path, make)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if refusal is None:
        [sidecar] = check_sidecars(read_model(path), path)
        assert (sidecar.tensor, sidecar.offset, sidecar.size) == ("w", 0, 4096)
        assert sidecar.sha256() == hashlib.sha256(FLOATS.tobytes()).hexdigest()
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        [found] = session.run(None, {"x": np.zeros(1024, np.float32)})
        assert np.array_equal(found, FLOATS)
        return
    with pytest.raises(BadInput) as raised:
        check_sidecars(read_model(path), path)
    for part in [str(path), *refusal]:
        assert part in str(raised.value)
    with pytest.raises(Exception):  # noqa: B017  onnxruntime's exceptions have no public common base
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def test_a_tensor_inside_a_node_is_checked_too(tmp_path: Path, make: SimpleNamespace) -> None:
    constant = onnx.helper.make_node("Constant", [], ["y"])
    attribute = constant.attribute.add(name="value", type=onnx.AttributeProto.TENSOR)
    attribute.t.CopyFrom(make.add_with_sidecar("gone.bin").graph.initializer[0])
    branch = onnx.helper.make_graph([constant], "b", [], [make.value("y", [4096])])
    choose = onnx.helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch)
    condition = make.value("c", [], onnx.TensorProto.BOOL)
    with pytest.raises(BadInput, match=r"gone\.bin, which is missing"):
        check_sidecars(make.build([choose], [condition], [make.value("z", [4096])]), tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("dtype", "elements", "expected"),
    [
        ("INT4", 3, 2),
        ("UINT2", 5, 2),
        ("BFLOAT16", 3, 6),
        ("COMPLEX64", 2, 16),
        ("FLOAT8E4M3FN", 3, 3),
        ("BOOL", 0, 0),
    ],
)
def test_sizes_of_packed_and_small_types(
    tmp_path: Path, make: SimpleNamespace, dtype: str, elements: int, expected: int
) -> None:
    model = make.add_with_sidecar("w.bin", elements)
    model.graph.initializer[0].data_type = onnx.TensorProto.DataType.Value(dtype)
    (tmp_path / "w.bin").write_bytes(b"x" * expected)
    [sidecar] = check_sidecars(model, tmp_path / "m.onnx")
    assert sidecar.size == expected


@pytest.mark.parametrize("dtype", ["STRING", "UNDEFINED"])
def test_types_without_a_fixed_size_cannot_be_external(
    tmp_path: Path, make: SimpleNamespace, dtype: str
) -> None:
    model = make.add_with_sidecar("w.bin")
    model.graph.initializer[0].data_type = onnx.TensorProto.DataType.Value(dtype)
    (tmp_path / "w.bin").write_bytes(b"x" * 4096)
    with pytest.raises(BadInput, match=f"of type {dtype}"):
        check_sidecars(model, tmp_path / "m.onnx")


def test_a_file_that_shrinks_meanwhile_is_noticed(tmp_path: Path, make: SimpleNamespace) -> None:
    path = plain(tmp_path, make)
    [sidecar] = check_sidecars(read_model(path), path)
    os.truncate(tmp_path / "w.bin", 4000)
    with pytest.raises(BadInput, match="ended 96 bytes early"):
        sidecar.sha256()
