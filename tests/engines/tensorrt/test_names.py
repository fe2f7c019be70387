"""The backend's names against TensorRT's own Python bindings, oldest and newest of those supported."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engines.tensorrt import look_up
from tests.engines.tensorrt.names import PACKAGE, Use, used_names, uses_in
from tests.engines.tensorrt.wheels import BINDINGS, stub_libraries, unpacked

LookUp = Callable[[list[Use]], dict[str, Any]]


@pytest.fixture(params=BINDINGS)
def look(request: pytest.FixtureRequest, tmp_path: Path) -> LookUp:
    """Asks the bindings of one version, in a process of their own."""
    folder = unpacked("tensorrt_cu13_bindings", request.param)
    variables = os.environ | {"LD_LIBRARY_PATH": str(stub_libraries(tmp_path))}

    def ask(uses: list[Use]) -> dict[str, Any]:
        command = [sys.executable, look_up.__file__, folder, "tensorrt_bindings"]
        process = subprocess.run(
            command, input=json.dumps(uses), env=variables, text=True, capture_output=True, timeout=60
        )
        assert process.returncode == 0, process.stderr
        answer: dict[str, Any] = json.loads(process.stdout)
        assert answer["version"] == request.param
        return answer

    return ask


@pytest.mark.tensorrt_names
def test_every_name_exists(look: LookUp) -> None:
    assert look(used_names())["missing"] == []


@pytest.mark.tensorrt_names
def test_a_name_that_does_not_exist_is_found_out(look: LookUp) -> None:
    source = (
        "config.build_routes\n"
        "trt.BuilderFlag.FP16\n"
        "config.set_timing_cache(cache, skip_mismatch=True)\n"
        "class A(trt.IOutputAllocator):\n"
        "    def reallocate(self): pass\n"
        "self._context.execute_async_v4\n"
    )
    uses = sorted({*uses_in(source, "made up")})
    wrong = {(name, keyword) for name, keyword, _ in look(uses)["missing"]}
    assert wrong == {
        ("IBuilderConfig.build_routes", ""),
        ("BuilderFlag.FP16", ""),
        ("IBuilderConfig.set_timing_cache", "skip_mismatch"),
        ("IOutputAllocator.reallocate", ""),
        ("IExecutionContext.execute_async_v4", ""),
    }


def test_the_walk_sees_what_matters() -> None:
    names = {use.name for use in used_names()}
    assert len(names) > 80
    assert {
        "IBuilderConfig.build_route",
        "IBuilderConfig.all_build_routes",
        "IBuilderConfig.max_num_tactics",
        "BuilderFlag.TF32",
        "TilingOptimizationLevel.MODERATE",
        "IExecutionContext.execute_async_v3",
        "IOutputAllocator.reallocate_output_async",
        "IProgressMonitor.step_complete",
        "ITimingCache.combine",
        "ParserError.node_operator",
        "HardwareCompatibilityLevel.AMPERE_PLUS",
    } <= names
    keywords = {(use.name, use.keyword) for use in used_names() if use.keyword}
    assert ("IBuilderConfig.set_timing_cache", "ignore_mismatch") in keywords


def test_the_lines_that_only_tensorrt_itself_can_reach_are_few_and_listed() -> None:
    text = (PACKAGE.parents[2] / "docs" / "tensorrt.md").read_text()
    rows = [line.split("|")[1:3] for line in text.partition("| in `tasks/")[2].splitlines()[2:]]
    told = {cells[0].strip(): int(cells[1]) for cells in rows}
    assert sum(told.values()) < 150
    whole, lines = next(iter(told.items()))
    names = set(re.findall(r"`(\w+)`", whole))
    statements: set[int] = set()
    for node in ast.walk(ast.parse((PACKAGE / "runner.py").read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in names:
            names.remove(node.name)
            statements |= {one.lineno for one in ast.walk(node) if _runs(one, node)}
    assert not names
    assert len(statements) == lines


def _runs(node: ast.AST, outer: ast.AST) -> bool:
    """Whether a node is a statement that does something when it is reached."""
    if node is outer or not isinstance(node, ast.stmt):
        return False
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return not is_text and not isinstance(node, ast.FunctionDef | ast.ClassDef)
