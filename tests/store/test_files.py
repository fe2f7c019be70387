from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from routetune.tasks.errors import BadInput
from routetune.tasks.store import files


def test_a_kill_at_any_moment_leaves_the_old_file_or_the_new_one(tmp_path, killed_at_every_step):
    path = tmp_path / "a" / "b" / "file"
    files.write_atomically(path, b"old" * 100_000)
    code = """
from routetune.tasks.store.files import write_atomically
def act(root):
    write_atomically(root / "a" / "b" / "file", lambda file: [file.write(b"new") for _ in range(100_000)])
"""
    seen = []
    for stop in killed_at_every_step(code, tmp_path):
        seen.append(path.read_bytes())
        assert seen[-1] in [content * 100_000 for content in ((b"old", b"new") if stop.killed else (b"new",))]
    assert len(seen) > 3
    assert seen[0] != seen[-1]
    left = [found for found in path.parent.iterdir() if found != path]
    assert left, "a killed writer leaves its unfinished file, or this test kills nothing"
    assert files.sweep(tmp_path, older_than=3600) == 0
    files.sweep(tmp_path, older_than=-1)
    assert list(path.parent.iterdir()) == [path]


def test_a_writer_that_raises_leaves_nothing(tmp_path):
    def writer(file):
        file.write(b"half")
        raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError, match="disk on fire"):
        files.write_atomically(tmp_path / "file", writer)
    assert list(tmp_path.iterdir()) == []


def test_permissions_follow_the_umask(tmp_path):
    earlier = os.umask(0o027)
    try:
        files.write_atomically(tmp_path / "a", b"")
        files.write_atomically(tmp_path / "b", b"", 0o444)
    finally:
        os.umask(earlier)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o440


def test_set_aside_keeps_the_file_and_warns(tmp_path):
    path = tmp_path / "entries" / "file"
    files.write_atomically(path, b"bad")
    with pytest.warns(files.StoreWarning, match=r"entries/file: it smells; kept as"):
        files.set_aside(tmp_path, path, "it smells")
    assert not path.exists()
    assert [kept.read_bytes() for kept in (tmp_path / "set-aside").iterdir()] == [b"bad"]
    with pytest.warns(files.StoreWarning, match="already gone"):
        files.set_aside(tmp_path, path, "it smells")


def test_set_aside_never_moves_what_is_somebody_elses(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_bytes(b"precious")
    root = tmp_path / "store"
    root.mkdir()
    (root / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.warns(files.StoreWarning, match="could not be moved"):
        files.set_aside(root, root / "link" / "file", "it smells")
    assert (tmp_path / "elsewhere" / "file").read_bytes() == b"precious"


def test_links_inside_the_store_are_fine_and_links_out_of_it_are_refused(tmp_path):
    root, outside = tmp_path / "store", tmp_path / "outside"
    (root / "in").mkdir(parents=True)
    outside.mkdir()
    (root / "good").symlink_to(root / "in")
    (root / "bad").symlink_to(outside)
    files.refuse_way_out(root, root / "good" / "file")
    with pytest.raises(BadInput, match=r"bad/file leads out of the store .* to .*outside/file"):
        files.refuse_way_out(root, root / "bad" / "file")
    # The store itself may be reached through a link.
    (tmp_path / "alias").symlink_to(root)
    files.refuse_way_out(tmp_path / "alias", tmp_path / "alias" / "in" / "file")


def test_copy_hashed_tells_the_digest_of_what_it_wrote(tmp_path):
    source = tmp_path / "source"
    source.write_bytes(os.urandom(3 * (1 << 20) + 17))
    found = files.copy_hashed(source, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    assert found == files.hash_file(source) == files.hash_file(tmp_path / "copy")
    with pytest.raises(FileExistsError):
        files.copy_hashed(source, tmp_path / "copy")


def test_sweep_deletes_only_what_is_old_and_unfinished(tmp_path):
    keep, old = tmp_path / "deep" / "file", files.unfinished(tmp_path / "deep")
    files.write_atomically(keep, b"keep")
    old.mkdir()
    (old / "engine").write_bytes(b"x" * 1000)
    young = files.unfinished(tmp_path)
    young.write_bytes(b"young")
    os.utime(old, (0, 0))
    assert files.sweep(tmp_path, older_than=3600) == 1000
    assert not old.exists()
    assert young.exists()
    assert keep.exists()


def test_a_new_file_is_never_written_through_a_link(tmp_path):
    (tmp_path / "target").write_bytes(b"precious")
    (tmp_path / "file").symlink_to(tmp_path / "target")
    files.write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "target").read_bytes() == b"precious"
    assert not (tmp_path / "file").is_symlink()
    Path(tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        files.open_new(tmp_path / "dangling")
