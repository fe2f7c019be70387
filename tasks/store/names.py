"""Names in the store: every path is built from hex, a run id or a target name that was checked here."""

from __future__ import annotations

import re
from pathlib import Path

from routetune.tasks.errors import BadInput

_DIGEST = re.compile(r"[0-9a-f]{64}")
ENVIRONMENT = "[0-9a-f]{8,64}"
_ENVIRONMENT = re.compile(ENVIRONMENT)
RUN = "[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}"
_RUN = re.compile(RUN)
PLAIN = "[A-Za-z0-9][A-Za-z0-9._-]{0,199}"
_PLAIN = re.compile(PLAIN)


def digest(text: str) -> str:
    """`text`, when it is 64 lower-case hex digits. Raises BadInput otherwise."""
    return _matching(_DIGEST, text, "digest", "64 lower-case hex digits")


def is_digest(text: object) -> bool:
    """Whether `text` is 64 lower-case hex digits."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def environment(text: str) -> str:
    """`text`, when it is an environment key. Raises BadInput otherwise."""
    return _matching(_ENVIRONMENT, text, "environment key", "8 to 64 lower-case hex digits")


def is_environment(text: str) -> bool:
    """Whether `text` is an environment key."""
    return _ENVIRONMENT.fullmatch(text) is not None


def run(text: str) -> str:
    """`text`, when it is a run id. Raises BadInput otherwise."""
    return _matching(_RUN, text, "run id", "a time and 8 hex digits like 20261130T024500Z-1a2b3c4d")


def is_run(text: str) -> bool:
    """Whether `text` is a run id."""
    return _RUN.fullmatch(text) is not None


def target(text: str) -> str:
    """`text`, when it is the name of a target. Raises BadInput otherwise."""
    return _matching(
        _PLAIN, text, "target name", "letters, digits, '.', '_' and '-', first a letter or digit"
    )


def file(text: str) -> str:
    """`text`, when it is a bare file name. Raises BadInput otherwise."""
    return _matching(_PLAIN, text, "file name", "letters, digits, '.', '_' and '-', first a letter or digit")


def fan_out(folder: Path, name: str, suffix: str = "") -> Path:
    """Where the file of a checked digest lies: two levels of folders keep each one short."""
    return folder / f"{name[:2]}/{name[2:4]}/{name}{suffix}"


def _matching(pattern: re.Pattern[str], text: str, what: str, expected: str) -> str:
    # `text` may come from a file that somebody edited, so it need not be a string at all.
    if not isinstance(text, str) or not pattern.fullmatch(text):
        raise BadInput(f"{what} {text!r:.200} cannot name anything in the store: expected {expected}")
    return text
