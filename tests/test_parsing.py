"""Parsing in several threads: Python before 3.11.5 raised SystemError."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from routetune.tasks import parsing


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads that give way at every chance, and a collector that runs finalizers all the time."""
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(50)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*thresholds)


class Cycle:
    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        sum(range(500))


def test_threads_parse_beside_one_another(restless: None) -> None:
    text = (Path(parsing.__file__).parent / "status.py").read_text()

    def work(_: int) -> None:
        for _ in range(15):
            for _ in range(20):
                Cycle()
            assert parsing.parse(text).body

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(4))) == [None] * 4
