"""An engine is read once for its digest, and again as soon as anybody can have written to it."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from routetune.tasks.engines import proof, steps
from routetune.tasks.engines.base import Engine

from tests.engines.small_models import mlp

SIZE = 4096
OLD = 1_000_000_000_123_456_789


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The digests that were found by reading, in order; what reads is the real thing."""
    found: list[str] = []
    read = hashlib.file_digest

    def noted(file: object, name: str) -> object:
        result = read(file, name)  # type: ignore[arg-type, type-var]
        found.append(result.hexdigest())
        return result

    monkeypatch.setattr(hashlib, "file_digest", noted)
    return found


def settled(path: Path) -> Path:
    """Wait until a write to the file must show in its times."""
    time.sleep(0.05)
    return path


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_file_that_nobody_wrote_to_is_read_once(tmp_path: Path, reads: list[str]) -> None:
    path = tmp_path / "engine"
    path.write_bytes(b"a" * SIZE)
    settled(path)
    assert [proof.digest_of(path) for _ in range(3)] == [sha(b"a" * SIZE)] * 3
    assert len(reads) == 1
    (tmp_path / "other").write_bytes(b"b" * SIZE)
    assert proof.digest_of(tmp_path / "other") == sha(b"b" * SIZE)
    assert len(reads) == 2


def _in_place(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"b")


def _and_set_back(path: Path) -> None:
    before = path.stat()
    _in_place(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _replaced(path: Path) -> None:
    before, other = path.stat(), path.with_name("other")
    other.write_bytes(b"b" * SIZE)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


def _mapped(path: Path) -> None:
    import mmap

    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[SIZE - 1 : SIZE] = b"b"
        memory.flush()


def _linked(path: Path) -> None:
    """Through another name of the same file."""
    os.link(path, path.with_name("link"))
    _and_set_back(path.with_name("link"))


def _another_at_its_name(path: Path) -> None:
    path.rename(path.with_name("old"))
    path.symlink_to(path.with_name("new"))
    path.with_name("new").write_bytes(b"b" * SIZE)


WRITES = (_in_place, _and_set_back, _replaced, _mapped, _linked, _another_at_its_name)


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__.strip("_"))
def test_every_way_to_write_is_seen(write: Callable[[Path], None], tmp_path: Path, reads: list[str]) -> None:
    path = tmp_path / "engine"
    path.write_bytes(b"a" * SIZE)
    os.utime(path, ns=(OLD, OLD))
    settled(path)
    proof.digest_of(path)
    assert proof.digest_of(path) == sha(b"a" * SIZE)
    assert len(reads) == 1, "it must be remembered, or this shows nothing"
    write(path)
    assert proof.digest_of(path) == sha(path.read_bytes()) != sha(b"a" * SIZE)


def test_a_write_right_after_the_look_is_seen(tmp_path: Path) -> None:
    """Without a tick of the kernel's clock in between, where only newer kernels give other times."""
    path = tmp_path / "engine"
    path.write_bytes(b"")
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        content = os.urandom(16)
        with path.open("r+b") as file:
            file.write(content)
        assert proof.digest_of(path) == sha(content)


@pytest.mark.parametrize(
    ("age", "grain", "remembered"),
    [
        (0.005, 1, False),
        (0.02, 1, True),
        (1, 10**9, False),
        (1, 10**6, False),
        (5, 10**9, True),
        (-5, 1, False),
    ],
)
def test_a_file_written_to_just_now_is_not_remembered(age: float, grain: int, remembered: bool) -> None:
    """Two writes within a tick look the same; also where files have whole seconds, or a clock is behind.

    The machine at hand shows only a part: its kernel may tell any two writes apart.
    """
    now = 1_700_000_000_123_456_789
    stamp = (now - round(age * 10**9)) // grain * grain
    assert proof._is_settled((1, 2, SIZE, stamp, stamp), now) is remembered


def test_an_engine_written_to_between_two_loads_is_not_loaded(tmp_path: Path, reads: list[str]) -> None:
    sample = mlp()
    order = {"model": str(sample.save(tmp_path)), "route": {}, "output": str(tmp_path / "engine.onnx")}
    built = steps.build("onnxruntime", order)
    engine: Engine = steps.engine_from(order["output"], built)
    settled(engine.path)
    for _ in range(2):
        with steps.loaded("onnxruntime", engine, "cpu", {}) as runner:
            runner.infer(sample.inputs[0])
    assert len(reads) == 1
    before, raw = engine.path.stat(), bytearray(engine.path.read_bytes())
    raw[-1] ^= 1
    engine.path.write_bytes(raw)
    os.utime(engine.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with (
        pytest.raises(steps.TamperedEngine, match=f"has SHA-256 {sha(raw)}, expected {engine.digest}"),
        steps.loaded("onnxruntime", engine, "cpu", {}),
    ):
        pass
