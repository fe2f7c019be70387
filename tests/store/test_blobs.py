from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from routetune.tasks.errors import BadInput
from routetune.tasks.store.blobs import Missing
from routetune.tasks.store.files import StoreWarning

DATA = b"engine" * 1000


def test_bytes_and_files_are_kept_under_their_digest(store, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(DATA)
    digest = hashlib.sha256(DATA).hexdigest()
    assert store.blobs.put_file(source) == digest
    assert source.exists()
    assert store.blobs.put_bytes(DATA) == digest
    path = store.blobs.verified(digest)
    assert path == store.root / "blobs" / digest[:2] / digest[2:4] / digest
    assert path.read_bytes() == DATA
    assert store.blobs.size(digest) == len(DATA)
    assert store.blobs.has(digest, len(DATA))
    assert not store.blobs.has(digest, len(DATA) + 1)
    assert path.stat().st_mode & 0o222 == 0


@pytest.mark.parametrize("link", [False, True])
def test_move_uses_the_source_up(store, tmp_path, link):
    source = tmp_path / "source"
    source.write_bytes(DATA)
    if link:
        (tmp_path / "link").symlink_to(source)
    given = tmp_path / "link" if link else source
    inode = source.stat().st_ino
    path = store.blobs.verified(store.blobs.put_file(given, move=True))
    assert not os.path.lexists(given)
    assert not path.is_symlink()
    assert path.read_bytes() == DATA
    assert source.exists() is link
    assert (path.stat().st_ino == inode) is not link


def test_move_from_another_file_system(store):
    source = Path(f"/dev/shm/routetune-{os.urandom(8).hex()}")
    if not source.parent.is_dir() or source.parent.stat().st_dev == store.root.stat().st_dev:
        pytest.skip("no second file system to move from")
    source.write_bytes(DATA)
    try:
        assert store.blobs.verified(store.blobs.put_file(source, move=True)).read_bytes() == DATA
        assert not source.exists()
    finally:
        source.unlink(missing_ok=True)


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: b"",
        lambda raw: raw[:-1],
        lambda raw: raw[:100] + bytes([raw[100] ^ 1]) + raw[101:],
        lambda raw: raw + b"\0",
    ],
)
@pytest.mark.parametrize("again", ["bytes", "file", "moved"])
def test_damaged_blobs_are_set_aside_and_heal_when_put_again(store, tmp_path, damage, again):
    digest = store.blobs.put_bytes(DATA)
    path = store.blobs.path(digest)
    path.chmod(0o644)
    path.write_bytes(damage(DATA))
    bad = path.read_bytes()
    source = tmp_path / "source"
    source.write_bytes(DATA)
    with pytest.warns(StoreWarning, match=digest):
        if again == "bytes":
            store.blobs.put_bytes(DATA)
        else:
            store.blobs.put_file(source, move=again == "moved")
    assert store.blobs.verified(digest).read_bytes() == DATA
    assert [kept.read_bytes() for kept in (store.root / "set-aside").iterdir()] == [bad]


@pytest.mark.parametrize("move", [False, True])
def test_what_is_said_to_be_there_is_not_read(store, tmp_path, move):
    digest = store.blobs.put_bytes(DATA)
    inode = store.blobs.path(digest).stat().st_ino
    source = tmp_path / "source"
    source.write_bytes(DATA)
    assert store.blobs.put_file(source, move=move, told=digest) == digest
    assert source.exists() is not move
    assert store.blobs.path(digest).stat().st_ino == inode


@pytest.mark.parametrize("damaged", [False, True])
def test_what_is_said_is_not_believed_of_what_is_not_there(store, tmp_path, damaged):
    """A wrong digest names no bytes, and a right one heals what was damaged."""
    source = tmp_path / "source"
    source.write_bytes(DATA)
    digest, other = hashlib.sha256(DATA).hexdigest(), hashlib.sha256(b"other").hexdigest()
    if damaged:
        store.blobs.put_bytes(DATA)
        store.blobs.path(digest).chmod(0o644)
        store.blobs.path(digest).write_bytes(DATA[:-1] + b"\0")
        with pytest.warns(StoreWarning, match="another digest"):
            assert store.blobs.put_file(source, told=digest) == digest
    assert store.blobs.put_file(source, told=other) == digest
    assert store.blobs.verified(digest).read_bytes() == DATA
    assert not store.blobs.has(other)


def test_a_damaged_blob_is_missing_once_used(store):
    digest = store.blobs.put_bytes(DATA)
    path = store.blobs.path(digest)
    path.chmod(0o644)
    path.write_bytes(DATA[:-1] + b"\0")
    with pytest.warns(StoreWarning, match="another digest"), pytest.raises(Missing, match=digest):
        store.blobs.verified(digest)
    assert not store.blobs.has(digest)
    with pytest.raises(Missing, match="not in the store"):
        store.blobs.verified(digest)
    with pytest.raises(Missing):
        store.blobs.size(digest)


@pytest.mark.parametrize(
    "name", ["", "../" * 21 + "x", "A" * 64, "0" * 63, "0" * 64 + "\n", None, 5, "é" * 64]
)
def test_only_digests_name_blobs(store, name):
    for use in (store.blobs.path, store.blobs.has, store.blobs.verified):
        with pytest.raises(BadInput, match="64 lower-case hex digits"):
            use(name)


@pytest.mark.parametrize("level", ["file", "folder"])
def test_links_out_of_the_store_are_refused_untouched(store, tmp_path, level):
    digest = store.blobs.put_bytes(DATA)
    path = store.blobs.path(digest)
    outside = tmp_path / "outside"
    if level == "file":
        path.rename(outside)
        path.symlink_to(outside)
    else:
        path.parent.rename(outside)
        path.parent.symlink_to(outside)
    # The bytes are right, yet whoever owns the place may change them after the look.
    with pytest.raises(BadInput, match="leads out of the store"):
        store.blobs.verified(digest)
    assert outside.exists()


def test_a_kill_while_keeping_never_leaves_wrong_bytes(store, tmp_path, killed_at_every_step):
    source = tmp_path / "source"
    source.write_bytes(DATA * 100)
    code = f"""
from routetune.tasks.store.blobs import Blobs
def act(root):
    blobs = Blobs(root)
    blobs.put_bytes(b"log")
    blobs.put_file(Path({str(source)!r}))
"""
    digests = [hashlib.sha256(content).hexdigest() for content in (b"log", DATA * 100)]
    for stop in killed_at_every_step(code, store.root):
        there = [digest for digest in digests if store.blobs.has(digest)]
        for digest in there:
            store.blobs.verified(digest)
        if stop.killed:
            shutil.rmtree(store.blobs.folder, ignore_errors=True)
    assert there == digests
    assert stop.step > 10


def test_processes_that_keep_the_same_bytes_at_once(store, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(os.urandom(1 << 20))
    code = (
        "import sys; from pathlib import Path; from routetune.tasks.store.blobs import Blobs\n"
        "blobs = Blobs(Path(sys.argv[1])); sys.stdin.readline()\n"
        "for _ in range(20): print(blobs.put_file(Path(sys.argv[2])))"
    )
    command = [sys.executable, "-W", "error", "-c", code, str(store.root), str(source)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(3)]
    printed = {line for process in processes for line in process.communicate("go\n")[0].split()}
    assert [process.returncode for process in processes] == [0, 0, 0]
    (digest,) = printed
    assert store.blobs.verified(digest).read_bytes() == source.read_bytes()
