"""Sidecars: the files beside a model that hold the bytes of its external tensors.

Path policy. A model is always opened by its own absolute path, never by the path a link resolves to. The
location of an external tensor must be relative, without "..": a file in or below the model's folder. Links
are the user's own and are followed, as far as onnxruntime follows them: the bytes must lie in or below the
folder of the model, or that of the file which a linked model points to. Anything else is refused by name
here, since otherwise every route would fail later for the same reason.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from routetune.tasks.errors import BadInput

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

BLOCK = 1 << 20
#: Bits of one element in raw data, for the types that are packed more densely than their NumPy type.
_PACKED_BITS = {
    "UINT4": 4,
    "INT4": 4,
    "FLOAT4E2M1": 4,
    "UINT2": 2,
    "INT2": 2,
    "FLOAT6E2M3": 6,
    "FLOAT6E3M2": 6,
}


@dataclass(frozen=True, slots=True)
class Sidecar:
    """The bytes of one external tensor: `size` bytes from `offset` on in `file`.

    Attributes:
        tensor: the tensor's name.
        location: the file as the model names it, relative to the model's folder.
    """

    tensor: str
    location: str
    file: Path
    offset: int
    size: int

    def sha256(self) -> str:
        """SHA-256 of the bytes, read in blocks of 1 MiB.

        Raises:
            BadInput: the file ends early, or cannot be read.
        """
        hasher, left = hashlib.sha256(), self.size
        try:
            with self.file.open("rb") as stream:
                stream.seek(self.offset)
                while left and (block := stream.read(min(BLOCK, left))):
                    hasher.update(block)
                    left -= len(block)
        except OSError as error:
            raise BadInput(f"tensor {self.tensor!r}: its file {self.file} cannot be read: {error}") from None
        if left:
            raise BadInput(
                f"tensor {self.tensor!r}: its file {self.file} ended {left} bytes early; it changed meanwhile"
            )
        return hasher.hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a whole file, read in blocks.

    Raises:
        BadInput: the file cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error}") from None


def tensors(message: Any) -> Iterator[TensorProto]:
    """Every TensorProto anywhere below a protobuf message, in the order of fields."""
    for part in parts(message):
        if part.DESCRIPTOR.full_name == "onnx.TensorProto":
            yield part
        else:
            yield from tensors(part)


def parts(message: Any) -> Iterator[Any]:
    """The messages directly below a protobuf message, in the order of fields."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            yield from (value,) if hasattr(value, "DESCRIPTOR") else value


def read_sidecar(tensor: TensorProto, model: Path) -> Sidecar:
    """Where the bytes of an external tensor of the model at `model` are.

    Raises:
        BadInput: the location is not allowed, the file is missing, or it does not hold all of the tensor. The
            message names tensor, file, expected and actual size.
    """
    given = {entry.key: entry.value for entry in tensor.external_data}
    name, location = tensor.name or "(unnamed)", given.get("location", "")
    where = f"model {model}: tensor {name!r}"
    offset, size = _count(given, "offset", where), raw_size(tensor, where)
    file = _locate(location, model, where, size)
    if "length" in given and (length := _count(given, "length", where)) != size:
        raise BadInput(
            f"{where} of shape {list(tensor.dims)} needs {size} bytes of {file}, but the model says "
            f"{length}; export it again"
        )
    actual = file.stat().st_size
    if offset + size > actual:
        beginning = f" from byte {offset} on" if offset else ""
        raise BadInput(
            f"{where} expects {size} bytes{beginning} in its external data file {file}, but the file has "
            f"{actual} bytes; copy the complete file there"
        )
    return Sidecar(name, location, file, offset, size)


def check_sidecars(model: ModelProto, path: Path) -> list[Sidecar]:
    """The sidecars of every external tensor, all there and of the right size; so is what is in the file.

    Raises:
        BadInput: on the first tensor of which this is not so, as `read_sidecar`.
    """
    found = []
    for tensor in tensors(model):
        if is_external(tensor):
            found.append(read_sidecar(tensor, path))
        elif tensor.HasField("raw_data"):
            _check_raw(tensor, f"model {path}: tensor {tensor.name or '(unnamed)'!r}")
    return found


def _check_raw(tensor: TensorProto, where: str) -> None:
    """Refuse raw data of another size than the shape says: a library might believe the shape."""
    needed, found = raw_size(tensor, where), len(tensor.raw_data)
    if found != needed:
        raise BadInput(
            f"{where} of shape {list(tensor.dims)} needs {needed} bytes, but the model holds {found} for it; "
            "export it again"
        )


def is_external(tensor: TensorProto) -> bool:
    return bool(tensor.data_location == type(tensor).EXTERNAL)


def raw_size(tensor: TensorProto, where: str) -> int:
    """Bytes that the tensor takes as raw data.

    Raises:
        BadInput: its type has no fixed size, or a dimension is negative.
    """
    from onnx import TensorProto
    from onnx.helper import tensor_dtype_to_np_dtype

    known = {number: name for name, number in TensorProto.DataType.items()}
    kind = known.get(tensor.data_type, "UNDEFINED")
    if kind in ("UNDEFINED", "STRING") or any(size < 0 for size in tensor.dims):
        raise BadInput(f"{where} of type {kind} and shape {list(tensor.dims)} cannot be held as raw bytes")
    bits: int = _PACKED_BITS.get(kind) or 8 * tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    elements: int = math.prod(tensor.dims)
    return -(-elements * bits // 8)


def _count(given: dict[str, str], key: str, where: str) -> int:
    text = given.get(key, "0")
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise BadInput(f"{where} has the {key} {text!r} in its external data; it must be a number from 0 up")
    return int(text)


def _locate(location: str, model: Path, where: str, size: int) -> Path:
    """The file that `location` names, by its own path: links are checked, not resolved."""
    parts = PurePosixPath(location).parts
    if not location or "\0" in location or location.startswith("/") or ".." in parts:
        raise BadInput(
            f"{where} has its data at {location!r}; the location of external data must be a relative path "
            "inside the folder of the model, without '..'"
        )
    file = model.parent / location
    try:
        found = file.exists()
    except OSError as error:  # such as a name too long
        raise BadInput(f"{where}: its external data file {file} cannot be read: {error}") from None
    if not found and file.is_symlink():
        raise BadInput(f"{where}: its external data file {file} is a broken link to {file.readlink()}")
    if not found:
        raise BadInput(
            f"{where} expects {size} bytes in its external data file {file}, which is missing; copy it there"
        )
    if not file.is_file():
        raise BadInput(f"{where}: its external data file {file} is not a regular file")
    resolved = file.resolve()
    folders = {model.parent.resolve(), model.resolve().parent}
    if not any(resolved.is_relative_to(folder) for folder in folders):
        raise BadInput(
            f"{where}: its external data file {file} leads through a link to {resolved}, outside the folder "
            f"of the model, and onnxruntime does not follow it; put the file itself beside {model.name}, or "
            f"make {model.name} a link into the same folder too"
        )
    return file
