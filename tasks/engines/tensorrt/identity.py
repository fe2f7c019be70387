"""The identity of a TensorRT engine, from the engine inspector at DETAILED verbosity.

Two engines are the same when their layers are: what each computes, by which tactic, on which formats and
sizes. The inspector names a kernel that TensorRT's compiler made itself only by the operations in it, and a
compiler knob may change the code behind an unchanged name. An engine with such a layer has no identity: it is
measured for itself, which costs a measurement, where an alias in error would cost the result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from routetune.tasks.canonical import digest

#: Kinds of layers whose content the inspector does not show; compared in lower case.
OPAQUE_TYPES = ("kgen", "myelin", "foreignnode", "plugin")
#: Marks in a layer's name that say the same.
OPAQUE_NAMES = ("ForeignNode", "__myl_")
#: Fields that differ from build to build of one engine: names, and what is only for people.
_PERSONAL = ("Name", "Metadata", "Origin")
_TIMES = ("time", "latency", "duration")


def identity(text: str) -> str | None:
    """SHA-256, hex, of the engine's layers; None when any of them is opaque or the text tells too little.

    Args:
        text: the answer of EngineInspector.get_engine_information in JSON.
    """
    try:
        document = json.loads(text)
    except ValueError:
        return None
    layers = document.get("Layers") if isinstance(document, Mapping) else None
    if not isinstance(layers, list) or not layers:
        return None
    # Below DETAILED verbosity a layer is only its name, which says nothing of how it computes.
    if not all(isinstance(layer, Mapping) and not _opaque(layer) for layer in layers):
        return None
    numbers: dict[str, int] = {}
    # TensorRT 11 tells formats and profiles of inputs and outputs; 10 and TensorRT-RTX only their names.
    edges = document.get("I/O Tensors", document.get("Bindings"))
    kept = set(_names(edges))
    return digest({"layers": [_normal(layer, numbers, kept) for layer in layers], "edges": edges})


def _opaque(layer: Mapping[str, Any]) -> bool:
    kind, name = str(layer.get("LayerType", "")), str(layer.get("Name", ""))
    if not kind or any(kind.lower().startswith(word) for word in OPAQUE_TYPES):
        return True
    return any(mark in text for mark in OPAQUE_NAMES for text in (name, str(layer.get("TacticName", ""))))


def _normal(layer: Mapping[str, Any], numbers: dict[str, int], kept: set[str]) -> dict[str, Any]:
    """A layer without names of its own making: tensors are numbered in order of first use."""
    normal: dict[str, Any] = {}
    for field, value in layer.items():
        if field in _PERSONAL or any(word in field.lower() for word in _TIMES):
            continue
        if field in ("Inputs", "Outputs") and isinstance(value, list):
            normal[field] = [_tensor(tensor, numbers, kept) for tensor in value]
        else:
            normal[field] = value
    return normal


def _tensor(tensor: Any, numbers: dict[str, int], kept: set[str]) -> Any:
    if not isinstance(tensor, Mapping):
        return tensor
    name = str(tensor.get("Name", ""))
    told = {field: value for field, value in tensor.items() if field != "Name"}
    return told | {"tensor": name if name in kept else numbers.setdefault(name, len(numbers))}


def _names(edges: Any) -> list[str]:
    found = edges if isinstance(edges, list) else []
    return [str(one.get("Name", "")) if isinstance(one, Mapping) else str(one) for one in found]
