"""ε as a dial, from the tune to the page, on a backend whose losses and times are known."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from routetune.data import folder

from tests.browser import browser, opened
from tests.quick import quick

__all__ = ["browser"]

DIALLED = quick(
    "dialled",
    "digits_cnn.onnx",
    "-a=[off|on] -b=[off|on] -c=[off|on] -d=[off|on]",
    backend="planted_backend:PlantedBackend",
    shapes={"x": "32x1x8x8"},
    reference={"inputs": "digits.npz", "labels": "y"},
    accuracy={"tolerance": 7.5},
    timing={"seconds": 0.3, "width": 0.02},
)
HERE = Path(__file__).parents[1] / "report"


@pytest.mark.slow
def test_sixteen_candidates_from_infinity_to_zero(
    browser: Any, routetune: Callable[..., Any], prefect_url: str, tmp_path: Path
) -> None:
    for name in ("models/digits_cnn.onnx", "inputs/digits.npz"):
        shutil.copy(folder() / name, tmp_path)
    target, page = tmp_path / "dialled.toml", tmp_path / "dialled.html"
    target.write_text(DIALLED)

    def told(*arguments: str | Path) -> dict[str, Any]:
        process = routetune(*arguments, "--json", PREFECT_API_URL=prefect_url, PYTHONPATH=str(HERE))
        assert process.returncode == 0, process.stderr
        answer: dict[str, Any] = json.loads(process.stdout)
        return answer

    tuned = told("tune", target)
    assert tuned["counts"]["trials"] == tuned["counts"]["builds"] == 16
    found = told("frontier", target, *(f"--epsilon={epsilon}" for epsilon in ("inf", "7.5", "3.5", "0.5")))
    assert [step["eligible"] for step in found["steps"]] == list(range(16, 0, -1))
    assert [step["epsilon"] for step in found["steps"]] == pytest.approx(range(15, -1, -1), abs=1e-4)
    # By what was measured, not by what was planted: on a busy machine the two may differ.
    fastest = [(one["eligible"], one["fastest"]) for one in found["answers"]]
    assert fastest == [scan(tuned["trials"], epsilon) for epsilon in (math.inf, 7.5, 3.5, 0.5)]

    weighed = told("epsilon", target)
    assert (
        weighed["steps"][0]["lowest_top1"] < 0.9 < weighed["steps"][-1]["top1"] == weighed["labels"]["top1"]
    )

    published = told("publish", target, "--epsilon", "3.5")
    assert published["route"] in (fastest[2][1], "") and published["counts"]["builds"] == 0
    assert published["accuracy"]["loss"] <= 3.5 == published["accuracy"]["tolerance"]
    (state,) = told("status", target)["targets"]
    assert state["state"] == "reselect"
    assert [one["field"] for one in state["changes"]] == ["target.accuracy.tolerance"]

    told("report", target, "--output", page)
    with opened(browser, page) as shown:
        now = shown.locator("#at-route")
        assert now.inner_text() == (fastest[2][1] or "default route"), "it begins at the ε of the publication"
        shown.locator("#epsilon").fill("16")
        assert now.inner_text() == fastest[0][1]


def scan(trials: list[dict[str, Any]], epsilon: float) -> tuple[int, str]:
    """How many of a run's trials are within ε, and the route of the fastest that was measured to the end."""
    inside = [one for one in trials if one["loss"] <= epsilon]
    whole = [one for one in inside if not one["abandoned"]]
    return len(inside), max(whole, key=lambda one: float(one["speed"]))["route"]
