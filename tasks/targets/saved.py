"""Saved reference outputs: npz files of the user's, or the JSON that Polygraphy's --save-outputs writes.

Polygraphy's file is read here, without Polygraphy: its own reader swaps arrays to files of its own, and the
format is plain JSON around npy bytes. Nothing in either kind of file is ever executed.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from routetune.tasks import canonical
from routetune.tasks.arrays import Array, arrays_digest
from routetune.tasks.errors import BadInput
from routetune.tasks.reading import check_fits, check_regular
from routetune.tasks.targets.memo import Memo, no_memo
from routetune.tasks.targets.npz import as_bits, read_npy, read_npz
from routetune.tasks.targets.problems import nearest
from routetune.tasks.targets.sidecars import file_digest

if TYPE_CHECKING:
    from routetune.tasks.targets.inputs import InputSet
    from routetune.tasks.targets.model import ModelInfo, TensorInfo
    from routetune.tasks.targets.schema import Reference, Target

Outputs = dict[str, Array]


def saved_digest(reference: Reference, memo: Memo = no_memo) -> list[str] | None:
    """The contents of the files in reference.source, as digests; None where outputs are computed.

    Raises:
        BadInput: a file cannot be read.
    """
    if not reference.saved:
        return None
    try:
        return [memo("saved outputs", path, partial(_digest, path)) for path in reference.saved]
    except OSError as error:
        raise BadInput(f"saved outputs cannot be read: {error}") from None


def _digest(path: Path) -> tuple[str, list[Path]]:
    if path.suffix == ".npz":
        return arrays_digest(read_npz(path, "saved outputs")), [path]
    check_regular(path, "saved outputs")
    return file_digest(path), [path]


def saved_outputs(target: Target, model: ModelInfo, sets: list[InputSet]) -> dict[str, Outputs]:
    """Set name -> outputs, for each of the user's input sets, in the model's order.

    Raises:
        BadInput: a file cannot be read, there are not as many sets of outputs as of inputs, or an output is
            missing, unknown, of another type, or of a shape that the model cannot give.
    """
    users = [one for one in sets if one.role == "user"]
    found: list[tuple[Path, Outputs]] = []
    for path in target.reference.saved:
        read = [read_npz(path, "saved outputs")] if path.suffix == ".npz" else _polygraphy(path)
        found += [(path, outputs) for outputs in read]
    if len(found) != len(users):
        raise BadInput(
            f"{target.path}: reference.source holds the outputs of {len(found)} input sets, but "
            f"reference.inputs names {len(users)}; save one set of outputs for each, in the same order"
        )
    return {
        one.name: _checked(outputs, model, one, path)
        for one, (path, outputs) in zip(users, found, strict=True)
    }


def _checked(outputs: Outputs, model: ModelInfo, one: InputSet, path: Path) -> Outputs:
    for name in outputs:
        if name not in model.outputs:
            raise BadInput(
                f"saved outputs {path}: {name!r} is not an output of the model"
                f"{nearest(name, model.outputs)}; its outputs are {', '.join(model.outputs)}"
            )
    missing = [name for name in model.outputs if name not in outputs]
    if missing:
        raise BadInput(
            f"saved outputs {path} lack the output {missing[0]!r} of the model; they hold "
            f"{', '.join(outputs) or 'nothing'}"
        )
    sizes = _symbols(model, one)
    return {
        name: _typed(outputs[name], tensor, sizes, path, one.name) for name, tensor in model.outputs.items()
    }


def _symbols(model: ModelInfo, one: InputSet) -> dict[str, int]:
    """The size that each symbol of the model's inputs has in this input set."""
    return {
        size: one.arrays[name].shape[axis]
        for name, tensor in model.inputs.items()
        for axis, size in enumerate(tensor.shape or ())
        if isinstance(size, str)
    }


def _typed(array: Array, tensor: TensorInfo, sizes: Mapping[str, int], path: Path, set_name: str) -> Array:
    where = f"saved outputs {path}: {tensor.name!r}"
    if tensor.dtype:
        array = as_bits(array, tensor.dtype)
        if array.dtype.newbyteorder("=") != np.dtype(tensor.dtype):
            raise BadInput(f"{where} is an array of {array.dtype.name}, but the model gives {tensor.dtype}")
    if tensor.shape is None:
        return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")
    wanted = [sizes.get(size, size) if isinstance(size, str) else size for size in tensor.shape]
    fits = len(wanted) == array.ndim and all(
        size == found or not isinstance(size, int) for size, found in zip(wanted, array.shape, strict=True)
    )
    if not fits:
        told = [size if size is not None else "?" for size in wanted]
        raise BadInput(
            f"{where} has shape {list(array.shape)}, but on input set {set_name!r} the model gives {told}"
        )
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")


def _polygraphy(path: Path) -> list[Outputs]:
    """The outputs of each iteration in a file of Polygraphy's RunResults."""
    how = "save them with 'polygraphy run MODEL --onnxrt --save-outputs FILE.json'"
    try:
        size = check_regular(path, "saved outputs")
        check_fits(4 * size, f"saved outputs {path}, unpacked,")  # bytes, text, the parsed text, the arrays
        content = json.loads(path.read_bytes())
        if content["polygraphy_class"] != "RunResults":
            raise BadInput(f"saved outputs {path} hold Polygraphy's {content['polygraphy_class']}; {how}")
        runs = {str(runner): iterations for runner, iterations in content["lst"]}
        if len(runs) != 1:
            raise BadInput(
                f"saved outputs {path} are of {len(runs)} runners ({', '.join(runs) or 'none'}); save those "
                "of one"
            )
        [iterations] = runs.values()
        return [
            {str(name): _array(value, path) for name, value in one["outputs"].items()} for one in iterations
        ]
    except FileNotFoundError:
        raise BadInput(f"saved outputs {path} do not exist") from None
    except (OSError, KeyError, TypeError, ValueError, AttributeError, EOFError, RecursionError) as error:
        raise BadInput(f"saved outputs {path} are not Polygraphy's RunResults ({error!r}); {how}") from None


def _array(value: Mapping[str, Any], path: Path) -> Array:
    """An array as Polygraphy writes it: npy bytes in base64, perhaps inside a LazyArray."""
    if value["polygraphy_class"] == "LazyArray":
        value = value["values"]
    if value["polygraphy_class"] != "ndarray":
        raise BadInput(
            f"saved outputs hold a {value['polygraphy_class']}, which is no NumPy array; convert the outputs "
            "before saving them"
        )
    try:
        raw = base64.b64decode(value["array"], validate=True)
    except binascii.Error as error:
        raise ValueError(f"an array is not base64: {error}") from None
    return read_npy(raw, f"saved outputs {path}: an array")


def digest_of(outputs: Mapping[str, Outputs]) -> str:
    """SHA-256 over the outputs of every set."""
    return canonical.digest({name: arrays_digest(arrays) for name, arrays in outputs.items()})
