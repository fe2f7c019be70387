"""The knobs @place=[off|on] of one model, and what a route says of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from routetune.tasks.routes.knob import Knob, KnobDatabase
from routetune.tasks.routes.route import Route
from routetune.tasks.targets import fusions
from routetune.tasks.targets.places import DYNAMIC, FUSED, HALF, OPERATORS

if TYPE_CHECKING:
    from routetune.tasks.targets.model import ModelInfo

_VALUES = ("off", "on")
_DYNAMIC_HELP = (
    "Multiply matrices by constant ones in 8 bits, with scales found while running, wherever no other place "
    "is on. May change results."
)
_HALF_HELP = "Compute in 16-bit floats wherever no other place is on. May change results."
_FUSED_HELP = (
    "Compute attention, and what is around it, by operators of ONNX Runtime's own that each do many at once. "
    "May change results."
)


@dataclass(frozen=True, slots=True)
class Placement:
    """What a route asks of the model's rewriting.

    Attributes:
        nodes: those that get Q/DQ, in the order of the graph.
        dynamic, half: whether the rest is quantised dynamically, or computes in 16-bit floats.
        fused: whether attention is fused in what is not quantised.
    """

    nodes: tuple[str, ...]
    dynamic: bool
    half: bool
    fused: bool

    def as_order(self) -> dict[str, Any]:
        return {
            "nodes": list(self.nodes),
            "dynamic": self.dynamic,
            "half": self.half,
            "fused": self.fused,
        }


def place_knobs(model: ModelInfo, backend: str, device: str) -> KnobDatabase:
    """The places that a model offers to a backend on a device.

    Integers scaled while running are for CPUs only, and operators of ONNX Runtime's own for no other backend.
    """
    knobs = [Knob(one.name, _VALUES, "off", f"{one.help} May change results.") for one in model.places]
    if device == "cpu" and model.operators.keys() & {"MatMul", "Gemm"}:
        knobs.append(Knob(DYNAMIC, _VALUES, "off", _DYNAMIC_HELP))
    knobs.append(Knob(HALF, _VALUES, "off", _HALF_HELP))
    fuses = fusions.has_attention(model, backend)
    lacks = fuses and not fusions.version()
    if fuses and not lacks:
        knobs.append(Knob(FUSED, _VALUES, "off", _FUSED_HELP))
    note = _note(model, [knob.name for knob in knobs])
    if lacks:
        note += f"; {FUSED} is not: {fusions.ADVICE}"
    return KnobDatabase("", knobs, notes={"@": note})


def split(route: Route, model: ModelInfo) -> tuple[Route, Placement | None]:
    """What the backend is told, and what the model is rewritten by; None where it stays as written."""
    ours = {name: value for name, value in route.settings if name.startswith("@")}
    if not ours:
        return route, None
    rest = Route(tuple(setting for setting in route.settings if setting[0] not in ours))
    return rest, _placement(ours, model)


def _placement(ours: Mapping[str, str], model: ModelInfo) -> Placement:
    nodes = [node for place in model.places if ours.get(place.name) == "on" for node in place.nodes]
    return Placement(tuple(nodes), *(ours.get(name) == "on" for name in (DYNAMIC, HALF, FUSED)))


def _note(model: ModelInfo, names: list[str]) -> str:
    some = ", ".join(names[:12]) + (f", ... ({len(names)} in all)" if len(names) > 12 else "")
    if model.places:
        return f"the places of model {model.path.name} are {some}"
    lacking = f"has no node that Q/DQ could be put around ({', '.join(OPERATORS)})"
    return f"model {model.path.name} {lacking}; there is {some}"
