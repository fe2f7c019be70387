from __future__ import annotations

from pathlib import Path

from routetune.tasks import logs


def test_a_long_log_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"first\n" + b"x" * (4 * logs.KEPT_BYTES) + b"\nlast")
    logs.cut(log)
    kept = log.read_bytes()
    assert kept.startswith(b"first\n") and kept.endswith(b"\nlast")
    assert b"3145739 bytes are left out" in kept
    assert logs.KEPT_BYTES <= len(kept) < logs.KEPT_BYTES + 100


def test_a_log_within_bounds_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"y" * logs.KEPT_BYTES)
    logs.cut(log)
    assert log.read_bytes() == b"y" * logs.KEPT_BYTES
