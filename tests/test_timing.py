"""The stage that times engines: in which order it has the two sides loaded."""

from __future__ import annotations

import math
from itertools import product

from routetune.tasks.routes.route import Route
from routetune.tasks.timing import loaded_first

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
