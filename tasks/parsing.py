"""Python source as a tree, one thread at a time."""

from __future__ import annotations

import ast
from threading import Lock

# Python up to 3.11.4 counts the depth of all threads' parsers together, and raises SystemError where they do
# not agree (https://github.com/python/cpython/issues/106905).
_ALONE = Lock()


def parse(text: str | bytes, file: str = "<unknown>") -> ast.Module:
    """As `ast.parse`; targets on several devices are tuned by threads of one process."""
    with _ALONE:
        return ast.parse(text, file)
