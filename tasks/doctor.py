"""Is this machine fit for tuning? Each check says what it found and, where it is wrong, what to do."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from routetune.tasks.errors import RoutetuneError

#: Libraries that must be there, and those that are good to have.
NEEDED = ("onnx", "onnxruntime", "polygraphy", "prefect", "pyarrow", "numpy")
OPTIONAL = ("tensorrt", "onnxruntime-gpu", "cuda-bindings", "ray")
#: Packages that bring the same library.
STAND_INS = {"onnxruntime": ("onnxruntime-gpu",)}
FREE_GIB = 2.0


def examine(store: Path | str | None) -> dict[str, Any]:
    """Run every check; plain JSON: {"checks": [{"name", "ok", "found"}]}. Optional things are always ok."""
    checks: list[tuple[str, Callable[[], tuple[bool, str]]]] = [
        ("python", _python),
        *((name, lambda name=name: _library(name, needed=True)) for name in NEEDED),
        *((name, lambda name=name: _library(name, needed=False)) for name in OPTIONAL),
        ("GPU", _gpu),
        ("store", lambda: _store(store)),
        ("bucket", lambda: _bucket(store)),
        ("worker", _worker),
        ("knobs", _knobs),
        ("Prefect API", prefect_server),
        ("quiet machine", _load),
    ]
    return {"checks": [_run(name, check) for name, check in checks]}


def _run(name: str, check: Callable[[], tuple[bool, str]]) -> dict[str, Any]:
    try:
        ok, found = check()
    except (RoutetuneError, OSError) as error:
        ok, found = False, str(error)
    return {"name": name, "ok": ok, "found": found}


def _python() -> tuple[bool, str]:
    found = ".".join(map(str, sys.version_info[:3]))
    return sys.version_info >= (3, 11), f"{found} at {sys.executable}"


def _library(name: str, needed: bool) -> tuple[bool, str]:
    for package in (name, *STAND_INS.get(name, ())):
        with suppress(PackageNotFoundError):
            return True, version(package) if package == name else f"{version(package)}, as {package}"
    return not needed, "missing: install it" if needed else "not installed (optional)"


def _gpu() -> tuple[bool, str]:
    import pynvml

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        names = [pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(count)]
        return True, f"{', '.join(map(str, names))}; driver {pynvml.nvmlSystemGetDriverVersion()}"
    except pynvml.NVMLError as error:
        return True, f"none to be seen ({error}); targets run on the CPU"


def _store(path: Path | str | None) -> tuple[bool, str]:
    from routetune.tasks.store import open_store

    root = open_store(path, write=not _is_remote(path)).root
    if not root.is_dir():
        return False, f"{root} cannot be made"
    free = shutil.disk_usage(root).free / 2**30
    advice = "" if free >= FREE_GIB else f"; less than {FREE_GIB:g} GiB: engines may not fit, make room"
    return free >= FREE_GIB, f"{root}, {free:.1f} GiB free{advice}"


def _is_remote(path: Path | str | None) -> bool:
    from routetune.tasks.store import VARIABLE
    from routetune.tasks.store.remote import is_url

    return is_url(path or os.environ.get(VARIABLE) or "")


def _bucket(path: Path | str | None) -> tuple[bool, str]:
    from routetune.tasks.store import open_store

    mirror = open_store(path, write=False).mirror
    if mirror is None:
        return True, "none: the store is a folder"
    if not mirror.remote.keeps_first():
        return False, (
            f"{mirror.remote.url} lets a second writer overwrite a first, since it does not know "
            "If-None-Match: of two hosts that publish at once one would be lost. Use a service that does"
        )
    waiting = len(mirror.pending())
    return (
        True,
        f"{mirror.remote.url} answers, and knows conditional writes; {waiting} files wait to be shared",
    )


def _worker() -> tuple[bool, str]:
    from routetune.tasks.engines.worker import StepFailed, Worker

    with tempfile.TemporaryDirectory() as folder, Worker(Path(folder)) as worker:
        try:
            found = worker.call("routetune.tasks.engines.steps:versions", {"backend": "onnxruntime"}, 60)
        except StepFailed as failed:
            return False, f"cannot load ONNX Runtime: {failed.reason}"
    return True, ", ".join(f"{name} {value}" for name, value in found.items())


def _knobs() -> tuple[bool, str]:
    from routetune.tasks.engines.base import open_backend

    database = open_backend("onnxruntime").knobs("cpu")
    return len(database) > 0, f"{len(database)} of {database.version}"


def prefect_server(url: str | None = None) -> tuple[bool, str]:
    """Whether a server answers: that of an URL, else of the variable PREFECT_API_URL; none need be named."""
    if url is None:
        url = os.environ.get("PREFECT_API_URL", "")
    if not url:
        return _own_server()
    import httpx

    try:
        httpx.get(f"{url.rstrip('/')}/health", timeout=5).raise_for_status()
    except httpx.HTTPError as error:
        return False, f"{url} does not answer ({error}): start the server, or unset PREFECT_API_URL"
    return True, f"{url} answers"


def _own_server() -> tuple[bool, str]:
    """Whether Prefect has a folder for a server of its own, which else would be waited for in vain."""
    from routetune.tasks.store.files import make_folder

    home = Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser()
    try:
        make_folder(home)
        with tempfile.TemporaryFile(dir=home) as file:
            file.write(bytes(1 << 16))
            file.flush()
    except (OSError, RuntimeError) as error:  # the latter where there is no home at all
        return False, f"its folder {home} cannot be written to ({error}): set PREFECT_HOME to one that can"
    return True, "PREFECT_API_URL is not set: each tune starts a server of its own for as long as it runs"


def _load() -> tuple[bool, str]:
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    busy = load > 0.5 * cores
    advice = "; others are at work, so measurements take longer and tell less" if busy else ""
    return True, f"load {load:.2f} on {cores} cores{advice}"
