"""What every input must get: acceptance, or a refusal in a sentence, in bounded time."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from routetune.tasks.errors import RoutetuneError

#: Seconds after which an input counts as one that hangs; each takes milliseconds.
HANGS = 60
#: Characters of the longest sentence that is still of use to a person.
LONGEST = 20_000

_SHORT = 40
#: Examples of a long run.
LONG = int(os.environ.get("ROUTETUNE_FUZZ_EXAMPLES", "400"))
#: A short run by default, always of the same examples; a long one, of new ones each time, with `-m slow`.
runs = pytest.mark.parametrize("examples", [_SHORT, pytest.param(LONG, marks=pytest.mark.slow)])


def fuzzing(examples: int) -> Any:
    return settings(
        max_examples=examples,
        derandomize=examples in (_SHORT, 5 * _SHORT),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def refusal(act: Callable[[], object]) -> str | None:
    """The sentence with which an input is refused, None where it is taken; any other error is raised."""
    with _alarm():
        try:
            act()
        except RoutetuneError as error:
            sentence = str(error)
            assert sentence and len(sentence) <= LONGEST, len(sentence)
            assert "Traceback" not in sentence
            return sentence
    return None


def tree(folder: Path) -> set[Path]:
    """Everything below a folder, to see that nothing was added to it."""
    return set(folder.rglob("*"))


@contextmanager
def _alarm() -> Iterator[None]:
    def ring(_: int, __: FrameType | None) -> None:
        raise AssertionError(f"it was still at work after {HANGS} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(HANGS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
