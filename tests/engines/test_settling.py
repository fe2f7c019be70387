"""Builds that routes share, as a backend tells it: one that tells half of it, or tells it wrongly."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from routetune.tasks.engines.settling import settled, shaping
from routetune.tasks.errors import BadInput
from routetune.tasks.routes.route import Route

ROUTE = Route((("-enable_mem_pattern", "off"), ("-graph_optimization_level", "basic")))
ENGINE = {"digest": "0" * 64, "size": 1, "identity": "of the graph", "options": {"knobs": {}}}


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """The name of a backend of one's own whose class has this body."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(body: str) -> str:
        name = f"own_backend_{uuid.uuid4().hex}"  # a module is imported once in a process
        (tmp_path / f"{name}.py").write_text(f"class Own:\n    name = 'own'\n{body}")
        return f"{name}:Own"

    return write


def test_onnx_runtime_tells_what_shapes_the_file() -> None:
    assert str(shaping("onnxruntime", ROUTE)) == "-graph_optimization_level=basic"
    found = settled("onnxruntime", ENGINE, ROUTE)
    assert found["options"]["knobs"] == {"-enable_mem_pattern": "off"}
    assert found["identity"].startswith("of the graph-") and found["digest"] == ENGINE["digest"]
    assert settled("onnxruntime", ENGINE, shaping("onnxruntime", ROUTE)) == ENGINE


@pytest.mark.parametrize("method", ["shaping", "settled", "neither"])
def test_half_a_word_shares_nothing(method: str, backend: Callable[[str], str]) -> None:
    name = backend(f"    def {method}(self, *_):\n        raise AssertionError\n")
    assert shaping(name, ROUTE) == ROUTE
    assert settled(name, ENGINE, ROUTE) == ENGINE


@pytest.mark.parametrize("gives", [{"-unknown": "1"}, {"-enable_mem_pattern": "on"}])
def test_a_shape_that_is_no_part_of_the_route_is_refused(
    gives: Mapping[str, Any], backend: Callable[[str], str]
) -> None:
    name = backend(
        f"    def shaping(self, route):\n        return {dict(gives)}\n"
        "    def settled(self, engine, route):\n        return engine\n"
    )
    with pytest.raises(BadInput, match="no part of that"):
        shaping(name, ROUTE)
