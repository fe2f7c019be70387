"""The model digest: one number for everything in a model that can change what it computes."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from routetune.tasks.targets.onnxfile import read_model
from routetune.tasks.targets.sidecars import is_external, parts, read_sidecar, tensors

if TYPE_CHECKING:
    from onnx import ModelProto

#: Written into every digest. Raise it when the same model must get another digest.
_VERSION = b"routetune model digest 1\n"
_DOCUMENTATION = ("doc_string", "metadata_props")
_PRODUCER = ("producer_name", "producer_version", "model_version")


def model_digest(path: str | Path) -> str:
    """SHA-256 (64 hex digits) over the model at `path` and the bytes of its sidecars.

    Doc strings, metadata, the producer and the model's own version number do not count, at any depth; names
    of nodes and tensors do. Sidecars are read in blocks: memory stays near the size of the .onnx file itself.

    Raises:
        BadInput: the file is not an ONNX model, or a sidecar is not complete.
    """
    path = Path(path)
    return digest_of(read_model(path), path)


def digest_of(model: ModelProto, path: Path) -> str:
    """As `model_digest`, of a model already parsed from `path`; it is emptied of its weights on the way.

    Every tensor held as raw bytes, in the file or beside it, is replaced by the SHA-256 of those bytes, so
    the message that is serialised stays small and no second copy of the weights is made.

    Raises:
        BadInput: a sidecar is not complete.
    """
    for field in _PRODUCER:
        model.ClearField(field)
    _strip(model)
    for tensor in tensors(model):
        if is_external(tensor):
            content = read_sidecar(tensor, path).sha256()
        elif tensor.HasField("raw_data"):
            content = hashlib.sha256(tensor.raw_data).hexdigest()
        else:
            continue
        tensor.ClearField("raw_data")
        del tensor.external_data[:]
        tensor.data_location = type(tensor).EXTERNAL
        tensor.external_data.add(key="sha256", value=content)
    return hashlib.sha256(_VERSION + model.SerializeToString(deterministic=True)).hexdigest()


def _strip(message: Any) -> None:
    """Clear the documentation of a protobuf message and of every message in it."""
    for field in _DOCUMENTATION:
        if field in message.DESCRIPTOR.fields_by_name:
            message.ClearField(field)
    for part in parts(message):
        _strip(part)
