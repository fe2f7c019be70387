"""NPZ files of a user: named arrays, never pickles."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from routetune.tasks.errors import BadInput

_HOW = "write it with numpy.savez(path, name=array, ...)"


def read_npz(path: Path, what: str = "inputs") -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an npz file by name; `what` is what messages call them.

    Raises:
        BadInput: the file is missing, is no npz, is damaged, or holds an array of Python objects.
    """
    try:
        if path.is_dir():
            raise BadInput(f"{what} {path} is a folder; name an npz file in it")
        if not path.exists():
            raise BadInput(f"{what} {path} does not exist; {_HOW}")
        if not zipfile.is_zipfile(path):
            raise BadInput(f"{what} {path} is not an npz file; {_HOW}")
        with np.load(path, allow_pickle=False) as archive:
            return {name: _array(archive, name, path, what) for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise BadInput(f"{what} {path} cannot be read: {error}") from None


def _array(archive: Any, name: str, path: Path, what: str) -> np.ndarray[Any, Any]:
    try:
        array = archive[name]
    except ValueError as error:
        if "pickle" not in str(error):
            raise
        raise BadInput(
            f"{what} {path}: {name!r} holds Python objects, which are never loaded; save plain numbers"
        ) from None
    if not isinstance(array, np.ndarray) or array.dtype.hasobject:
        raise BadInput(f"{what} {path}: {name!r} is not a plain array; {_HOW}")
    return array


def as_bits(array: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """The array as `dtype` where that is a type that npz files have no name for, such as bfloat16.

    Those types come back from a file as raw bytes ("|V2"); they may also be kept as unsigned integers.
    """
    wanted = np.dtype(dtype)
    named = wanted.type.__module__ != "ml_dtypes" or array.dtype == wanted
    if named or array.dtype.itemsize != wanted.itemsize or array.dtype.kind not in "Vu":
        return array
    return array.view(wanted) if array.dtype.names is None else array
