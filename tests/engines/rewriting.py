"""Calibrating and rewriting models as the worker does, on inputs of the test's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from routetune.data import folder
from routetune.tasks.arrays import save_arrays
from routetune.tasks.engines.calibration import calibrate
from routetune.tasks.engines.qdq import rewrite
from routetune.tasks.targets.quantization import Quantization

Arrays = dict[str, np.ndarray[Any, Any]]
SETTINGS = Quantization().settings("onnxruntime")


def digits() -> Arrays:
    """The held-out images of the sample."""
    with np.load(folder() / "inputs" / "digits.npz") as archive:
        return {"x": archive["x"]}


def calibrated(
    model: Path,
    place: Path,
    inputs: Sequence[Arrays] = (),
    per_channel: bool = False,
    method: str = "minmax",
) -> dict[str, str]:
    """The files "prepared" and "ranges" of a model, in a folder `place`; by default on the digits."""
    sets = []
    for number, arrays in enumerate(inputs or [digits()]):
        sets.append(str(place / f"inputs{number}.npz"))
        save_arrays(Path(sets[-1]), arrays)
    files = {name: str(place / f"calibration.{name}") for name in ("prepared", "ranges")}
    how = {"calibration": method} | ({"percentile": 99.0} if method == "percentile" else {})
    calibrate(str(model), **files, inputs=sets, method=how, per_channel=per_channel)
    return files


def rewritten(
    files: Mapping[str, str],
    output: Path,
    nodes: Sequence[str] = (),
    settings: Mapping[str, Any] = SETTINGS,
    dynamic: bool = False,
    half: bool = False,
    fused: bool = False,
) -> Path:
    placement = {"nodes": list(nodes), "dynamic": dynamic, "half": half, "fused": fused}
    found = rewrite(**files, placement=placement, settings=settings, output=str(output))
    assert found["size"] == output.stat().st_size
    return output
