"""Builders of small real models and targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from routetune.tasks.targets.schema import Target, parse_target

Node = onnx.NodeProto


def value(
    name: str, shape: Sequence[int | str | None] | None, dtype: int = TensorProto.FLOAT
) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def build(
    nodes: Sequence[Node],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    tables: Mapping[str, np.ndarray[Any, Any]] | None = None,
    opset: int = 17,
    domains: Mapping[str, int] | None = None,
    **rest: Any,
) -> onnx.ModelProto:
    initializers = [numpy_helper.from_array(array, name) for name, array in (tables or {}).items()]
    imports = [
        helper.make_opsetid(domain, version) for domain, version in {"": opset, **(domains or {})}.items()
    ]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=imports, **rest)
    model.ir_version = 8
    return model


def add_with_sidecar(location: str, size: int = 4096, **entries: object) -> onnx.ModelProto:
    """y = x + w, where w, `size` floats, lies in the sidecar `location`."""
    model = build([helper.make_node("Add", ["x", "w"], ["y"])], [value("x", [size])], [value("y", [size])])
    tensor = model.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[size])
    tensor.data_location = TensorProto.EXTERNAL
    for key, entry in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(entry))
    return model


@pytest.fixture
def make() -> SimpleNamespace:
    """The builders above, since test modules cannot import from here."""
    return SimpleNamespace(value=value, build=build, add_with_sidecar=add_with_sidecar)


@pytest.fixture
def relu() -> onnx.ModelProto:
    return build([helper.make_node("Relu", ["x"], ["y"])], [value("x", [2, 3])], [value("y", [2, 3])])


@pytest.fixture
def target(tmp_path: Path) -> Callable[..., Target]:
    """target(model, section={...}, ...): a target in tmp_path; a model message is written beside it."""

    def make(model: onnx.ModelProto | str, **sections: Any) -> Target:
        if isinstance(model, onnx.ModelProto):
            onnx.save(model, tmp_path / "m.onnx")
            model = "m.onnx"
        data = {"schema": 1, "name": "t", "model": model, "search": {"routes": "-a=[x|y]"}, **sections}
        return parse_target(data, tmp_path / "t.toml")

    return make
