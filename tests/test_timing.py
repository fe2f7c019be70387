"""The stage that times engines: in which order it has the two sides loaded, and what its key holds."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from routetune.tasks import canonical
from routetune.tasks.bench import Bench
from routetune.tasks.routes.route import Route
from routetune.tasks.targets.schema import Timing, parse_target
from routetune.tasks.timing import _key, _make, loaded_first

KNOBS = [f"-knob{number}" for number in range(10)]


def test_over_many_routes_neither_side_is_favoured() -> None:
    """Over all routes, and over the half of them with any one value: a knob must not go along with a side."""
    routes = [
        Route(tuple((name, "on") for name, chosen in zip(KNOBS, choice, strict=True) if chosen))
        for choice in product((False, True), repeat=len(KNOBS))
    ]
    first = {route: loaded_first(route) == "candidate" for route in routes}
    groups = [routes, *([route for route in routes if dict(route.settings).get(name)] for name in KNOBS)]
    for group in groups:
        count = sum(first[route] for route in group)
        assert abs(count - len(group) / 2) < 4 * math.sqrt(len(group)) / 2, "within four standard deviations"
    assert {loaded_first(route) for route in routes} == {"candidate", "control"}


def test_a_route_has_one_order_whenever_it_is_timed() -> None:
    """Pinned: another order is another key, so all that is kept would be measured again.

    The 16th hex digits of the SHA-256 of these texts are a, 3, 2 and f.
    """
    settings = [(("-a", "on"),), (("-a", "off"),), (("-b", "2"),), (("-a", "on"), ("-b", "2"))]
    orders = [loaded_first(Route(one)) for one in settings]
    assert orders == ["candidate", "control", "candidate", "control"]


#: Another value of each setting; "objective" moves together with "streams".
OTHER = {
    "streams": 3,
    "min_gain": 0.5,
    "exclusive": "warn",
    "confidence": 0.8,
    "finalists": 2,
    "width": 0.2,
    "seconds": 0.7,
    "loads": 3,
    "cuda_graph": True,
}


def order_and_key(timing: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """What a worker is told to measure, but for paths, and the key of it."""
    raw = {"schema": 1, "name": "a", "model": "m.onnx", "backend": "tensorrt", "timing": timing}
    target = parse_target(raw | {"search": {"routes": ["-a=[on|off]"]}}, Path("a.toml"))
    bound = {"target": {"engine": target.engine.limits()}}
    subject = SimpleNamespace(
        environment=SimpleNamespace(fields={}),
        backend="tensorrt",
        device="cuda:0",
        bound_to=bound,
        target=target,
    )
    blobs = SimpleNamespace(verified=Path, path=Path)
    bench = Bench(subject, SimpleNamespace(blobs=blobs), None, None, SimpleNamespace(did=""), Path())  # type: ignore[arg-type]
    told: list[Any] = []
    monkeypatch.setattr(bench, "step", lambda function, order, measuring: told.append(order) or {})
    engines = {side: {"digest": side, "options": {}} for side in ("candidate", "control")}
    _make(bench, engines, "candidate")
    return canonical.digest(told), canonical.digest(_key(bench, engines, "candidate"))


@pytest.mark.parametrize("field", sorted(Timing.model_fields.keys() - {"objective"}))
def test_what_a_worker_measures_is_in_the_key(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that changes the order to the worker changes the key, or a measurement would be taken for
    another's; one that does not, costs no measurement."""
    plain: dict[str, Any] = {"objective": "throughput", "streams": 2}
    (order, key), (other, other_key) = (
        order_and_key(timing, monkeypatch) for timing in (plain, plain | {field: OTHER[field]})
    )
    assert (order == other) == (key == other_key)
