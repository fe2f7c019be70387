"""A run with losses and speeds that are known, written through the store's own interfaces.

No engine stands behind it: what is tested on it is made of records, for which only their content counts.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from routetune.data import folder
from routetune.tasks.routes.route import Route
from routetune.tasks.store import Store
from routetune.tasks.store.records import row
from routetune.tasks.store.runs import FINISHED
from routetune.tasks.subject import Subject, open_subject
from routetune.tasks.trial import Failure, Outcome, Trial
from routetune.tasks.verdicts.accuracy import compare_outputs

TARGET = """
schema = 1
name = "planted"
model = "digits_cnn.onnx"
backend = "onnxruntime"
[shapes]
x = "32x1x8x8"
[reference]
inputs = "digits.npz"
labels = "y"
[accuracy]
metric = "lInf"
tolerance = 0.25
[search]
routes = "-enable_mem_pattern=[on|off]"
"""


def write_target(place: Path) -> Path:
    """The target file, with the sample's model and inputs beside it."""
    for name in ("models/digits_cnn.onnx", "inputs/digits.npz"):
        shutil.copy(folder() / name, place)
    path = place / "planted.toml"
    path.write_text(TARGET)
    return path


def trial(knobs: dict[str, str], loss: float, speed: float, right: float = 1.0, **more: Any) -> Trial:
    """A trial that was timed, its largest absolute difference `loss` and its top-1 accuracy `right`."""
    reference = np.zeros(4, np.float32)
    outputs = compare_outputs({"y": reference}, {"y": reference + np.float32(loss)})
    top1 = {"loss": 1 - right, "reference": 1.0, "candidate": right, "rows": 32, "labels": True}
    report: dict[str, Any] = {"set": "digits", "outputs": outputs, "top1": top1}
    if not knobs:
        report["repeat"] = compare_outputs({"y": reference}, {"y": reference})
    told = {
        "engine": {"digest": "0" * 64, "size": 1, "identity": str(sorted(knobs.items()))},
        "losses": [report],
        "loss": loss,
        "accepted": loss <= 0.25,
        "verdict": f"lInf loss {loss}",
        "speed": speed,
        "low": speed * 0.99,
        "high": speed * 1.01,
        "seconds": {"build": 0.25, "timing": 0.5},
    }
    return Trial(Route(tuple(knobs.items())), **(told | more))


def crashed(knobs: dict[str, str], reason: str) -> Trial:
    failure = Failure(Outcome.CRASHED, reason, "build")
    return Trial(Route(tuple(knobs.items())), failure=failure, seconds={"build": 0.1})


def sixteen() -> list[Trial]:
    """Every placement of four, as the thought experiment has it: the fastest is not the one with all on."""
    losses, gains = (0.03125, 0.0625, 0.125, 0.25), (-0.25, 1.0, 0.5, 0.25)
    found = []
    for bits in range(16):
        on = [at for at in range(4) if bits >> at & 1]
        loss, gain = sum(losses[at] for at in on), sum(gains[at] for at in on)
        found.append(trial({f"@p{at}": "on" for at in on}, loss, 1.0 + gain, 1 - loss))
    return found


def record(
    path: Path, store: Store, trials: Iterable[Trial], explanation: dict[str, Any] | None = None
) -> tuple[Subject, str]:
    """Write the trials as a run of the target that ended; the subject, and the run's id."""
    subject = open_subject(path)
    with store.runs.open(subject.target.name, subject.bound_to) as run:
        store.records.append([row(run.id, subject.target.name, subject.key, one) for one in trials])
        if explanation is not None:
            run.finish(FINISHED, {"explanation": explanation})
    return subject, run.id
