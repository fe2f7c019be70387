"""A machine with one GPU for tests that have none: its driver moves, or cannot be read, when they say so.

    machine = Machine(tmp_path / "machine")          # driver 535.171.04
    target = machine.write_target(tmp_path / "targets" / "a.toml")
    routetune("tune", target, **machine.variables)   # any child process: served, worker, command line
    machine.set(driver="535.161.07")                 # also while those run
    machine.set(error="Driver/library version mismatch")
    machine.set(missing=True)                        # no pynvml at all

Child processes find the stand-ins of `tests/stand_in/` through PYTHONPATH: `pynvml`, and a backend whose
engines for "cuda:0" are real ones of ONNX Runtime on the CPU.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from routetune.tasks.store.files import write_atomically

from tests.quick import quick

OLD, NEW = "535.171.04", "535.161.07"
BACKEND = "stand_in_backend:CpuAsGpu"


class Machine:
    """See the module.

    Args:
        folder: a new folder; it is what PYTHONPATH names.
    """

    def __init__(self, folder: Path) -> None:
        shutil.copytree(
            Path(__file__).with_name("stand_in"), folder, ignore=shutil.ignore_patterns("__pycache__")
        )
        self.folder = folder
        self.set(driver=OLD)

    def set(self, **says: Any) -> None:
        """What NVML says from now on: driver="...", error="...", or missing=True."""
        write_atomically(self.folder / "machine.json", json.dumps(says).encode())

    @property
    def variables(self) -> dict[str, str]:
        """For the environment of child processes; conftest hides every GPU, also those of the stand-in."""
        return {"PYTHONPATH": str(self.folder), "CUDA_VISIBLE_DEVICES": "0,1"}

    @property
    def builds(self) -> list[str]:
        """One line, "model route", for each build that was started in whatever process, in order."""
        path = self.folder / "builds"
        return path.read_text().splitlines() if path.exists() else []

    def write_target(
        self,
        path: Path,
        *,
        backend: str = BACKEND,
        device: str = "cuda:0",
        routes: str = "-graph_optimization_level=[all|disabled]",
        exclusive: str = "wait",
    ) -> Path:
        """Write a target file whose name is that of the file, beside a small model of its own."""
        import onnx

        path.parent.mkdir(parents=True, exist_ok=True)
        model = path.with_suffix(".onnx")
        if not model.exists():
            onnx.save(small_model(), model)
        told = {"timing": {"exclusive": exclusive}, "engine": {"device": device}}
        path.write_text(quick(path.stem, model.name, routes, backend, **told))
        return path


def small_model() -> Any:
    """y = (x + w) @ v, some microseconds."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("w", (4, 64)), ("v", (64, 64)))
    ]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["a"]), helper.make_node("MatMul", ["a", "v"], ["y"])],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 64])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
