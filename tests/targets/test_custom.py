"""The user's own metric: found, read and digested without running a line of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from routetune.tasks.errors import BadInput
from routetune.tasks.targets.binding import bound_to
from routetune.tasks.targets.changes import compare
from routetune.tasks.targets.custom import custom_metric
from routetune.tasks.targets.environment import observe
from routetune.tasks.targets.inputs import inputs_digest
from routetune.tasks.targets.model import inspect_model

MakeTarget = Callable[..., Any]
CPU = observe("onnxruntime", "cpu", {"onnxruntime": "1.32.0"}, variables={})


def digest(target: Any) -> str:
    found = custom_metric(target)
    assert found is not None
    return found.digest


def test_nothing_is_run_and_every_neighbour_counts(
    tmp_path: Path, relu: onnx.ModelProto, target: MakeTarget
) -> None:
    (tmp_path / "mine.py").write_text("import near\nraise SystemExit\ndef loss(r, c, labels): return near.x")
    (tmp_path / "near.py").write_text(
        "from parts.deep import x\nimport importlib\nimportlib.import_module('told')"
    )
    (tmp_path / "told.py").write_text("")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("")
    (tmp_path / "parts" / "deep.py").write_text("from . import other\nx = 1")
    (tmp_path / "parts" / "other.py").write_text("")
    (tmp_path / "unused.py").write_text("")
    wanted = target(relu, accuracy={"metric": "mine:loss"})
    seen = {digest(wanted)}
    parts = ("parts/__init__.py", "parts/deep.py", "parts/other.py")
    for name in ("mine.py", "near.py", "told.py", *parts):
        with (tmp_path / name).open("a") as file:
            file.write("\n# changed")
        seen.add(digest(wanted))
    assert len(seen) == 7
    (tmp_path / "unused.py").write_text("y = 2")
    assert digest(wanted) in seen


def test_a_changed_source_costs_a_recheck(tmp_path: Path, relu: onnx.ModelProto, target: MakeTarget) -> None:
    (tmp_path / "mine.py").write_text("def loss(r, c, labels): return 0.0")
    wanted = target(relu, accuracy={"metric": "mine:loss"})

    def bound() -> dict[str, Any]:
        return bound_to(wanted, inspect_model(wanted), CPU, inputs_digest(wanted))

    before = bound()
    (tmp_path / "mine.py").write_text("def loss(r, c, labels): return 1.0")
    [change] = compare(before, bound())
    assert (change.field, change.cost) == ("target.accuracy.task.source", "recheck")


@pytest.mark.parametrize(
    ("metric", "source", "told"),
    [
        ("absent:loss", "", "there is no module 'absent'"),
        ("mine:other", "def loss(): pass", "defines no 'other'"),
        ("mine:loss", "def loss(:", "cannot be read as Python"),
        ("json:loads", "", "a module of Python's own"),
        ("routetune.tasks:loss", "", "a module of Python's own"),
        ("mine.deep:loss", "def loss(): pass", "there is no module 'mine.deep'"),
    ],
)
def test_what_cannot_be_the_metric_is_refused_at_once(
    tmp_path: Path, relu: onnx.ModelProto, target: MakeTarget, metric: str, source: str, told: str
) -> None:
    (tmp_path / "mine.py").write_text(source)
    with pytest.raises(BadInput, match=told):
        custom_metric(target(relu, accuracy={"metric": metric}))


def test_a_function_of_an_installed_package(relu: onnx.ModelProto, target: MakeTarget) -> None:
    found = custom_metric(target(relu, accuracy={"metric": "hypothesis.errors:HypothesisException"}))
    assert found is not None and found.file.parts[-2:] == ("hypothesis", "errors.py")
    assert custom_metric(target(relu)) is None
