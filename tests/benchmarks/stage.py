"""What the timing benchmarks share: engines of a model of known cost, and one whole selection on them.

The engines are ONNX Runtime's, of one MatMul chain with a controllable amount of work, on one thread: a
thread pool would measure the neighbours of the machine, not the method. Screening and duel are the worker's
own steps with the settings of a short run, called in this process; alias detection is above them and so off.
"""

from __future__ import annotations

import gc
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import onnx
import pytest
from routetune.tasks.arrays import save_arrays
from routetune.tasks.engines import steps as engine_steps
from routetune.tasks.engines.onnxruntime.rules import graph, node
from routetune.tasks.engines.worker import Worker
from routetune.tasks.routes.route import Route
from routetune.tasks.select import SPARE
from routetune.tasks.timing import loaded_first
from routetune.tasks.trial import Trial
from routetune.tasks.verdicts import steps
from routetune.tasks.verdicts.duel import enough, log_ratios, quietest
from routetune.tasks.verdicts.rounds import estimate_from
from routetune.tasks.verdicts.selection import Decision, DuelResult, decide, finalists, loads_needed

RESULTS = Path(__file__).parent / "results"
CONFIDENCE = 0.95
CONTROL = "(control)"
FIXED = {"threads": 1, "confidence": CONFIDENCE, "finalists": 5, "spare_loads": SPARE}


@dataclass
class Outcome:
    """One whole selection: what was decided, from which samples, at which price."""

    decision: Decision
    screened: dict[str, dict[str, Any]]
    loads: list[dict[str, Any]]
    finalists: list[str]
    seconds: float
    calls: int = field(init=False)

    def __post_init__(self) -> None:
        rounds = [one for timing in self.screened.values() for one in timing["rounds"]]
        self.calls = sum(len(one["candidate_ns"]) + len(one["control_ns"]) for one in rounds)
        self.calls += sum(len(ns) for load in self.loads for ns in load["samples"].values())


@dataclass(frozen=True)
class Work:
    """A model whose time is proportional to its layers, matrix products of `width`, and inputs for it."""

    folder: Path
    width: int
    device: str = "cpu"

    def engine(self, name: str, layers: int) -> dict[str, Any]:
        """An engine in a file of its own, with the place of that file."""
        rng = np.random.default_rng(0)
        weight = (rng.standard_normal((self.width,) * 2) / math.sqrt(self.width)).astype(np.float32)
        nodes = [node(f"MatMul h{i} w -> h{i + 1}") for i in range(layers)]
        nodes = [node("Relu x -> h0"), *nodes, node(f"Relu h{layers} -> y")]
        shape = (self.width, self.width)
        path, output = self.folder / f"{name}.model.onnx", self.folder / f"{name}.onnx"
        onnx.save(graph(nodes, {"w": weight}, x=shape, y=shape), path)
        route = {"-intra_op_num_threads": "1"} if self.device == "cpu" else {}
        order = {"model": str(path), "route": route, "output": str(output), "device": self.device}
        return {**engine_steps.build("onnxruntime", order), "path": str(output), "device": self.device}

    def inputs(self) -> str:
        path = self.folder / "inputs"
        x = np.random.default_rng(1).standard_normal((self.width, self.width)).astype(np.float32)
        save_arrays(path, {"x": x})
        return str(path)

    def layers_for(self, seconds: float) -> int:
        """How many layers take about so long on this machine."""
        engine = self.engine("probe", 100)
        found = screen(engine, engine, self.inputs(), {"seconds": 0.2})
        best = min(ns for one in found["rounds"] for ns in one["control_ns"])
        return max(10, round(100 * seconds * 1e9 / best))


def screen(
    candidate: dict[str, Any],
    control: dict[str, Any],
    arrays: str,
    rounds: dict[str, Any],
    first: str = "candidate",
) -> dict[str, Any]:
    """The worker's step `time`, as strict JSON would bring it back."""
    found: dict[str, Any] = steps.time(
        "onnxruntime",
        candidate,
        candidate["path"],
        control,
        control["path"],
        control["device"],
        {},
        arrays,
        rounds,
        first,
    )
    return found


def select(
    engines: dict[str, dict[str, Any]],
    control: dict[str, Any],
    arrays: str,
    rounds: dict[str, Any],
    duelling: dict[str, Any],
    min_gain: float,
    every: bool = False,
) -> Outcome:
    """Screen every engine beside the control, let the finalists duel, and decide: as the stages do it.

    With `every` all engines are finalists, whatever the screening says.
    """
    start = time.perf_counter()
    screened = {
        name: screen(engine, control, arrays, rounds, loaded_first(_route(name)))
        for name, engine in engines.items()
    }
    trials = [_trial(name, timing) for name, timing in screened.items()]
    final = [str(one.route) for one in finalists(trials, FIXED["finalists"], at_least=1 + min_gain)]
    final = list(engines) if every else final
    loads = _duel({name: engines[name] for name in final}, control, arrays, duelling) if final else []
    duels = [DuelResult(name, 1, log_ratios(loads, name, CONTROL)) for name in final]
    decision = decide(duels, min_gain, CONFIDENCE)
    gc.collect()
    return Outcome(decision, screened, loads, final, time.perf_counter() - start)


def _route(name: str) -> Route:
    knob, value = name.split("=")
    return Route(((knob, value),))


def _trial(name: str, timing: dict[str, Any]) -> Trial:
    found = estimate_from(timing, CONFIDENCE)
    return Trial(
        _route(name),
        accepted=True,
        speed=found.ratio,
        low=found.low,
        high=found.high,
        timing=timing,
        abandoned=timing["abandoned"],
    )


def _duel(
    final: dict[str, dict[str, Any]], control: dict[str, Any], arrays: str, duelling: dict[str, Any]
) -> list[dict[str, Any]]:
    wanted = loads_needed(len(final), CONFIDENCE, SPARE)
    entered = {name: (engine, engine["path"]) for name, engine in (final | {CONTROL: control}).items()}
    loads: list[dict[str, Any]] = []
    device = control["device"]
    while not enough(loads, wanted, repeats=wanted // 3):
        loads.append(steps.duel("onnxruntime", entered, device, {}, arrays, len(loads), duelling))
    return quietest(loads, wanted)


def peers(outcome: Outcome, calls: int = 10) -> dict[str, str]:
    """What the rules of peers would have published from the samples of the same screening.

    "ten calls": the smallest mean of the first ten calls of each. "fixed time": the smallest mean of all
    calls of the screening, about as long for each. The default's are the control's beside the first one.
    """
    sides = {name: _calls(timing, "candidate_ns") for name, timing in outcome.screened.items()}
    sides = {"": _calls(next(iter(outcome.screened.values())), "control_ns")} | sides
    return {
        "smallest mean of ten calls": min(sides, key=lambda name: mean(sides[name][:calls])),
        "smallest mean over a fixed time": min(sides, key=lambda name: mean(sides[name])),
    }


def _calls(timing: dict[str, Any], side: str) -> list[int]:
    return [ns for one in timing["rounds"] for ns in one[side]]


@contextmanager
def load_on_one_core(active: bool) -> Iterator[None]:
    """A real process that computes without end on the first of our cores, where `active`."""
    if not active:
        yield
        return
    core = min(os.sched_getaffinity(0))
    burn = f"import os\nos.sched_setaffinity(0, [{core}])\nwhile True: sum(range(10000))"
    with subprocess.Popen([sys.executable, "-c", burn]) as process:
        try:
            yield
        finally:
            process.kill()


def worker_calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Note every call of the worker from now on, with its answer and the time inside the step."""
    calls: list[dict[str, Any]] = []
    call = Worker.call

    def noted(self: Worker, step: str, arguments: dict[str, Any], *rest: Any) -> Any:
        started, before = time.monotonic(), self.worked
        result = call(self, step, arguments, *rest)
        end = {"ended": time.monotonic(), "worked": self.worked - before, "result": result}
        calls.append({"step": step, "arguments": arguments, "started": started} | end)
        return result

    monkeypatch.setattr(Worker, "call", noted)
    return calls


def share(hits: int, runs: int) -> dict[str, Any]:
    """A share with its exact interval at 95 % (Clopper and Pearson)."""
    from scipy.stats import beta

    low = 0.0 if hits == 0 else float(beta.ppf(0.025, hits, runs - hits + 1))
    high = 1.0 if hits == runs else float(beta.ppf(0.975, hits + 1, runs - hits))
    return {
        "of": runs,
        "found": hits,
        "share": round(hits / runs, 4),
        "interval": [round(low, 4), round(high, 4)],
    }


def kept(file: str, name: str, rows: list[dict[str, Any]], fresh: bool) -> list[dict[str, Any]]:
    """The rows of earlier parts and these, so that a benchmark can be run in parts (see `part`)."""
    path = RESULTS / file
    known = json.loads(path.read_text()) if path.exists() and not fresh else {}
    return [*known.get(name, {}).get("rows", []), *rows]


def write(file: str, name: str, command: str, content: dict[str, Any]) -> None:
    """Put one case's figures into a results file, with how and where they were made."""
    import onnxruntime

    path = RESULTS / file
    known = json.loads(path.read_text()) if path.exists() else {}
    machine = {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "python": platform.python_version(),
        "onnxruntime": onnxruntime.__version__,
    }
    known |= {"command": command, "fixed": FIXED}
    known[name] = content | {
        "machine": machine,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_average": round(os.getloadavg()[0], 2),
    }
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def runs(default: int) -> int:
    """How many runs this part makes: ROUTETUNE_BENCHMARK_RUNS, else the whole benchmark."""
    return int(os.environ.get("ROUTETUNE_BENCHMARK_RUNS", default))


def appending() -> bool:
    """Whether this part adds to the results of earlier ones: ROUTETUNE_BENCHMARK_APPEND=1."""
    return os.environ.get("ROUTETUNE_BENCHMARK_APPEND") == "1"
