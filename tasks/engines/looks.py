"""What the worker finds out about a model before its routes are built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from routetune.tasks.engines.base import BuildOrder, Idle, open_backend


def idle(backend: str, order: Mapping[str, Any], knobs: Mapping[str, list[str]]) -> Idle:
    """The knobs that do nothing on the model, as far as the backend can tell; see `Backend`.

    Args:
        order: the fields of BuildOrder, paths as text.
        knobs: knob name -> the values that are to be tried.
    """
    tell: Callable[..., Idle] | None = getattr(open_backend(backend), "idle", None)
    paths = {"model": Path(order["model"]), "output": Path(order["output"])}
    return {} if tell is None else tell(BuildOrder(**{**order, **paths}), knobs)
