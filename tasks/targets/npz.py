"""NPZ files of a user: named arrays, never pickles, and never more of them than fits."""

from __future__ import annotations

import io
import lzma
import math
import tokenize
import zipfile
import zlib
from collections import Counter
from pathlib import Path
from typing import IO, Any

import numpy as np
from routetune.tasks.errors import BadInput
from routetune.tasks.reading import check_fits, check_regular

_HOW = "write it with numpy.savez(path, name=array, ...)"
#: What zipfile, the decompressors and NumPy raise over bytes that are not what they should be. MemoryError is
#: how Python's parser says that a header is nested too deeply: sizes are checked before anything is taken.
_DAMAGE = (
    OSError,
    ValueError,
    EOFError,
    RuntimeError,  # also NotImplementedError, RecursionError; zipfile says with it that a file is encrypted
    MemoryError,
    OverflowError,
    TypeError,  # a shape of True
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    tokenize.TokenError,
)


def read_npz(path: Path, what: str = "inputs") -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an npz file by name; `what` is what messages call them.

    Raises:
        BadInput: the file is missing, is no npz, is damaged, holds an array of Python objects or two of one
            name, or unpacks to more than fits into memory.
    """
    try:
        check_regular(path, what)
        if not zipfile.is_zipfile(path):
            raise BadInput(f"{what} {path} is not an npz file; {_HOW}")
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            # A member never gives more than it declares: zipfile stops there, and finds the checksum wrong.
            check_fits(sum(member.file_size for member in members), f"{what} {path}, unpacked,")
            names = [member.filename.removesuffix(".npy") for member in members]
            for name, count in Counter(names).items():
                if count > 1:
                    raise BadInput(f"{what} {path} holds {name!r} {count} times; give each its own name")
            return {
                name: _member(archive, member, f"{what} {path}: {name!r}")
                for name, member in zip(names, members, strict=True)
            }
    except FileNotFoundError:
        raise BadInput(f"{what} {path} does not exist; {_HOW}") from None
    except IsADirectoryError:
        raise BadInput(f"{what} {path} is a folder; name an npz file in it") from None
    except _DAMAGE as error:
        raise BadInput(f"{what} {path} cannot be read: {str(error) or 'its header is no array'}") from None


def read_npy(raw: bytes, where: str) -> np.ndarray[Any, Any]:
    """The array that `raw` holds in NumPy's own format; `where` is how messages begin.

    Raises:
        BadInput: it holds none, or Python objects.
    """
    try:
        return _array(io.BytesIO(raw), len(raw), where)
    except _DAMAGE as error:
        raise BadInput(f"{where} cannot be read: {str(error) or 'its header is no array'}") from None


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, where: str) -> np.ndarray[Any, Any]:
    with archive.open(member) as stream:
        array = _array(stream, member.file_size, where)
        # To the end, where zipfile compares the checksum.
        if stream.read(1):
            raise BadInput(f"{where} has bytes behind the array; {_HOW}")
    return array


def _array(stream: IO[bytes], size: int, where: str) -> np.ndarray[Any, Any]:
    """The array in a stream of `size` bytes; its header is believed only as far as the stream goes."""
    formats: Any = np.lib.format
    prefix = formats.MAGIC_PREFIX
    start = stream.read(len(prefix) + 2)
    if start[: len(prefix)] != prefix:
        raise BadInput(f"{where} is not a plain array; {_HOW}")
    readers = {1: formats.read_array_header_1_0, 2: formats.read_array_header_2_0}
    if start[-2:] not in (b"\x01\x00", b"\x02\x00"):
        raise BadInput(f"{where} is in an npy format that is not read here; {_HOW}")
    shape, fortran, dtype = readers[start[-2]](stream)
    if dtype.hasobject:
        raise BadInput(f"{where} holds Python objects, which are never loaded; save plain numbers")
    if len(shape) > 64 or any(length < 0 for length in shape):
        raise BadInput(f"{where} has the shape {list(shape)[:65]}, which no array can have")
    needed = math.prod(shape) * dtype.itemsize
    if needed > size or (needed == 0 and math.prod(shape) > 0):
        raise BadInput(f"{where} of shape {list(shape)} needs {needed} bytes, but the file has {size} for it")
    content = stream.read(needed)
    if len(content) < needed:
        raise BadInput(f"{where} of shape {list(shape)} needs {needed} bytes, but {len(content)} are there")
    flat = np.frombuffer(bytearray(content), dtype, count=math.prod(shape))
    return flat.reshape(shape, order="F" if fortran else "C")


def as_bits(array: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """The array as `dtype` where that is a type that npz files have no name for, such as bfloat16.

    Those types come back from a file as raw bytes ("|V2"); they may also be kept as unsigned integers.
    """
    wanted = np.dtype(dtype)
    named = wanted.type.__module__ != "ml_dtypes" or array.dtype == wanted
    if named or array.dtype.itemsize != wanted.itemsize or array.dtype.kind not in "Vu":
        return array
    return array.view(wanted) if array.dtype.names is None else array
