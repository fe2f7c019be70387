"""A Ray cluster of one node on this host, for tests."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def ray_node(kind: str, workers: int, **room: int) -> Iterator[str]:
    """Its address, as RAY_ADDRESS takes it.

    Args:
        kind: the resource of which each worker takes one.
        workers: for how many of them the node says that it has room.
        room: of it beside that, as `ray.init` takes it.
    """
    import ray

    # Ray may outlive its last call by a moment, and still write.
    place = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
    with pytest.MonkeyPatch.context() as patch, place as folder:
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else it writes a token into the user's home
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        told = {"include_dashboard": False, "log_to_driver": False, "_temp_dir": folder}
        ray.init("local", num_cpus=workers, resources={kind: workers}, **room, **told)
        try:
            yield ray.get_runtime_context().gcs_address
        finally:
            ray.shutdown()
