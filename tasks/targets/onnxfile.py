"""ONNX files: reading one into a message, with a sentence for each way in which a file is none."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from routetune.tasks.errors import BadInput
from routetune.tasks.reading import check_regular

if TYPE_CHECKING:
    from onnx import ModelProto

_LARGEST = 2**31 - 1


def read_model(path: Path) -> ModelProto:
    """The model's message, its external data not loaded.

    Raises:
        BadInput: there is no such file, it is not an ONNX model, or it has no outputs.
    """
    import onnx

    data = _read(path)
    if data.startswith(b"version https://git-lfs"):
        raise BadInput(f"model {path} is only a Git LFS pointer; fetch the file itself with 'git lfs pull'")
    try:
        model: ModelProto = onnx.ModelProto.FromString(data)
    except import_module("google.protobuf.message").DecodeError:
        raise BadInput(f"model {path} is not an ONNX file: not a protobuf message, or cut short") from None
    if not model.HasField("graph") or not model.ir_version:
        raise BadInput(f"model {path} is not an ONNX file: it holds no graph")
    if model.ir_version > onnx.IR_VERSION:
        raise BadInput(
            f"model {path} is of ONNX IR version {model.ir_version}, but onnx {onnx.__version__} "
            f"reads versions up to {onnx.IR_VERSION}; install a newer onnx, or export for an older version"
        )
    if name := _unreadable_name(model):
        raise BadInput(f"model {path} holds the text {name!r}, which is not UTF-8; export it again")
    if not model.graph.output:
        raise BadInput(f"model {path} has no outputs, so there is nothing to check or time")
    return model


def _unreadable_name(message: Any) -> bytes | None:
    """The first text in a protobuf message that is not UTF-8; protobuf hands such out as bytes."""
    for field, value in message.ListFields():
        several = value if isinstance(value, Iterable) and not isinstance(value, str | bytes) else [value]
        if field.type == field.TYPE_STRING:
            for text in several:
                if isinstance(text, bytes):
                    return text
        elif field.message_type is not None:
            for part in several:
                if (found := _unreadable_name(part)) is not None:
                    return found
    return None


def _read(path: Path) -> bytes:
    try:
        if path.is_symlink() and not path.exists():
            raise BadInput(f"model {path} is a broken link to {path.readlink()}")
        if path.is_dir():
            raise BadInput(f"model {path} is a folder; name the .onnx file in it")
        size = check_regular(path, "model")
        if size > _LARGEST:
            raise BadInput(f"model {path} has {size} bytes, but ONNX files end at 2 GiB; use a sidecar")
        data = path.read_bytes()
    except FileNotFoundError:
        raise BadInput(f"model {path} does not exist{_how_to_make(path)}") from None
    except OSError as error:
        raise BadInput(f"model {path} cannot be read: {error}") from None
    if not data:
        raise BadInput(f"model {path} is an empty file")
    return data


def _how_to_make(path: Path) -> str:
    """Models too large to keep have a script of the same name beside them; say so, but never run it."""
    script = path.with_suffix(".py")
    return f"; make it with: python {shlex.quote(str(script))}" if script.is_file() else ""
