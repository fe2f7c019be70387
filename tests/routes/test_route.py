from __future__ import annotations

import hashlib

from routetune.tasks.routes.route import Route, spell


def test_the_default_route_is_a_route() -> None:
    default = Route()
    assert (str(default), len(default), bool(default), default.is_default) == ("", 0, True, True)
    assert default.label == "default route"
    assert default.id == hashlib.sha256(b"").hexdigest()[:16]


def test_a_route_is_its_string() -> None:
    route = Route((("-a", "on"), ("+b", "2")))
    assert str(route) == route.label == spell(route.as_dict()) == "-a=on +b=2"
    assert route.id == hashlib.sha256(b"-a=on +b=2").hexdigest()[:16]
    assert (len(route), route.is_default) == (2, False)
