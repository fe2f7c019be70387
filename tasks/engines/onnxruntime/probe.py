"""What the installed ONNX Runtime can do, asked of the library itself.

The library lists its rewrites nowhere but in its log, which native code writes to file descriptor 2. So a
short child process builds tiny models and reads its own log: `python -P -m
routetune.tasks.engines.onnxruntime.probe` prints the answer as JSON.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from routetune.tasks.errors import BadInput

_APPLIED = re.compile(r"Applying graph transformer (\S+) on step")
_MODIFIED = re.compile(r"GraphTransformer (\S+) modified: 1")
_SECONDS = 60
_VERBOSE, _INFO = 0, 1


@dataclass(frozen=True, slots=True)
class Installed:
    """The installed library.

    Attributes:
        version: its version.
        transformers: the graph transformers that a build with all defaults runs on the CPU, in its order.
        rules: the rewrite rules that were seen to act.
        entries: the config entries whose names are in the library's file; empty where that cannot be told.
        levels: the names of its graph optimisation levels.
    """

    version: str
    transformers: tuple[str, ...]
    rules: tuple[str, ...]
    entries: tuple[str, ...]
    levels: tuple[str, ...]


@cache
def installed() -> Installed:
    """Ask the library, in a child process; the answer is kept for the life of this one.

    Raises:
        BadInput: the library cannot be imported or does not answer.
    """
    try:
        done = subprocess.run(_command(), capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise BadInput(f"onnxruntime did not list its optimizers within {error.timeout} s") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise BadInput(f"onnxruntime cannot be asked for its knobs: {lines[-1]}")
    answer = json.loads(done.stdout)
    lists = {name: tuple(value) for name, value in answer.items() if isinstance(value, list)}
    return Installed(**{**answer, **lists})


def _command() -> list[str]:
    # -P: this folder must not come first on the path, where our onnxruntime.py would hide the library.
    return [sys.executable, "-P", "-m", __name__]


def ask() -> Installed:
    """The answer itself. To be called in a process of its own: it redirects file descriptor 2."""
    import onnxruntime
    from routetune.tasks.engines.onnxruntime import rules

    models = {name: model.SerializeToString() for name, model in rules.models().items()}
    transformers = _APPLIED.findall(_log(next(iter(models.values())), _VERBOSE))
    levels = onnxruntime.GraphOptimizationLevel.__members__
    return Installed(
        version=onnxruntime.__version__,
        transformers=tuple(dict.fromkeys(transformers)),
        rules=tuple(name for name, model in models.items() if _acts(name, model)),
        entries=_entries(),
        levels=tuple(name.removeprefix("ORT_").removeprefix("ENABLE_").lower() for name in levels),
    )


def _acts(rule: str, model: bytes) -> bool:
    """Whether the rule changes the model when it may, and does not when it may not."""
    return _changed(model) and not _changed(model, [rule])


def _changed(model: bytes, disabled: Iterable[str] = ()) -> bool:
    return any("RuleBasedTransformer" in name for name in _MODIFIED.findall(_log(model, _INFO, disabled)))


def _log(model: bytes, severity: int, disabled: Iterable[str] = ()) -> str:
    """Build the model and return what the library wrote to file descriptor 2 meanwhile."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = severity
    options.intra_op_num_threads = 1
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            onnxruntime.InferenceSession(
                model, options, ["CPUExecutionProvider"], disabled_optimizers=set(disabled), enable_fallback=0
            )
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        file.seek(0)
        return file.read().decode(errors="replace")


def _entries() -> tuple[str, ...]:
    """Config entries by their names in the library's file: it accepts unknown ones without a word."""
    from onnxruntime.capi import onnxruntime_pybind11_state

    names = re.compile(rb"\0((?:session|optimization|mlas)\.[a-z0-9_.]{4,100})(?=\0)")
    found = names.findall(Path(onnxruntime_pybind11_state.__file__).read_bytes())
    return tuple(sorted({name.decode() for name in found}))


def main() -> None:
    answer: dict[str, Any] = asdict(ask())
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
