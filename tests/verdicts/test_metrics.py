"""Metrics that judge input sets as a whole: the drop in task accuracy, and functions of the user's own."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from routetune.tasks.verdicts.metrics import MetricError, accuracy_drop, task_loss

Y = {"y": np.array([[1.0, 2.0], [4.0, 3.0]], np.float32)}


@pytest.fixture
def own(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Write a module and give the order for its function `loss`; each test's module has its own name."""

    def write(
        body: str, name: str = f"metric_{abs(hash(tmp_path)) % 10**9}_", **files: str
    ) -> dict[str, Any]:
        name += str(len(list(tmp_path.iterdir())))
        path = tmp_path / f"{name}.py"
        path.write_text("import numpy as np\n" + body)
        for other, text in files.items():
            (tmp_path / f"{other}.py").write_text(text)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        file = {"file": str(path.resolve()), "file_digest": digest}
        return {"metric": f"{name}:loss", "folder": str(tmp_path), **file}

    return write


def test_a_function_gets_dicts_and_labels_and_its_neighbours(own: Callable[..., Any]) -> None:
    body = "from scale_of_mine import S\ndef loss(r, c, l): return S * abs(r['y'] - c['y']).max() + l[0]"
    task = own(body, scale_of_mine="S = 2")
    labels = np.array([3.0])
    candidate = {"y": Y["y"] + 1}
    assert task_loss(task, "user", Y, candidate, labels) == {"loss": 5.0}
    assert task["folder"] not in sys.path


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return float('nan')", "found nan"),
        ("return -np.inf", "found -inf"),
        ("return True", "found True of type bool"),
        ("return np.bool_(False)", "of type bool"),
        ("return None", "found None of type NoneType"),
        ("return '0.1'", "found '0.1' of type str"),
        ("return np.zeros(1)", "of type ndarray"),
        ("return 1j", "of type complex"),
        ("return 10**400", "losses can be ordered by"),
        ("raise SystemExit(3)", "raised SystemExit: 3"),
        ("raise KeyError('z')", "raised KeyError: 'z'"),
        ("return r['z']", "raised KeyError: 'z'"),
        ("return labels.mean()", "has no labels, so it was given None"),
        ("r['y'][:] = 0\n    return 0.0", "read-only"),
        ("c['y'] += 1\n    return 0.0", "read-only"),
    ],
)
def test_whatever_is_no_number_is_a_named_error(own: Callable[..., Any], body: str, told: str) -> None:
    task = own(f"def loss(r, c, labels):\n    {body}")
    before = Y["y"].tobytes()
    with pytest.raises(MetricError) as raised:
        task_loss(task, "user", Y, dict(Y), None)
    assert told in str(raised.value) and "input set 'user'" in str(raised.value)
    assert task["metric"] in str(raised.value)
    assert Y["y"].tobytes() == before


@pytest.mark.parametrize("value", ["0", "0.5", "np.float32(0.5)", "np.int64(3)", "float('inf')", "-1.0"])
def test_numbers_of_every_kind_are_losses(own: Callable[..., Any], value: str) -> None:
    found = task_loss(own(f"def loss(r, c, labels): return {value}"), "user", Y, Y, None)["loss"]
    assert found == ("inf" if "inf" in value else float(eval(value)))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("def los(r, c, labels): pass", "cannot be imported"),
        ("loss = 3", "not a function"),
        ("1/0", "ZeroDivision"),
        ("raise SystemExit(3)", "cannot be imported: SystemExit: 3"),
    ],
)
def test_imports_that_fail_are_named(own: Callable[..., Any], body: str, told: str) -> None:
    with pytest.raises(MetricError, match=told):
        task_loss(own(body), "user", Y, Y, None)


def test_a_source_that_changed_since_it_was_read_is_not_run(own: Callable[..., Any]) -> None:
    task = own("def loss(r, c, labels): return 0.0")
    Path(task["file"]).write_text("def loss(r, c, labels): return 1.0")
    with pytest.raises(MetricError, match="was changed"):
        task_loss(task, "user", Y, Y, None)


def drop(reference: Any, candidate: Any, labels: Any, k: int = 1) -> dict[str, Any]:
    sides = (np.asarray(side, np.float32) for side in (reference, candidate))
    return accuracy_drop(*sides, None if labels is None else np.asarray(labels), k, "here")


def test_the_drop_is_the_difference_of_two_accuracies() -> None:
    reference, candidate = np.eye(4), np.eye(4)[[0, 1, 2, 0]]
    found = drop(reference, candidate, [0, 1, 2, 3])
    assert found == {"loss": 0.25, "reference": 1.0, "candidate": 0.75, "rows": 4, "labels": True}
    assert drop(reference, candidate, np.eye(4))["loss"] == 0.25
    assert drop(reference, candidate, [[0], [1], [2], [3]])["loss"] == 0.25
    assert drop(candidate, reference, [0, 1, 2, 3])["loss"] == -0.25
    assert drop(reference, candidate, [0, -1, -1, -100]) == found | {"loss": 0.0, "candidate": 1.0, "rows": 1}
    assert drop(reference, candidate, None) == found | {"labels": False}
    assert drop(reference, candidate, [0, 1, 2, 3], k=4)["loss"] == 0


def test_a_candidate_of_equal_scores_names_one_class_and_nan_none() -> None:
    assert drop(np.eye(4), np.zeros((4, 4)), [0, 1, 2, 3])["candidate"] == 0.25
    assert drop(np.eye(2), [[math.nan, 0.0], [math.nan, 1.0]], [0, 1])["candidate"] == 0.5


@pytest.mark.parametrize(
    ("scores", "labels", "told"),
    [
        (np.zeros((3, 1)), [0, 0, 0], "two or more classes"),
        (0.0, 0, "two or more classes"),
        (np.zeros((3, 2)), [0, 1], r"labels of shape \[2\] do not fit scores of shape \[3, 2\]"),
        (np.zeros((3, 2)), [0, 1, 2], "label 2 is not one of 2 classes"),
        (np.zeros((3, 2)), [-1, -1, -1], "no row has a label"),
        (np.zeros((3, 2)), [0.5, 1, 0], "class numbers"),
        (np.zeros((3, 2)), ["a", "b", "c"], "class numbers"),
        (np.zeros((3, 2)), [0, np.inf, 1], "class numbers .*found inf among float64"),
        (np.zeros((3, 2)), np.array([0, 2**63, 1], np.uint64), "class numbers, found uint64"),
        (np.zeros((2, 2)), [["1", "0"], ["0", "1"]], "one-hot rows, found <U1"),
        (np.zeros((2, 2)), [[1, 0], [np.nan, np.nan]], "one-hot rows, found nan among float64"),
        (np.zeros((3, 2)), [[1, 0], [0, 1], [0, 0]], "one largest value in each row, .* row 2 has several"),
    ],
)
def test_labels_that_do_not_fit_are_named(scores: Any, labels: Any, told: str) -> None:
    with pytest.raises(MetricError, match=told):
        drop(scores, scores, labels)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), st.integers(2, 6), st.integers(0, 2**32), st.integers(1, 3))
def test_without_labels_the_drop_bounds_what_any_labels_would_show(
    rows: int, classes: int, seed: int, k: int
) -> None:
    rng = np.random.default_rng(seed)
    reference, other = rng.standard_normal((2, rows, classes))
    candidate = np.where(rng.random((rows, 1)) < 0.5, reference, other)
    labels = rng.integers(0, classes, rows)
    assert drop(reference, candidate, None)["loss"] >= drop(reference, candidate, labels)["loss"]
    r, c = (
        np.argsort(-side.astype(np.float32), axis=1, kind="stable")[:, :k] for side in (reference, candidate)
    )
    wanted = (r == labels[:, None]).any(1).mean() - (c == labels[:, None]).any(1).mean()
    assert drop(reference, candidate, labels, k)["loss"] == pytest.approx(wanted)
