"""Likeness orders experience: the nearer in model, shapes, device and version, the more it counts."""

from __future__ import annotations

from typing import Any

import onnx
from routetune.data import folder
from routetune.tasks.targets.likeness import likeness, traits_of
from routetune.tasks.targets.model import inspect_model
from routetune.tasks.targets.schema import load_target

CPU = {
    "backend": "onnxruntime",
    "device": "cpu",
    "cpu.model": "A",
    "cpu.architecture": "x86_64",
    "cpu.cores": 4,
    "version.onnxruntime": "1.32.0",
}
GPU = {
    "backend": "tensorrt",
    "device": "cuda",
    "gpu.name": "H200",
    "gpu.capability": "9.0",
    "version.tensorrt": "11.1",
}
CONV = {"operators": {"Conv": 10, "Relu": 10}, "inputs": {"x": "float32"}, "outputs": ["float32 2"]}
WIDER = CONV | {"operators": {"Conv": 12, "Relu": 10, "Add": 2}}
TEXT = {"operators": {"MatMul": 30}, "inputs": {"ids": "int64"}, "outputs": ["float32 3"]}


def bound(model: str = "m", batch: int = 8, environment: dict[str, Any] = CPU) -> dict[str, Any]:
    profile = {"x": {"min": [1, 3], "opt": [batch, 3], "max": [batch, 3]}}
    return {"target": {"model": model, "profiles": {"0": profile}}, "environment": environment}


def total(theirs: dict[str, Any], model: Any = CONV, other: Any = CONV, mine: Any = None) -> float:
    return likeness(mine or bound(), theirs, model, other).total


def test_the_same_is_1_and_every_difference_makes_it_less() -> None:
    assert total(bound()) == 1
    nearer = [
        total(bound("n", 8), other=WIDER),
        total(bound("n", 16), other=WIDER),
        total(bound("n", 16, CPU | {"cpu.model": "B"}), other=WIDER),
        total(bound("n", 16, CPU | {"cpu.model": "B", "version.onnxruntime": "1.22.0"}), other=WIDER),
    ]
    assert 1 > nearer[0] > nearer[1] > nearer[2] > nearer[3] > 0.1


def test_other_operators_and_types_are_hardly_alike() -> None:
    assert total(bound("n"), other=TEXT) < 0.1 < total(bound("n"), other=None) < 1


def test_another_backend_or_kind_of_device_has_nothing_to_say() -> None:
    assert total(bound(environment=GPU)) == 0
    assert total(bound(environment={"cpu": "x"})) == 0
    other_gpu = GPU | {"gpu.name": "H100"}
    on_gpu = bound(environment=GPU)
    assert total(on_gpu, mine=on_gpu) > total(bound(environment=other_gpu), mine=on_gpu) > 0.5


def test_the_signature_of_a_model_says_what_it_is_made_of() -> None:
    model = inspect_model(load_target(folder() / "targets/digits.toml"))
    kept = traits_of(model)
    nodes = onnx.load(folder() / "models/digits_cnn.onnx").graph.node
    assert kept["operators"]["Conv"] == sum(node.op_type == "Conv" for node in nodes)
    assert kept["inputs"] == {"x": "float32"} and kept["outputs"] == ["float32 2"]
    assert likeness(bound("n"), bound("n"), kept, kept).total == 1
