"""NPZ files of a user: named arrays, never pickles."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from routetune.tasks.errors import BadInput

_HOW = "write it with numpy.savez(path, input_name=array, ...)"


def read_npz(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an npz file by name.

    Raises:
        BadInput: the file is missing, is no npz, is damaged, or holds an array of Python objects.
    """
    try:
        if path.is_dir():
            raise BadInput(f"inputs {path} is a folder; name an npz file in it")
        if not path.exists():
            raise BadInput(f"inputs {path} does not exist; {_HOW}")
        if not zipfile.is_zipfile(path):
            raise BadInput(f"inputs {path} is not an npz file; {_HOW}")
        with np.load(path, allow_pickle=False) as archive:
            return {name: _array(archive, name, path) for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise BadInput(f"inputs {path} cannot be read: {error}") from None


def _array(archive: Any, name: str, path: Path) -> np.ndarray[Any, Any]:
    try:
        array = archive[name]
    except ValueError as error:
        if "pickle" not in str(error):
            raise
        raise BadInput(
            f"inputs {path}: {name!r} holds Python objects, which are never loaded; save plain numbers"
        ) from None
    if not isinstance(array, np.ndarray) or array.dtype.hasobject:
        raise BadInput(f"inputs {path}: {name!r} is not a plain array; {_HOW}")
    return array
