"""What routetune costs around the work: a flow with a server running, beside a process per route.

Both sides run the same steps with the same arguments, recorded from the flow; the work is the time
inside the steps, and everything else is overhead. Timing is allowed 0.1 s and 1 s a trial. One of 0.1 s
takes longer: the control's idle threads must come to rest before the candidate is timed.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from routetune.data import folder

from tests.benchmarks.stage import worker_calls

RESULTS = Path(__file__).parent / "results" / "overhead.json"
COMMAND = "pytest -m benchmark tests/benchmarks/test_overhead.py"
TARGET = """
schema = 1
name = "overhead"
model = "digits_cnn.onnx"
backend = "onnxruntime"
[shapes]
x = "32x1x8x8"
[accuracy]
metric = "lInf"
tolerance = 1.0
[search]
routes = ["-graph_optimization_level=[disabled|basic|extended|all] -session.set_denormal_as_zero=[0|1]"]
algorithm = "full"
[timing]
seconds = {seconds}
width = 0.0001
finalists = 1
loads = 1
"""

#: A process per route, as peers do it: start, import, build, check, time, end. The imports are no work.
ONE_ROUTE = """
import json, sys, time
from pathlib import Path
import onnxruntime
from routetune.tasks.engines.child import answer
from routetune.tasks.engines.onnxruntime import backend, identity, runner, session
from routetune.tasks.verdicts import steps
calls = json.loads(Path(sys.argv[1]).read_text())
start = time.monotonic()
for step, arguments in calls:
    reply = answer(step, arguments)
    assert "error" not in reply, reply
print(time.monotonic() - start)
"""


@pytest.mark.benchmark
@pytest.mark.parametrize("seconds", [0.1, 1.0])
def test_overhead(seconds: float, tmp_path: Path, prefect_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = worker_calls(monkeypatch)
    trials = _flow(_target(tmp_path, seconds), tmp_path / "store")
    assert trials == 8  # a build each: those that share one would be built again in a process of their own
    last = max(index for index, call in enumerate(calls) if call["step"].endswith(":time"))
    of_trials = [call for call in calls[: last + 1] if not call["step"].endswith(":make")]
    # The wall from the first build to the last measurement; what the worker did in it was only these calls.
    wall = of_trials[-1]["ended"] - of_trials[0]["started"]
    between = [call for call in calls if of_trials[0]["started"] <= call["started"] < of_trials[-1]["ended"]]
    flow = _figures(wall, sum(call["worked"] for call in between), trials)
    monkeypatch.undo()
    loop = _process_per_route(of_trials, tmp_path)
    _write(seconds, flow, loop)
    assert flow["overhead_ms_per_trial"] < loop["overhead_ms_per_trial"] / 2


def _target(place: Path, seconds: float) -> Path:
    shutil.copy(folder() / "models/digits_cnn.onnx", place)
    path = place / "overhead.toml"
    path.write_text(TARGET.format(seconds=seconds))
    return path


def _flow(target: Path, store: Path) -> int:
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
    from routetune.flows.tune import tune

    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        trials: int = tune(str(target), str(store), force=True)["counts"]["trials"]
    return trials


def _process_per_route(calls: list[dict[str, Any]], place: Path) -> dict[str, Any]:
    """The same steps again, those of one route in a process of its own."""
    routes: dict[str, list[Any]] = {}
    for call in calls:
        arguments = call["arguments"]
        if call["step"].endswith(":build"):
            name = str(len(routes))
            copy = {**arguments, "order": {**arguments["order"], "output": str(place / f"{name}.onnx")}}
            routes[name] = [(call["step"], copy)]
    for name, call in _later_steps(calls):
        routes[name].append((call["step"], call["arguments"]))
    work, start = 0.0, time.monotonic()
    for name, steps in routes.items():
        path = place / f"{name}.json"
        path.write_text(json.dumps(steps))
        command = [sys.executable, "-c", ONE_ROUTE, str(path)]
        work += float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return _figures(time.monotonic() - start, work, len(routes))


def _later_steps(calls: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Checks and timings come in the order of the builds; the control is checked and not timed."""
    found = []
    for kind, first in ((":check", 0), (":time", 1)):
        steps = [call for call in calls if call["step"].endswith(kind)]
        found += [(str(first + index), call) for index, call in enumerate(steps)]
    return found


def _figures(wall: float, work: float, trials: int) -> dict[str, Any]:
    return {
        "trials": trials,
        "wall_s": round(wall, 3),
        "work_s": round(work, 3),
        "work_s_per_trial": round(work / trials, 3),
        "overhead_ms_per_trial": round(1000 * (wall - work) / trials, 1),
        "overhead_share": round((wall - work) / wall, 4),
    }


def _write(seconds: float, flow: dict[str, Any], loop: dict[str, Any]) -> None:
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known |= {"command": COMMAND, "python": platform.python_version(), "machine": "2 CPU cores"}
    known[f"trials of {seconds} s"] = {"flow with a server": flow, "process per route": loop}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
