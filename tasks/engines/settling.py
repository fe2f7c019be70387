"""Builds that routes share: what of a route shapes an engine's file, and what is only applied at load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from routetune.tasks.engines.base import open_backend
from routetune.tasks.engines.steps import engine_from
from routetune.tasks.errors import BadInput
from routetune.tasks.routes.route import Route


def shaping(backend: str, route: Route) -> Route:
    """The part of a route that its engine's file depends on; all of it where the backend cannot tell.

    Raises:
        BadInput: the backend names a setting that is none of the route's.
    """
    opened: Any = open_backend(backend)
    if not _shares(opened):
        return route
    kept = opened.shaping(route.as_dict())
    if not kept.items() <= route.as_dict().items():
        raise BadInput(f"backend {backend!r}: shaping({str(route)!r}) gave {kept}, which is no part of that")
    return Route(tuple(pair for pair in route.settings if pair[0] in kept))


def settled(backend: str, engine: Mapping[str, Any], route: Route) -> dict[str, Any]:
    """The engine of a route, as plain JSON, from that of its shaping part; the file is the same."""
    opened: Any = open_backend(backend)
    if not _shares(opened):
        return dict(engine)
    found = opened.settled(engine_from("", engine), route.as_dict())
    return dict(engine) | {"identity": found.identity, "options": dict(found.options)}


def _shares(backend: Any) -> bool:
    """Whether it has both methods: with one of them alone a route's settings would be lost."""
    return hasattr(backend, "shaping") and hasattr(backend, "settled")
