"""Small engines, really built and published without a tune, for tests of what comes after one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from routetune.tasks.engines.base import BuildOrder, open_backend
from routetune.tasks.store import Store
from routetune.tasks.store.manifests import Publication
from routetune.tasks.subject import open_subject, today

TARGET = """
schema = 1
name = "plus"
model = "plus.onnx"
backend = "onnxruntime"
[shapes]
x = "4"
[search]
routes = "-enable_mem_pattern=[on|off]"
"""


def adding(number: float) -> onnx.ModelProto:
    """y = x + number, for x of any length."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "c"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
        [numpy_helper.from_array(np.array([number], np.float32), "c")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def write_target(place: Path, number: float = 1.0) -> Path:
    onnx.save(adding(number), place / "plus.onnx")
    (place / "plus.toml").write_text(TARGET)
    return place / "plus.toml"


def publish(
    store: Store,
    place: Path,
    number: float,
    route: dict[str, str] | None = None,
    key: str = "",
    **fields: Any,
) -> Publication:
    """Build `adding(number)` and publish it for the target "plus".

    Args:
        key: of the environment that it is published for, today's if none is given.
        fields: changes of that environment.
    """
    subject = open_subject(write_target(place, number))
    order = BuildOrder(place / "plus.onnx", route or {}, place / "engine.onnx")
    engine = open_backend("onnxruntime").build(order)
    environment = today("onnxruntime", "cpu")
    speed = {"ratio": 1.0, "low": 1.0, "high": 1.0, "loads": 0}
    manifest = {
        "bound_to": subject.bound_to | {"environment": environment.fields | fields},
        "backend": "onnxruntime",
        "device": "cpu",
        "route": " ".join(f"{name}={value}" for name, value in (route or {}).items()),
        "control": "",
        "options": engine.options,
        "identity": engine.identity,
        "accuracy": {"metric": "l0", "tolerance": 0.01, "loss": 0.0, "verdict": "equal", "losses": []},
        "speed": speed,
    }
    digest = store.blobs.put_file(engine.path)
    return store.publications.publish("plus", key or environment.key, digest, manifest)
