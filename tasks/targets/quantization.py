"""The section [quantization]: where a model may be rewritten in lower precision, and how."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from routetune.tasks.targets.fields import Section


class Quantization(Section):
    """How the places of a route (`@place=on`) rewrite the model; it rewrites nothing by itself.

    What is None is chosen for the backend: ONNX Runtime's CPU kernels want unsigned activations with a zero
    point and are fastest with one scale a weight, TensorRT takes signed symmetric integers only.
    """

    places: Literal["node", "type", "block"] = "node"
    activations: Literal["uint8", "int8"] | None = None
    weights: Literal["int8", "uint8"] = "int8"
    symmetric: bool | None = None
    per_channel: bool | None = None
    reduce_range: bool = False
    calibration: Literal["minmax", "entropy", "percentile"] = "minmax"
    percentile: Annotated[float, Field(gt=50, le=100, allow_inf_nan=False)] = 99.999

    @model_validator(mode="after")
    def _types_that_go_together(self) -> Quantization:
        if self.activations == "int8" and self.weights == "uint8":
            raise ValueError('must have weights = "int8" with activations = "int8"')
        return self

    def problem_with(self, backend: str) -> str:
        """What the backend cannot do of what the section asks for; "" where there is nothing."""
        if backend != "tensorrt":
            return ""
        if "uint8" in (self.activations, self.weights):
            return "TensorRT quantises to int8 only; leave activations and weights out"
        if self.symmetric is False:
            return "TensorRT quantises symmetrically only; leave symmetric out"
        return ""

    def settings(self, backend: str) -> dict[str, Any]:
        """How the model is rewritten for a backend, as plain JSON, nothing left open.

        "outputs": whether results of convolutions are quantised too, so that the next layer reads integers;
        TensorRT decides that by itself. "biases": whether biases become integers.
        """
        signed = backend == "tensorrt"
        return {
            "activations": self.activations or ("int8" if signed else "uint8"),
            "weights": self.weights,
            "symmetric": signed if self.symmetric is None else self.symmetric,
            "per_channel": signed if self.per_channel is None else self.per_channel,
            "reduce_range": self.reduce_range,
            "outputs": not signed,
            "biases": not signed,
        }

    def method(self) -> dict[str, Any]:
        """How ranges are found, as plain JSON."""
        percentile = {"percentile": self.percentile} if self.calibration == "percentile" else {}
        return {"calibration": self.calibration, **percentile}
