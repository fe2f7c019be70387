"""What a Python program has loaded when it is done."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable


def loaded(program: str, modules: Iterable[str], *arguments: str) -> tuple[list[str], str]:
    """Which of some modules a program, which may exit, has loaded in a process of its own; and its stdout."""
    told = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print(sorted({set(modules)!r} & set(sys.modules)), file=sys.stderr))\n"
    )
    command = [sys.executable, "-c", told + program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "Traceback" not in done.stderr and "Usage" not in done.stderr, done.stderr
    found: list[str] = ast.literal_eval(done.stderr.splitlines()[-1])
    return found, done.stdout
