from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from routetune.tasks.errors import BadInput
from routetune.tasks.store import locks

DIGEST = "ab" * 32

# Takes the lock that its arguments name, says so, and keeps it until its input ends.
HOLDER = """
import sys
from pathlib import Path
from routetune.tasks.store import locks
where, name = sys.argv[1:]
on_device = where == "device"
with locks.device_lock(name, what="timing") if on_device else locks.making(Path(where), name, "building"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def runtime(tmp_path, monkeypatch):
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    return tmp_path / "runtime"


@pytest.fixture
def held():
    """Start a process that holds a lock."""
    started = []

    def start(where, name):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(where), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        started.append(process)
        assert process.stdout.readline() == b"held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_killed_holder_frees_the_lock_at_once(tmp_path, held):
    """G51."""
    process = held(tmp_path, DIGEST)
    with (
        pytest.raises(locks.Busy, match=rf"process {process.pid} \(building, since 20.*Z\) holds"),
        locks.making(tmp_path, DIGEST, timeout=0.05),
    ):
        pass
    process.send_signal(signal.SIGKILL)
    start = time.monotonic()
    with locks.making(tmp_path, DIGEST, timeout=10):
        assert time.monotonic() - start < 2
    assert list((tmp_path / "locks").iterdir()) == []


def test_a_waiter_without_a_limit_gets_the_lock_of_a_killed_holder(tmp_path, held):
    process = held(tmp_path, DIGEST)
    got = threading.Event()

    def wait():
        with locks.making(tmp_path, DIGEST):
            got.set()

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    assert not got.wait(0.2)
    process.kill()
    assert got.wait(10)
    waiter.join(10)


def test_other_keys_are_other_locks(tmp_path, held):
    held(tmp_path, DIGEST)
    with locks.making(tmp_path, "cd" * 32, timeout=0):
        pass
    with locks.making(tmp_path / "other", DIGEST, timeout=0):
        pass
    with pytest.raises(BadInput, match="64 lower-case hex"), locks.making(tmp_path, "../../x"):
        pass


def test_a_fork_that_shares_the_descriptor_does_not_keep_the_lock(tmp_path):
    got = threading.Event()

    def wait():
        with locks.making(tmp_path, DIGEST):
            got.set()

    waiter = threading.Thread(target=wait, daemon=True)
    with locks.making(tmp_path, DIGEST):
        forked = os.fork()
        if forked == 0:
            time.sleep(60)
            os._exit(0)
        waiter.start()
        assert not got.wait(0.2)
    try:
        assert got.wait(10)
    finally:
        os.kill(forked, signal.SIGKILL)
        os.waitpid(forked, 0)


def test_a_started_child_does_not_keep_the_lock_of_a_killed_parent(tmp_path):
    code = HOLDER.replace(
        "print(",
        "import subprocess\n    null = subprocess.DEVNULL\n"
        "    child = subprocess.Popen(['sleep', '60'], close_fds=False, stdin=null, stdout=null)\n"
        "    print(child.pid, ",
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), DIGEST], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    child = int(process.stdout.readline().split()[0])
    try:
        process.kill()
        process.communicate()
        os.kill(child, 0)  # still alive
        with locks.making(tmp_path, DIGEST, timeout=5):
            pass
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def test_only_one_process_is_inside_although_the_lock_file_comes_and_goes(tmp_path):
    counter = tmp_path / "counter"
    counter.write_text("0")
    code = (
        "import sys; from pathlib import Path; from routetune.tasks.store import locks\n"
        "root = Path(sys.argv[1]); counter = root / 'counter'\n"
        "for number in range(150):\n"
        f"    with locks.making(root, {DIGEST!r}, timeout=None if number % 2 else 60):\n"
        "        counter.write_text(str(int(counter.read_text()) + 1))\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0] * 4
    assert counter.read_text() == "600"


def test_a_device_is_one_for_all_stores_and_the_busy_error_names_the_holder(held, runtime):
    process = held("device", "GPU-5d0a")
    with (
        pytest.raises(
            locks.BusyDevice, match=rf"device GPU-5d0a is in use: process {process.pid} \(timing on GPU"
        ),
        locks.device_lock("GPU-5d0a", wait=False),
    ):
        pass
    start = time.monotonic()
    with pytest.raises(locks.BusyDevice), locks.device_lock("GPU-5d0a", timeout=0.3):
        pass
    assert 0.3 <= time.monotonic() - start < 5
    with locks.device_lock("cpu", wait=False):
        pass
    process.kill()
    with locks.device_lock("GPU-5d0a", timeout=10):
        assert len(list((runtime / "routetune").iterdir())) == 1


@pytest.mark.parametrize("stolen", ["removed", "replaced"])
def test_who_is_stolen_a_lock_does_not_take_it_from_the_next(tmp_path, held, stolen):
    path = tmp_path / "locks" / f"{DIGEST}.lock"
    first = locks.acquire(path, "building")
    if stolen == "removed":
        path.unlink()
    else:
        (tmp_path / "other").touch()
        (tmp_path / "other").rename(path)
    second = held(tmp_path, DIGEST)
    first.release()
    with pytest.raises(locks.Busy, match=f"process {second.pid} "), locks.making(tmp_path, DIGEST, timeout=0):
        pass
    second.communicate()
    with locks.making(tmp_path, DIGEST, timeout=5):
        pass
    assert list(path.parent.iterdir()) == []


def test_a_lock_is_freed_by_an_exception(tmp_path):
    with pytest.raises(RuntimeError), locks.making(tmp_path, DIGEST):
        raise RuntimeError
    with pytest.raises(RuntimeError), locks.device_lock("cpu"):
        raise RuntimeError
    with locks.making(tmp_path, DIGEST, timeout=0), locks.device_lock("cpu", wait=False):
        pass


def test_a_stale_note_says_nothing(tmp_path):
    path = tmp_path / "locks" / f"{DIGEST}.lock"
    path.parent.mkdir()
    path.write_text('{"pid": 1, "what": "building", "since": "long ago"}')
    with locks.making(tmp_path, DIGEST, timeout=0):
        assert str(os.getpid()) in path.read_text()


def test_runtime_folder_is_private_and_found_without_the_variable(tmp_path, runtime, monkeypatch):
    assert locks.runtime_folder() == runtime / "routetune"
    assert (runtime / "routetune").stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    usual = locks.runtime_folder()
    assert usual.stat().st_mode & 0o777 == 0o700
    assert usual.stat().st_uid == os.getuid()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    assert locks.runtime_folder() == usual
    # A link that another user planted in the temporary folder is not followed.
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    (tmp_path / f"routetune-{os.getuid()}").symlink_to(tmp_path / "runtime")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "gone"))
    if not Path(f"/run/user/{os.getuid()}").is_dir():
        with pytest.raises(BadInput, match="set XDG_RUNTIME_DIR"):
            locks.runtime_folder()
