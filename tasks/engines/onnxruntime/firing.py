"""Which rewrites of the optimiser act on a model at all, read from the library's own log.

The log names every graph transformer that a build runs, and whether it changed anything. Rewrite rules run
unseen inside the rule-based transformers; where none of these changes anything, no rule does.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO

from routetune.tasks.engines.base import BuildError, BuildOrder, Idle
from routetune.tasks.engines.onnxruntime.passes import RULES, TRANSFORMERS
from routetune.tasks.engines.onnxruntime.session import (
    build_options,
    disabled_optimizers,
    open_session,
    provider_of,
    unpacked,
)
from routetune.tasks.errors import BadInput

LEVEL = "-graph_optimization_level"
_MODIFIED = re.compile(r"GraphTransformer (\S+) modified: ([01])")
_RULE_BASED = "RuleBasedTransformer"
_INFO = 1


def idle_knobs(order: BuildOrder, knobs: Mapping[str, Sequence[str]]) -> Idle:
    """Those of `knobs` that switch a rewrite which changes nothing on this model, with the levels at which it
    is so, as settings; none where it is so at all levels that `knobs` name.

    Every level is built once, with all rewrites on. Another one switched off may still wake a rewrite up, so
    this says where to look last and never where not to look.

    Args:
        order: the build whose route the others vary; its output is not kept.
        knobs: knob name -> the values that are to be tried.

    Raises:
        BadInput: a device or plugin that cannot be.
        BuildError: the library refuses the model.
    """
    rewrites = TRANSFORMERS.keys() | RULES.keys()
    switches = {name: name.removeprefix("-") for name in knobs if name.removeprefix("-") in rewrites}
    if not switches:
        return {}
    levels = dict.fromkeys([order.route.get(LEVEL, "all"), *knobs.get(LEVEL, ())])
    acting = {level: _acting(_log_of(order, dict(order.route) | {LEVEL: level})) for level in levels}
    idle = {
        name: [(LEVEL, level) for level in levels if rewrite not in acting[level]]
        for name, rewrite in switches.items()
    }
    return {name: [] if len(at) == len(levels) else at for name, at in idle.items() if at}


def _acting(log: str) -> set[str]:
    """The rewrites that changed something in a build; all rules, where any of those did that hold them."""
    found = {name for name, mark in _MODIFIED.findall(log) if mark == "1"}
    return found | set(RULES) if any(_RULE_BASED in name for name in found) else found


def _log_of(order: BuildOrder, route: Mapping[str, str]) -> str:
    """What the library writes while it builds a route; the engine is not kept."""
    options = unpacked(build_options(route, order.output, {}))
    options.log_severity_level = _INFO
    disabled, plugins = disabled_optimizers(route), order.settings.get("plugins", ())
    try:
        with _written() as log:
            open_session(order.model, options, provider_of(order.device), plugins=plugins, disabled=disabled)
            log.seek(0)
            return log.read().decode(errors="replace")
    except (BadInput, MemoryError):
        raise
    except Exception as error:
        raise BuildError(str(error).strip()) from error
    finally:
        order.output.unlink(missing_ok=True)


@contextmanager
def _written() -> Iterator[IO[bytes]]:
    """What is written to file descriptor 2 meanwhile: native code writes its log there."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield file
        finally:
            os.dup2(kept, 2)
            os.close(kept)
