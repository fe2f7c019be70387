"""The progress bar on a real (pseudo) terminal."""

from __future__ import annotations

import os
import pty
import sys

import pytest
from routetune.tasks.report.progress import Snapshot

DRAW = """
from routetune.tasks.report.bar import Bar
from routetune.tasks.report.progress import Snapshot
bar = Bar()
for done in range(1, 5):
    bar.update(Snapshot("searching", done, 1, 4, "-a=on", 1.25, 4.0 - done))
bar.close()
"""


def drawn() -> str:
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": "160"}
        os.execv(sys.executable, [sys.executable, "-c", DRAW])
    text = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # how a terminal says that the other side is gone
            break
        if not part:
            break
        text += part
    os.close(terminal)
    assert os.waitpid(pid, 0)[1] == 0, text
    return text.decode()


def test_the_bar_names_trials_exclusions_and_the_best() -> None:
    text = drawn()
    for words in ("searching", "4/4 trials, 1 excluded", "best 1.250x -a=on", "s left"):
        assert words in text


@pytest.mark.parametrize("planned", [None, 2**200])
def test_an_unknown_or_endless_plan_can_be_drawn(planned: int | None) -> None:
    from routetune.tasks.report.bar import Bar

    bar = Bar()
    bar.update(Snapshot("searching", 1, 0, planned))
    bar.close()
