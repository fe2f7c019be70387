"""Calibration: the range of every tensor that may be quantised, found once on the reference inputs.

A worker's step. The model is brought into the form that all placements are made from: nodes named, one file,
batch normalisations and constants folded into convolutions, since Q/DQ between the two would keep a compiler
from doing so, and types inferred. The user's files are only read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from routetune.tasks.arrays import load_arrays
from routetune.tasks.engines.base import BuildError
from routetune.tasks.engines.normal import free_suffixes, normalise, outputs_by_nodes, raised
from routetune.tasks.targets.places import CHANNEL_OPSET, FIRST_OPSET, OPERATORS, node_names, places_of

if TYPE_CHECKING:
    from onnx import ModelProto

#: Activations that belong to the node before them: they cost nothing where it is quantised.
ACTIVATIONS = ("Relu", "Clip")
#: The rewrites of ONNX Runtime's that a model goes through before it is quantised.
_FOLDED = frozenset({"ConstantFolding", "ConvAddFusion", "ConvBNFusion", "ConvMulFusion"})
#: What ONNX Runtime calls the casts that it computes 16-bit floats with on a CPU, and saves with the model.
_CPU_CAST = "InsertedPrecisionFreeCast_"
#: Of the histograms for entropy. The library's 128 are as many as there are integers: no range but one fits.
_BINS = 2048
_METHODS = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}


def calibrate(
    model: str,
    prepared: str,
    ranges: str,
    inputs: Sequence[str],
    method: Mapping[str, Any],
    per_channel: bool,
    plugins: Sequence[str] = (),
) -> dict[str, str]:
    """Prepare the model and find its ranges.

    Args:
        model: the ONNX file as written; sidecars are beside it.
        prepared, ranges: the files to write, in a folder of ours: an ONNX model, and JSON: tensor -> [lowest,
            highest].
        inputs: arrays files, one for each input set; none where nothing is to be calibrated.
        method: "calibration": minmax, entropy or percentile, and "percentile".

    Returns: SHA-256, hex, of the two files: {"prepared", "ranges"}.

    Raises:
        BuildError: the model cannot be brought into this form, or a library refuses it.
        OSError: the disk is full, or the like; it says nothing of the model.
    """
    try:
        prepare(Path(model), Path(prepared), per_channel, plugins)
        with TemporaryDirectory(dir=Path(prepared).parent) as scratch:
            found = _ranges(Path(prepared), inputs, method, Path(scratch)) if inputs else {}
    except (BuildError, MemoryError, OSError):
        raise
    except Exception as error:
        raise BuildError(f"the model cannot be calibrated: {error}") from error
    Path(ranges).write_text(json.dumps(found, sort_keys=True))
    return {"prepared": file_digest(prepared), "ranges": file_digest(ranges)}


def prepare(source: Path, output: Path, per_channel: bool, plugins: Sequence[str] = ()) -> None:
    """Write the model that placements are made from; sidecars are read into it. Raises BuildError."""
    import onnx
    from onnxruntime.quantization.quant_utils import add_infer_metadata
    from routetune.tasks.engines.onnxruntime.sidecars import embed
    from routetune.tasks.targets.operators import count_operators

    model = onnx.load(source, load_external_data=False)
    for node, name in zip(model.graph.node, node_names(model.graph), strict=True):
        node.name = name
    embed(model, source.parent)
    normalise(model)
    onnx.save(raised(model, CHANNEL_OPSET if per_channel else FIRST_OPSET), output)
    model = _folded(output, plugins)
    outputs_by_nodes(model)
    free_suffixes(model, {node for place in places_of(model, "node") for node in place.nodes})
    model = onnx.shape_inference.infer_shapes(model)
    used = {operator.rpartition(":")[0] for operator in count_operators(model)}
    for entry in list(model.opset_import):
        if entry.domain and entry.domain not in used:
            model.opset_import.remove(entry)
    add_infer_metadata(model)  # else the quantiser infers again for each placement
    onnx.save(model, output)


def file_digest(path: str | Path) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _folded(path: Path, plugins: Sequence[str]) -> ModelProto:
    """The model, what Q/DQ would keep apart folded by ONNX Runtime; names of the nodes that matter stay.

    A model in 16-bit floats stays as it is: on a CPU it would be saved with the casts that compute it.
    """
    import onnx
    from routetune.tasks.engines.onnxruntime.passes import RULES, TRANSFORMERS
    from routetune.tasks.engines.onnxruntime.session import build_options, open_session

    written = path.with_suffix(".folded")
    options = build_options({"-graph_optimization_level": "basic"}, written, {})
    disabled = (TRANSFORMERS.keys() | RULES.keys()) - _FOLDED
    open_session(path, options, "CPUExecutionProvider", plugins=plugins, disabled=disabled)
    folded = onnx.load(written)
    written.unlink()
    as_it_is = any(node.name.startswith(_CPU_CAST) for node in folded.graph.node)
    return onnx.load(path) if as_it_is else folded


def _ranges(
    prepared: Path, inputs: Sequence[str], method: Mapping[str, Any], scratch: Path
) -> dict[str, list[float]]:
    """Tensor -> [lowest, highest], of those with a finite range."""
    from onnxruntime.quantization.calibrate import CalibrationMethod, create_calibrator

    kind = CalibrationMethod[_METHODS[method["calibration"]]]
    extra = {"percentile": method["percentile"]} if "percentile" in method else {}
    if kind == CalibrationMethod.Entropy:
        extra["num_bins"] = _BINS
    calibrator = create_calibrator(
        prepared,
        [*OPERATORS, *ACTIVATIONS],
        augmented_model_path=str(scratch / "augmented.onnx"),
        calibrate_method=kind,
        extra_options=extra,
    )
    for file in inputs:  # one by one: sets of several shapes cannot be put together
        calibrator.collect_data(_Reader([load_arrays(Path(file))]))
    computed = calibrator.compute_data().items()
    found = {name: [float(np.asarray(end).item()) for end in one.range_value] for name, one in computed}
    return {name: ends for name, ends in found.items() if np.isfinite(ends).all()}


class _Reader:
    """Feeds of a calibration, as ONNX Runtime asks for them."""

    def __init__(self, feeds: Sequence[Mapping[str, Any]]) -> None:
        self._feeds: Iterator[Mapping[str, Any]] = iter(feeds)

    def get_next(self) -> Mapping[str, Any] | None:
        return next(self._feeds, None)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return self._feeds
