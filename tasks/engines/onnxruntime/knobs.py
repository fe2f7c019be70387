"""The knob database of ONNX Runtime, true for the installed version.

Session options, config entries and provider options come from our tables, the optimiser's rewrites from the
library itself: one on|off knob for each that it runs on the device and that can be switched off.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from routetune.tasks.engines.onnxruntime.passes import (
    NOT_KNOBS,
    NOT_KNOBS_ON_CUDA,
    RULES,
    TRANSFORMERS,
    described,
)
from routetune.tasks.engines.onnxruntime.probe import Installed, installed
from routetune.tasks.engines.onnxruntime.settings import SWITCH, Setting
from routetune.tasks.engines.onnxruntime.settings_cuda import settings_on
from routetune.tasks.routes.knob import Knob, KnobDatabase

_CHANGES = " May change results."


@cache
def knob_database(kind: str = "cpu") -> KnobDatabase:
    """The knobs of a kind of device: settings first, then transformers in the order they run, then rules.

    The library runs the same transformers whatever the provider (tests/gpu holds it to that), so it is asked
    on the CPU.

    Raises:
        BadInput: the library cannot be imported.
    """
    library = installed()
    transformers = [name for name in library.transformers if name not in _not_knobs(kind)]
    rewrites = [_rewrite_knob(name) for name in dict.fromkeys((*transformers, *library.rules))]
    rows = [row for row in settings_on(kind).values() if _offered(row, library)]
    return KnobDatabase(library.version, [*(_setting_knob(row, library) for row in rows), *rewrites])


def check_route(route: Mapping[str, str], kind: str = "cpu") -> None:
    """Refuse what is not in the database of a kind of device; the library would accept it and do nothing.

    Our own tables answer for what they hold, so that a build need not wait for the library to be asked.

    Raises:
        BadInput: an unknown knob, or a value that it does not allow.
    """
    rows = settings_on(kind)
    rewrites = (TRANSFORMERS.keys() | RULES.keys()) - _not_knobs(kind)
    for name, value in route.items():
        inner = name[1:] if name.startswith("-") else ""
        if inner in rows:
            _knob(rows[inner], rows[inner].values).check(value)
        elif inner not in rewrites or value not in SWITCH:
            knob_database(kind)[name].check(value)


def _not_knobs(kind: str) -> frozenset[str]:
    return NOT_KNOBS_ON_CUDA if kind == "cuda" else NOT_KNOBS


def _offered(row: Setting, library: Installed) -> bool:
    return row.place != "entry" or not library.entries or row.name in library.entries


def _setting_knob(row: Setting, library: Installed) -> Knob:
    if row.name != "graph_optimization_level":
        return _knob(row, row.values)
    has = {"disabled", *library.levels}
    return _knob(row, tuple(level for level in row.values if level in has))


def _knob(row: Setting, values: tuple[str, ...]) -> Knob:
    help_text = row.help + (_CHANGES if row.changes_results else "")
    return Knob(f"-{row.name}", values, row.default, help_text)


def _rewrite_knob(name: str) -> Knob:
    rewrite = described(name)
    return Knob(f"-{name}", SWITCH, "on", rewrite.help + (_CHANGES if rewrite.changes_results else ""))
