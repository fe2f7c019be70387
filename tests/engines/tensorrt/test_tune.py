"""TensorRT itself, tuned by the command line; `pytest -m tensorrt` where TensorRT 11.1 and a GPU are."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from routetune.tasks.engines.base import BuildError, open_backend
from routetune.tasks.engines.tensorrt.build import _set_route
from routetune.tasks.engines.tensorrt.knobs import new_builder

from conftest import Command, answer_of
from tests.engines.small_models import mlp
from tests.engines.tensorrt.here import why_not

pytestmark = [pytest.mark.tensorrt, pytest.mark.skipif(bool(why_not()), reason=why_not())]

TARGET = """
schema = 1
name = "mlp"
model = "mlp.onnx"
backend = "auto"
[shapes]
x = {{ min = "1x16", opt = "4x16", max = "8x16" }}
[accuracy]
metric = "lInf"
tolerance = 0.01
[search]
routes = {routes}
algorithm = "fast"
[timing]
seconds = 0.2
loads = 6
cuda_graph = {graph}
"""


@pytest.mark.parametrize("graph", ["false", "true"])
def test_a_small_tune(routetune: Command, tmp_path: Path, graph: str) -> None:
    mlp().save(tmp_path)
    database = open_backend("tensorrt").knobs("cuda:0")
    compiler = [knob for knob in database.values() if knob.bounded and knob.name[0] == "-"][:3]
    assert compiler, "this TensorRT has no compiler knobs"
    routes = [f"{knob.name}={knob.allowed}" for knob in compiler] + ["+tf32=[on|off]"]
    target = tmp_path / "mlp.toml"
    target.write_text(TARGET.format(routes=json.dumps(routes), graph=graph))
    answer = answer_of(routetune("tune", target, "--json"))
    assert answer["state"] == "tuned"
    assert answer["counts"]["trials"] >= 4
    shown = answer_of(routetune("show", target, "--json"))
    [command] = [line for line in shown["reproduce"] if line.startswith("trtexec ")]
    assert any(word.startswith("--onnx=") for word in shlex.split(command))
    assert answer_of(routetune("verify", target, "--json"))["problems"] == []
    assert answer_of(routetune("tune", target, "--json"))["state"] == "fresh"


def test_a_refused_route_fails() -> None:
    config = new_builder().create_builder_config()
    with pytest.raises(BuildError, match="refused the route"):
        _set_route(config, "-no_such_knob=on")
