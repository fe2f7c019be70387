"""A fresh store, and a way to kill a process at every file operation that it makes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from routetune.tasks.store import Store, mirror, open_store

from tests.buckets import Server, Site

# Runs `act(root)` in a fork of itself for each line it is sent, and kills that fork with SIGKILL just before
# its n-th file operation under `root`. The audit events come from the interpreter, so the code under test is
# the real code, unchanged.
_ZYGOTE = """
import os, signal, sys
from pathlib import Path
{code}

def arm(steps, root):
    left = steps
    def hook(event, args):
        nonlocal left
        if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate"):
            if str(args[0]).startswith(root):
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
    sys.addaudithook(hook)

root = sys.argv[1]
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        arm(int(line), root)
        act(Path(root))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@dataclass(frozen=True)
class Stop:
    """One try: it was killed before its file operation number `step` (from 0), or it came to its end."""

    step: int
    killed: bool


Crash = Callable[[str, Path], Iterator[Stop]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "store")


@pytest.fixture
def killed_at_every_step() -> Iterator[Crash]:
    processes: list[subprocess.Popen[str]] = []

    def crash(code: str, root: Path) -> Iterator[Stop]:
        command = [sys.executable, "-c", _ZYGOTE.format(code=code), str(root)]
        zygote = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        processes.append(zygote)
        assert zygote.stdin and zygote.stdout
        for step in range(200):
            print(step, file=zygote.stdin, flush=True)
            code_of_exit = int(zygote.stdout.readline())
            assert code_of_exit in (0, -9)
            yield Stop(step, killed=code_of_exit != 0)
            if code_of_exit == 0:
                return
        raise AssertionError("it never came to its end")

    yield crash
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def site(bucket_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name, value in bucket_server.variables.items():
        monkeypatch.setenv(name, value)
    folder = bucket_server.bucket(f"bucket-{os.urandom(4).hex()}")
    yield Site(f"s3://{folder.name}/team", folder / "team", tmp_path, monkeypatch)
    mirror._known.clear()
