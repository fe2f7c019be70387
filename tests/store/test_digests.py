"""The memo of digests: it answers only for files that nobody wrote to, and never ends a look."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from routetune.tasks.store import Store, digests
from routetune.tasks.store.digests import RACY_SECONDS, Digests
from routetune.tasks.store.files import hash_file


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A model and its sidecar, written long enough ago: tests do not wait for two seconds."""
    monkeypatch.setattr(digests, "RACY_SECONDS", -1.0)
    found = [tmp_path / "m.onnx", tmp_path / "m.data"]
    for path in found:
        path.write_bytes(b"bytes of " + path.name.encode())
    return found


def digest(store: Store, files: list[Path], **how: Any) -> tuple[str, int]:
    """What a look of its own gives, and how often it had to read."""
    memo = Digests(store.root, **how)
    found = memo("digest", files[0], lambda: (" ".join(map(hash_file, files)), files))
    memo.save()
    return str(found), memo.reads


def test_unchanged_files_are_read_once(store: Store, files: list[Path]) -> None:
    first = digest(store, files)
    assert first[1] == 1
    assert digest(store, files) == (first[0], 0)
    assert digest(store, files, rehash=True) == first
    assert digest(store, files) == (first[0], 0), "what was read anew is remembered too"


@pytest.mark.parametrize("rehash", [False, True])
def test_one_look_reads_a_file_once_for_all_who_ask(store: Store, files: list[Path], rehash: bool) -> None:
    """Also one that was written a moment ago, or that is to be read anew."""
    memo = Digests(store.root, rehash)
    files[1].write_bytes(b"again")
    digest(store, files)
    os.utime(files[0], (time.time() + 5, time.time() + 5))
    found = {memo("digest", files[0], lambda: (hash_file(files[0]), files)) for _ in range(3)}
    assert (len(found), memo.reads) == (1, 1)


def rewritten_in_place(path: Path) -> None:
    """Same size, same inode, and the mtime put back, as `rsync --times` or a careless tool does."""
    before = path.stat()
    with path.open("r+b") as file:
        file.write(b"B")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def swapped(path: Path) -> None:
    """Another file of the same size and mtime under the same name."""
    other = path.with_suffix(".new")
    other.write_bytes(b"X" * path.stat().st_size)
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)


def linked_elsewhere(path: Path) -> None:
    other = path.with_suffix(".other")
    shutil.copy2(path, other)
    other.write_bytes(b"Y" * path.stat().st_size)
    path.unlink()
    path.symlink_to(other)


def grown(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"!")


@pytest.mark.parametrize("which", [0, 1], ids=["model", "sidecar"])
@pytest.mark.parametrize("change", [rewritten_in_place, swapped, linked_elsewhere, grown])
def test_every_change_is_seen(
    store: Store, files: list[Path], which: int, change: Callable[[Path], None]
) -> None:
    before, _ = digest(store, files)
    change(files[which])
    after, reads = digest(store, files)
    assert reads == 1 and after != before
    assert after == " ".join(map(hash_file, files))


def test_what_was_written_a_moment_ago_is_not_remembered(
    store: Store, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "RACY_SECONDS", RACY_SECONDS)
    files[1].write_bytes(b"again")
    assert digest(store, files)[1] == 1
    assert digest(store, files)[1] == 1
    assert time.time() - files[1].stat().st_mtime < RACY_SECONDS


def test_a_write_while_reading_is_not_remembered(store: Store, files: list[Path]) -> None:
    memo = Digests(store.root)

    def read() -> tuple[str, list[Path]]:
        found = hash_file(files[0])
        time.sleep(0.02)
        files[0].write_bytes(b"other")
        os.utime(files[0], (time.time() + 5, time.time() + 5))
        return found, files

    memo("digest", files[0], read)
    memo.save()
    assert digest(store, files)[1] == 1


@pytest.mark.parametrize("damage", [b"", b"{", b'{"check":"0"}', None])
def test_a_bad_memo_is_an_empty_one(store: Store, files: list[Path], damage: bytes | None) -> None:
    first, _ = digest(store, files)
    path = Digests(store.root).path
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"m.data", b"m.dato") if damage is None else damage)
    assert digest(store, files) == (first, 1)
    assert digest(store, files) == (first, 0), "and it is whole again"


def test_other_code_asks_anew(store: Store, files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    digest(store, files)
    monkeypatch.setattr(digests, "_code", lambda: "an upgrade")
    assert digest(store, files)[1] == 1


def test_files_that_are_gone_are_forgotten(store: Store, files: list[Path], tmp_path: Path) -> None:
    digest(store, files)
    other = tmp_path / "other"
    other.write_bytes(b"other")
    files[1].unlink()
    digest(store, [other])
    assert str(files[0]).encode() not in Digests(store.root).path.read_bytes()


def test_looking_makes_no_store(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "no store").mkdir()
    for name in ("nowhere", "no store"):
        memo = Digests(tmp_path / name)
        memo("digest", files[0], lambda: ("x", files))
        memo.save()
    assert not (tmp_path / "nowhere").exists()
    assert not list((tmp_path / "no store").iterdir())
