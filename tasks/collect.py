"""What may be collected from a store, and what stays for whom; the work is `store.gc`'s."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from routetune.tasks.canonical import digest
from routetune.tasks.errors import BadInput, RoutetuneError
from routetune.tasks.reading import TEXT, read_bounded
from routetune.tasks.store import Store, names, open_store, store_root
from routetune.tasks.store.gc import GRACE, LEFT_OVER, Collector
from routetune.tasks.store.inventory import Inventory, list_remote, take_inventory
from routetune.tasks.store.locks import making
from routetune.tasks.store.runs import FINISHED, RunRecord
from routetune.tasks.targets.schema import Timing

#: The user's own pins: one digest or target name a line.
PINS = "pins"
_COLUMNS = ("route", "alias_of", "engine", "loss", "speed", "low", "high")
#: Runs of one target that differ in these are of different machines, each of which has a latest run.
_PLACE = ("backend", "device", "gpu.name", "cpu.model")
_DAY = 86_400.0

Rows = Sequence[Mapping[str, Any]]


def collect(
    path: Path | str | None,
    max_size: int | None = None,
    max_age: float | None = None,
    dry_run: bool = False,
    remote: bool = False,
) -> dict[str, Any]:
    """Collect what nobody needs, and what is over a limit; the answer of `routetune gc`.

    Args:
        path: the store, as `open_store` takes it; it must be there.
        max_size: bytes that the whole store may have; engines that lost go first.
        max_age: days without use after which entries and blobs go.
        dry_run: delete nothing; the answer is what would be.
        remote: collect what the bucket has, and not this host's mirror of it.

    Raises:
        Unreachable: the bucket cannot be reached; what was deleted by then is.
        BadInput: there is no store, a line of the pins names nothing, or a newer routetune wrote to it.
        Busy: another collection is under way.
    """
    root = store_root(path)
    if not root.is_dir():
        raise BadInput(f"there is no store at {root}: name it with --store or ROUTETUNE_STORE")
    store = open_store(path, write=not dry_run)
    if remote and store.mirror is None:
        raise BadInput(f"store {store.root} is a folder: --remote is for one in a bucket")
    limits = (max_size, max_age, dry_run, remote)
    if dry_run:
        return _collected(store, *limits)
    with making(store.root, digest({"collecting": "garbage"}), "collecting garbage", timeout=0.0):
        return _collected(store, *limits)


def _collected(
    store: Store, max_size: int | None, max_age: float | None, dry_run: bool, remote: bool
) -> dict[str, Any]:
    now, live = time.time(), store.runs.live()
    # Whatever a live run relies on it has put, named or read since it began. Nobody sees the runs of other
    # hosts, but those have a copy of whatever they rely on.
    since = min([now, *(run.started_at.timestamp() for run in live)]) - (LEFT_OVER if remote else GRACE)
    store.publications.refresh()
    pins = pins_of(store)
    found = _inventory(store, remote)
    before = found.bytes
    collector = Collector(store.root, found, pins.keys(), since, dry_run)
    if not remote:
        collector.clear_leftovers(now, store.runs)
    collector.clear_useless()
    if max_age is not None:
        collector.clear_older(now - max_age * _DAY)
    if max_size is not None:
        collector.shrink(max_size)
    entries = len(found.entries) - collector.collected["entries"].files
    return {
        "store": store.mirror.remote.url if remote and store.mirror else str(store.root),
        "dry_run": dry_run,
        "before": before,
        "after": collector.total,
        "over": max(0, collector.total - max_size) if max_size is not None else 0,
        "collected": {kind: tally.to_json() for kind, tally in collector.collected.items()},
        "kept": {"entries": entries, "blobs": len(found.blobs)},
        "pinned": collector.pinned.to_json() | {"by": _counted(pins, found.blobs)},
        "in_use": collector.in_use.to_json() | {"runs": [run.id for run in live]},
    }


def _inventory(store: Store, remote: bool) -> Inventory:
    if store.mirror is None:
        return take_inventory(store.root)
    if remote:
        return list_remote(store.mirror)
    found = take_inventory(store.root)
    # What others have not got yet is nowhere else, so it counts as used now.
    pending = set(map(str, store.mirror.pending()))
    for kept in found.entries:
        if kept.file.path in pending:
            kept.file.used = time.time()
    return found


def _counted(pins: Mapping[str, str], there: Mapping[str, Any]) -> dict[str, int]:
    """Reason -> how many blobs of the store it pins."""
    reasons = sorted(why for blob, why in pins.items() if blob in there)
    return {why: len(list(group)) for why, group in groupby(reasons)}


def pins_of(store: Store) -> dict[str, str]:
    """Digest of each pinned blob -> why: "published", "control", "frontier" or "own".

    Raises:
        BadInput: a line of the pins names nothing.
    """
    runs = store.runs.list()
    pins = dict.fromkeys(_own(store, runs), "own")
    # The latest run of each place, since what was published before is beaten on none of them.
    for run in _latest(runs):
        rows = store.records.read(run.id, columns=_COLUMNS).to_pylist()
        pins |= dict.fromkeys(frontier_engines(rows, _finalists(run)), "frontier")
        pins |= dict.fromkeys(_controls(rows), "control")
    folder = store.root / "publications"
    for target in sorted(path.name for path in folder.glob("*") if path.is_dir()):
        for environment in store.publications.environments(target):
            pins |= _published(store, target, environment)
    return pins


def _finalists(run: RunRecord) -> int:
    """How many finalists its target has; what else a run may hold is not what we wrote."""
    timing = run.bound_to.get("target", {}).get("timing")
    found = timing.get("finalists") if isinstance(timing, dict) else None
    return found if type(found) is int and found > 0 else Timing().finalists


def _published(store: Store, target: str, environment: str) -> dict[str, str]:
    """The engine of a current publication and its control. A damaged one has a copy to heal from, or none."""
    try:
        current = store.publications.current(target, environment)
    except RoutetuneError:
        return {}
    if current is None:
        return {}
    run, control = current.manifest.get("run"), current.manifest.get("control")
    rows = store.records.read(run, columns=("route", "engine")).to_pylist() if run else []
    beside = [row["engine"] for row in rows if row["route"] == control and row["engine"]]
    return dict.fromkeys(beside, "control") | {current.reference.engine: "published"}


def frontier_engines(rows: Rows, within: int) -> list[str]:
    """The engines that some tolerance would make finalists: for a choice by another ε none need be built.

    Among the eligible at ε are all whose loss is at most ε, and those that may win are the fastest `within`
    of them. So a route is one of them at some ε if it is at its own loss, where fewest are beside it.

    Args:
        rows: records of one run, with at least the columns route, alias_of, engine, loss, speed.
        within: how many finalists there are.
    """
    able = [row for row in rows if _may_win(row)]
    able.sort(key=lambda row: row["loss"])
    fastest: list[float] = []  # the `within` largest speeds so far
    found = []
    for _, equals in groupby(able, key=lambda row: row["loss"]):
        group = list(equals)
        for row in group:
            heapq.heappush(fastest, row["speed"])
        while len(fastest) > within:
            heapq.heappop(fastest)
        found += [row["engine"] for row in group if row["speed"] >= fastest[0]]
    return found


def _may_win(row: Mapping[str, Any]) -> bool:
    # One that was given up, too: where the one that it was hopeless beside drops out, it may be the fastest.
    measured = row["speed"] is not None and row["alias_of"] is None
    # The default route is the control, and pinned as that; a loss that is not a number is equal to none.
    return bool(measured and row["engine"] and row["route"] and row["loss"] == row["loss"] is not None)


def _controls(rows: Rows) -> Iterator[str]:
    """The default route's engine, and that of a route that stood in for it: it has exactly its own speed."""
    for row in rows:
        if row["engine"] and (not row["route"] or (row["speed"], row["low"], row["high"]) == (1.0, 1.0, 1.0)):
            yield row["engine"]


def _latest(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The latest finished run of each target on each kind of machine."""
    latest = {}
    for run in runs:
        if run.status == FINISHED and "purpose" not in run.bound_to:
            environment = run.bound_to.get("environment", {})
            latest[run.target, *(str(environment.get(name)) for name in _PLACE)] = run
    return list(latest.values())


def _own(store: Store, runs: Sequence[RunRecord]) -> Iterator[str]:
    """What the lines of the user's pins name: a blob, or every engine that a target's runs recorded."""
    path = store.root / PINS
    try:
        lines = read_bounded(path, "pins", TEXT).decode(errors="replace").splitlines()
    except FileNotFoundError:
        lines = []
    except OSError as error:
        raise BadInput(f"pins {path} cannot be read: {error.strerror or error}") from error
    if store.mirror is not None:
        lines += (store.mirror.read(path) or b"").decode(errors="replace").splitlines()
    targets = {run.target for run in runs}
    for number, line in enumerate(lines, 1):
        name = line.partition("#")[0].strip()
        if names.is_digest(name):
            yield name
        elif name in targets:
            column = store.records.read(target=name, columns=("engine",))["engine"]
            yield from (engine for engine in column.to_pylist() if engine)
        elif name:
            raise BadInput(
                f"{path}, line {number}: {name!r} is neither a digest of 64 hex digits nor a "
                f"target with a run in this store ({', '.join(sorted(targets)) or 'it has none'})"
            )


def byte_count(text: str) -> int:
    """Bytes of a size as people write it: "20GB", "5 GiB", "1000". Raises BadInput."""
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        return int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        raise BadInput(
            f"--max-size {text!r} is no size: expected a number with a unit, such as 20GB"
        ) from None
