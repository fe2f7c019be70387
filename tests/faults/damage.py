"""Faults of the store: damaged, edited and missing files, a full or read-only disk, locks that lie."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from routetune.tasks.store.sealed import seal, unseal

from tests.faults.fault import Case, Fault
from tests.faults.questions import snapshot
from tests.faults.site import Site

#: Mounts the folder of the first argument over itself read-only, and becomes what the others say.
MOUNTED = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'

Damage = Callable[[list[Path]], None]


def truncated(files: list[Path]) -> None:
    for file in files:
        overwrite(file, file.read_bytes()[: file.stat().st_size // 2])


def emptied(files: list[Path]) -> None:
    for file in files:
        overwrite(file, b"")


def flipped(files: list[Path]) -> None:
    for file in files:
        raw = bytearray(file.read_bytes())
        raw[len(raw) // 2] ^= 1
        overwrite(file, bytes(raw))


def deleted(files: list[Path]) -> None:
    for file in files:
        file.unlink()


def swapped(files: list[Path]) -> None:
    """Each file gets the bytes of the next."""
    contents = [file.read_bytes() for file in files]
    for file, content in zip(files, [*contents[1:], contents[0]], strict=True):
        overwrite(file, content)


def overwrite(file: Path, content: bytes) -> None:
    file.chmod(0o600)
    file.write_bytes(content)


def kept_files(site: Site) -> list[list[Path]]:
    """The entries, and the blobs."""
    patterns = ("entries/??/??/*.json", "blobs/??/??/*")
    return [sorted(path for path in site.store.glob(pattern) if path.is_file()) for pattern in patterns]


def while_it_is_tuned(damage: Damage) -> Callable[[Case], None]:
    """Damage every other entry and every blob, under a tune that answers all from the store."""

    def inject(case: Case) -> None:
        site = case.tuned()
        with case.stopped(site, "--force", at=0.1):
            before, (entries, blobs) = snapshot(site), kept_files(site)
            damage(entries[::2])
            damage(blobs)
        case.findings.times += len(entries[::2]) + len(blobs) - 1
        # A damaged blob takes the entries that name it along.
        case.damaged = set(entries)
        case.conclude(site, before, "--force")

    return inject


def edited(name: str) -> Callable[[Case], None]:
    """Change a byte of a published file while the target is tuned again."""

    def inject(case: Case) -> None:
        site = case.tuned()
        with case.stopped(site, "--force", at=0.1):
            before = snapshot(site)
            [file] = site.store.glob(f"publications/*/*/generations/*/{name}")
            flipped([file])
        case.conclude(site, before)

    return inject


def of_the_future(case: Case) -> None:
    """Entries and a run of a schema that nobody knows yet; the run is taken away again for the conclusion."""
    site = case.tuned()
    with case.stopped(site, "--force", at=0.1):
        before = snapshot(site)
        entries, _ = kept_files(site)
        for file in entries:
            overwrite(file, seal(unseal(file.read_bytes()) | {"schema": 99}))
        case.damaged = set(entries)
        [run] = [file for file in (site.store / "runs").glob("*.json") if file.stem in runs_of(before)]
        content = run.read_bytes()
        overwrite(run, seal(unseal(content) | {"schema": 99}))
    with site.running("--force") as tune:
        refused = case.findings.ended(tune.wait())
    if refused.code != 2 or "use a newer routetune" not in refused.err:
        case.findings.wrong.append(f"a run of schema 99 was taken: {refused.code} {refused.err[-300:]}")
    overwrite(run, content)
    case.findings.times += len(entries)
    case.conclude(site, before, "--force")


def runs_of(before: object) -> set[str]:
    return {run for run, _ in before.rows}  # type: ignore[attr-defined]


def stale_locks(case: Case) -> None:
    """A killed run leaves its locks; besides, every entry gets a lock file of a process that is long dead."""
    site = case.site()
    with case.stopped(site, at=0.6) as tune:
        case.killed(site, tune)
    before = snapshot(site)
    folder = site.store / "locks"
    note = json.dumps({"pid": 1, "what": "tuning for ever", "since": "2020-01-01T00:00:00Z"})
    for entry in case.undisturbed.site.store.glob("entries/??/??/*.json"):
        (folder / f"{entry.stem}.lock").write_text(note)
        case.findings.times += 1
    case.conclude(site, before)


def removed(lock: Path) -> None:
    lock.unlink()


def replaced(lock: Path) -> None:
    """By a copy, as a restored backup or a careless editor does."""
    copy = lock.with_suffix(".copy")
    copy.write_bytes(lock.read_bytes())
    copy.replace(lock)


def stolen(steal: Callable[[Path], None]) -> Callable[[Case], None]:
    """Take every lock of a run from it, the device's too, and start a second run beside it."""

    def inject(case: Case) -> None:
        for at in (0.3, 0.7):
            site = case.site()
            site.own_devices()
            with case.stopped(site, at=at) as first:
                before = snapshot(site)
                locks = [*site.store.glob("locks/*.lock"), *site.folder.glob("routetune/*.lock")]
                assert len(locks) > 1, locks
                for lock in locks:
                    steal(lock)
                with site.running() as second:
                    first.go_on()
                    case.findings.ended(second.wait())
            case.conclude(site, before)

    return inject


@contextmanager
def small_disk(site: Site) -> Iterator[None]:
    """The store on a disk of its own of 64 MiB."""
    if os.getuid() != 0:
        pytest.skip("mounting takes root")
    site.store.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m,mode=700", "tmpfs", site.store],
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", site.store], check=True)


def disk_full(case: Case) -> None:
    for at in (0.3, 0.95):
        site = case.site()
        with small_disk(site):
            with case.stopped(site, at=at):
                before = snapshot(site)
                filler = site.store / "filler"
                fill(filler)
            filler.unlink()
            case.conclude(site, before)


def fill(filler: Path) -> None:
    """Take every byte that is left."""
    block = 1 << 20
    with filler.open("wb", buffering=0) as file:
        while block:
            try:
                file.write(b"\0" * block)
            except OSError:
                block //= 2


def read_only(case: Case) -> None:
    """Root may write wherever nothing is mounted read-only, so it is mounted so, seen by the tune alone."""
    site = case.site()
    with case.stopped(site, at=0.5) as tune:
        case.killed(site, tune)
    before = snapshot(site)
    inside = ("unshare", "--map-root-user", "--mount", "sh", "-c", MOUNTED, "sh", str(site.store))
    if (probe := subprocess.run([*inside, "true"], capture_output=True, text=True)).returncode:
        pytest.skip(f"nothing can be mounted here: {probe.stderr}")
    with site.running(inside=inside) as tune:
        refused = case.findings.ended(tune.wait())
    if refused.code != 1 or "mounted read-only" not in refused.err:
        case.findings.wrong.append(f"not refused for the read-only store: {refused.err[-300:]}")
    case.conclude(site, before)


def _each(what: str, damage: Damage, how: str, usual: bool = False) -> Fault:
    name = f"{what} entries and blobs"
    return Fault(name, f"{how} (of the entries every other), under a tune", while_it_is_tuned(damage), usual)


FAULTS = [
    _each("truncated", truncated, "each to half its length"),
    _each("zero-byte", emptied, "each"),
    _each("bit-flipped", flipped, "one bit of each", usual=True),
    _each("deleted", deleted, "each"),
    _each("swapped", swapped, "each gets the bytes of the next"),
    Fault("published engine edited", "one bit, under a tune", edited("engine.onnx"), usual=True),
    Fault("manifest edited", "one bit, under a tune", edited("manifest.json")),
    Fault("schema of the future", "every entry and a run say schema 99", of_the_future),
    Fault("stale locks", "a killed run's, and one of a dead process for every entry", stale_locks),
    Fault(
        "stolen locks", "all removed while held, and a second run started, at 30 and 70 %", stolen(removed)
    ),
    Fault("replaced locks", "the same, with another file of the name in their place", stolen(replaced)),
    Fault("disk full", "a small disk filled to the last byte at 30 and 95 % of a run's steps", disk_full),
    Fault("read-only store", "mounted read-only between a kill and the next tune", read_only),
]
