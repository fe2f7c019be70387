from __future__ import annotations

import json
from typing import Any

import onnx
import pytest
from routetune.tasks import canonical
from routetune.tasks.errors import BadInput
from routetune.tasks.targets.environment import (
    KEYED_VARIABLES,
    SEMANTICS,
    UNKNOWN,
    WORKER_VARIABLES,
    Environment,
    conditions,
    keyed_variables,
    observe,
    worker_variables,
)

from tests.loaded import loaded

VERSIONS = {"onnxruntime": "1.32.0 (CPUExecutionProvider)"}


def missing() -> Any:
    raise ImportError("No module named 'pynvml'")


def forbidden() -> Any:
    raise AssertionError("NVML was asked about a CPU")


def on_gpu(**changes: str | int) -> Environment:
    """A GPU's environment, its fields as NVML gave them on an H200."""
    base = observe("onnxruntime", "cuda:0", VERSIONS, variables={}, nvml=missing)
    known = {
        "driver": "535.171.04",
        "cuda": "12.2",
        "gpu.name": "NVIDIA H200",
        "gpu.capability": "9.0",
        "gpu.memory": 143771,
        "gpu.multiprocessors": 132,
        "gpu.mig": "(not applicable)",
        "gpu.ecc": "on",
        "gpu.power_limit": 700,
        "gpu.clocks": "1980/3201",
    }
    return Environment({**base.fields, **known, **changes})


def test_a_cpu_is_described_without_nvml() -> None:
    """G49: CPU runs, whatever NVML says."""
    found = observe("onnxruntime", "cpu", VERSIONS, variables={}, nvml=forbidden)
    assert found.fields["version.onnxruntime"] == VERSIONS["onnxruntime"]
    assert found.fields["version.onnx"] == onnx.__version__
    assert (found.fields["semantics"], found.fields["device"]) == (SEMANTICS, "cpu")
    assert not any(name.startswith(("gpu.", "driver", "cuda")) for name in found.fields)
    assert Environment({**found.fields, "cpu.model": UNKNOWN}).cannot_tell == []
    assert found.key == canonical.digest(found.fields)[:16]
    assert (
        found.label
        == f"{found.fields['cpu.model']}, {found.fields['cpu.cores']} cores, onnxruntime 1.32.0".replace(
            " 1 cores", " 1 core"
        )
    )


def test_observed_twice_it_is_the_same() -> None:
    assert observe("onnxruntime", "cpu", VERSIONS) == observe("onnxruntime", "cpu", VERSIONS)
    assert json.loads(json.dumps(observe("onnxruntime", "cpu", VERSIONS).fields))


@pytest.mark.parametrize(
    "change", [{"driver": "535.161.07"}, {"gpu.power_limit": 500}, {"gpu.name": UNKNOWN}]
)
def test_every_field_of_a_gpu_moves_the_key(change: dict[str, Any]) -> None:
    """G48; G49: unknown never equals a real GPU."""
    assert on_gpu(**change).key != on_gpu().key


def test_without_nvml_a_gpu_cannot_be_told() -> None:
    found = observe("onnxruntime", "cuda:0", VERSIONS, nvml=missing)
    assert "gpu.name" in found.cannot_tell
    assert "driver" in found.cannot_tell
    assert found.key != on_gpu().key
    assert on_gpu().cannot_tell == []
    assert on_gpu().label == "NVIDIA H200, driver 535.171.04, onnxruntime 1.32.0"


def test_versions_of_the_backend_move_the_key() -> None:
    other = {"onnxruntime": "1.33.0 (CPUExecutionProvider)"}
    assert observe("onnxruntime", "cpu", other).key != observe("onnxruntime", "cpu", VERSIONS).key
    assert observe("mine", "cpu", VERSIONS).key != observe("onnxruntime", "cpu", VERSIONS).key


def test_variables_that_shape_results_are_keyed_where_they_do() -> None:
    variables = {
        "OMP_NUM_THREADS": "2",
        "ORT_DISABLE_FLASH_ATTENTION": "1",
        "NVIDIA_TF32_OVERRIDE": "0",
        "HOME": "/",
    }
    cpu = observe("onnxruntime", "cpu", VERSIONS, variables=variables).fields
    gpu = observe("onnxruntime", "cuda:0", VERSIONS, variables=variables, nvml=missing).fields
    assert cpu["variable.OMP_NUM_THREADS"] == "2"
    assert cpu["variable.ORT_DISABLE_FLASH_ATTENTION"] == "1"
    # What only a GPU reads must not make a CPU target stale.
    assert "variable.NVIDIA_TF32_OVERRIDE" not in cpu
    assert gpu["variable.NVIDIA_TF32_OVERRIDE"] == "0"
    assert not any("HOME" in name for name in cpu)


def test_a_worker_gets_the_whitelist_and_every_keyed_variable() -> None:
    assert set(KEYED_VARIABLES) <= set(WORKER_VARIABLES)
    variables = {name.replace("*", "ANY"): "1" for name in WORKER_VARIABLES}
    noise = {"SECRET_TOKEN": "1", "ORT_LOAD_CONFIG_FROM_MODEL": "1", "ORT_DISABLE_TELEMETRY": "1", "OMP": "1"}
    assert worker_variables({**variables, **noise}) == dict(sorted(variables.items()))
    keyed = keyed_variables({**variables, **noise}, on_gpu=True)
    assert keyed.items() <= variables.items()
    assert keyed
    assert not noise.keys() & keyed.keys()


@pytest.mark.parametrize("device", ["gpu", "cuda", "cuda:x", "cuda:-1", ""])
def test_devices_have_one_spelling(device: str) -> None:
    with pytest.raises(BadInput, match=r"'cpu' or 'cuda:N'"):
        observe("onnxruntime", device, VERSIONS)


def test_conditions_are_plain_json() -> None:
    found = conditions()
    assert {"host", "kernel", "load", "mhz"} <= found.keys()
    canonical.dumps(found)
    assert conditions("cuda:0", nvml=missing)["gpu"] == {}


def test_importing_it_is_quick_and_pulls_in_nothing_heavy() -> None:
    program = "import routetune.tasks.targets.environment, routetune.tasks.targets.schema"
    heavy = ("onnx", "numpy", "onnxruntime", "pynvml", "polygraphy", "prefect")
    assert loaded(program, heavy) == ([], "")
