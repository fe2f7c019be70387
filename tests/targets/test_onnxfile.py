from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import helper
from routetune.tasks.errors import BadInput
from routetune.tasks.targets.onnxfile import read_model


def test_a_model_is_read_without_its_external_data(tmp_path: Path, relu: onnx.ModelProto) -> None:
    onnx.save(relu, tmp_path / "m.onnx")
    assert read_model(tmp_path / "m.onnx") == relu


def test_each_way_of_being_no_model_has_its_own_sentence(tmp_path: Path, relu: onnx.ModelProto) -> None:
    whole = relu.SerializeToString()
    newer = onnx.ModelProto()
    newer.CopyFrom(relu)
    newer.ir_version = onnx.IR_VERSION + 1
    silent = onnx.ModelProto()
    silent.CopyFrom(relu)
    del silent.graph.output[:]
    contents = {
        "empty.onnx": (b"", "is an empty file"),
        "text.onnx": (b"hello world", "is not an ONNX file: not a protobuf message"),
        "short.onnx": (whole[:-3], "cut short"),
        "graphless.onnx": (helper.make_model(onnx.GraphProto()).SerializeToString()[:2], "holds no graph"),
        "tensor.onnx": (onnx.TensorProto(name="t", dims=[1]).SerializeToString(), "is not an ONNX file"),
        "lfs.onnx": (b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 9\n", "git lfs pull"),
        "newer.onnx": (newer.SerializeToString(), f"IR version {onnx.IR_VERSION + 1}"),
        "silent.onnx": (silent.SerializeToString(), "has no outputs"),
    }
    expected = {
        "none.onnx": "does not exist",
        "folder.onnx": "is a folder",
        "link.onnx": "is a broken link to gone",
    }
    (tmp_path / "folder.onnx").mkdir()
    (tmp_path / "link.onnx").symlink_to("gone")
    for name, (content, sentence) in contents.items():
        (tmp_path / name).write_bytes(content)
        expected[name] = sentence
    for name, sentence in expected.items():
        with pytest.raises(BadInput) as raised:
            read_model(tmp_path / name)
        assert sentence in str(raised.value), name
        assert str(tmp_path / name) in str(raised.value)


def test_a_file_beyond_protobufs_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "m.onnx").open("wb") as stream:
        stream.truncate(2**31)  # sparse: takes no room
    with pytest.raises(BadInput, match=r"2147483648 bytes.*sidecar"):
        read_model(tmp_path / "m.onnx")


def test_a_missing_model_with_a_script_beside_it_says_how_to_make_it(tmp_path: Path) -> None:
    (tmp_path / "large model.py").touch()
    with pytest.raises(BadInput, match=r"does not exist; make it with: python '.*large model\.py'"):
        read_model(tmp_path / "large model.onnx")
    with pytest.raises(BadInput, match=r"does not exist$"):
        read_model(tmp_path / "other.onnx")
