"""A route space of 200 binary knobs: time per operation, growth with the number of knobs, memory.

pytest -m benchmark tests/benchmarks/test_space.py
"""

from __future__ import annotations

import json
import platform
import random
import statistics
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

import pytest
from routetune.tasks.routes.knob import Knob, KnobDatabase
from routetune.tasks.routes.space import RouteSpace, open_space

RESULTS = Path(__file__).parent / "results" / "space.json"
COMMAND = "pytest -m benchmark tests/benchmarks/test_space.py"
KNOBS = 200
REPEATS = 300
RULES = ("-k0=on", "-k1=off -k2=off", "-k3=on -k17=off", "-k5=on -k18=on", "-k5=on -k18=off")


def space_of(knobs: int) -> RouteSpace:
    database = KnobDatabase("1", [Knob(f"-k{number}", ("on", "off"), "on") for number in range(knobs)])
    return open_space("-*=[*]", database, RULES)


def microseconds(operation: Callable[[], object]) -> dict[str, float]:
    samples = []
    for _ in range(REPEATS):
        start = time.perf_counter_ns()
        operation()
        samples.append((time.perf_counter_ns() - start) / 1e3)
    return {
        "median_us": round(statistics.median(samples), 1),
        "p95_us": round(statistics.quantiles(samples, n=20)[-1], 1),
    }


def operations(space: RouteSpace) -> dict[str, Callable[[], object]]:
    rng = random.Random(0)
    drawn, listed = space.draw(rng), iter(space)
    database, terms, exclude = space.database, space.terms, space.exclude
    return {
        "count": lambda: RouteSpace(terms, database, exclude).size,
        "count without excluded": lambda: RouteSpace(terms, database, exclude).count(),
        "index": lambda: space[rng.randrange(space.size)],
        "index and id": lambda: space[rng.randrange(space.size)].id,
        "allows": lambda: space.allows(space.baseline()),
        "sample": lambda: next(drawn),
        "first sample of a new space": lambda: RouteSpace(terms, database, exclude).sample(rng, 1),
        "next in order": lambda: next(listed),
    }


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def exhaust(routes: Iterable[object]) -> None:
    deque(routes, maxlen=0)


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "(unknown)"


@pytest.mark.benchmark
def test_200_binary_knobs() -> None:
    large, small = space_of(KNOBS), space_of(KNOBS // 10)
    figures = {
        name: {f"{KNOBS} knobs": at_large, f"{KNOBS // 10} knobs": microseconds(operations(small)[name])}
        for name, at_large in ((name, microseconds(work)) for name, work in operations(large).items())
    }
    consumed = {
        "walk 100 routes": peak_bytes(lambda: exhaust(islice(large, 100))),
        "walk 3000 routes": peak_bytes(lambda: exhaust(islice(large, 3000))),
        "index 3000 routes": peak_bytes(lambda: exhaust(large[i * 2**150] for i in range(3000))),
        "draw 3000 routes": peak_bytes(lambda: exhaust(islice(large.draw(random.Random(1)), 3000))),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    document = {
        "command": COMMAND,
        "python": platform.python_version(),
        "cpu": cpu_model(),
        "space": f"{KNOBS} binary knobs, {len(RULES)} exclude rules",
        "per_operation": figures,
        "peak_bytes": consumed,
    }
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    for name, figure in figures.items():
        at_large, at_small = (figure[f"{knobs} knobs"]["median_us"] for knobs in (KNOBS, KNOBS // 10))
        assert at_large < 1000, name
        # Ten times the knobs cost at most ten times as much, give or take the noise of small figures.
        assert at_large < 10 * at_small * 1.5 + 20, name
    # A list of 3000 routes of about 100 settings would take megabytes.
    assert consumed["walk 3000 routes"] < 2 * consumed["walk 100 routes"] < 200_000
    assert consumed["index 3000 routes"] < 200_000
    assert consumed["draw 3000 routes"] < 3000 * 1000  # what was drawn is remembered, as an int each
