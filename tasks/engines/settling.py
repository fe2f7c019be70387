"""Builds that routes share: what of a route shapes an engine's file, and what is only applied at load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from routetune.tasks.engines.base import open_backend
from routetune.tasks.engines.steps import engine_from
from routetune.tasks.routes.route import Route


def shaping(backend: str, route: Route) -> Route:
    """The part of a route that its engine's file depends on; all of it where the backend cannot tell."""
    tell = getattr(open_backend(backend), "shaping", None)
    if tell is None:
        return route
    kept = tell(route.as_dict())
    return Route(tuple((name, value) for name, value in route.settings if name in kept))


def settled(backend: str, engine: Mapping[str, Any], route: Route) -> dict[str, Any]:
    """The engine of a route, as plain JSON, from that of its shaping part; the file is the same."""
    settle = getattr(open_backend(backend), "settled", None)
    if settle is None:
        return dict(engine)
    found = settle(engine_from("", engine), route.as_dict())
    return dict(engine) | {"identity": found.identity, "options": dict(found.options)}
