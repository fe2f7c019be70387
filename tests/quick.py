"""Target files whose tunes take about a second: little is asked of the timing, the rest is what a test names.

path.write_text(quick("small", "digits_cnn.onnx", ROUTES, shapes={"x": "8x1x8x8"}, budget={"trials": 3}))
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def quick(
    name: str,
    model: str,
    routes: str | list[str],
    backend: str = "onnxruntime",
    **tables: Mapping[str, Any],
) -> str:
    """The text of a target file.

    Args:
        tables: of the file, name -> fields; they are put over those of here. A field that is a dict becomes a
            table within its table.
    """
    usual: dict[str, dict[str, Any]] = {
        "search": {"routes": routes, "algorithm": "full"},
        "timing": {"seconds": 0.05, "loads": 1, "finalists": 1, "confidence": 0.5},
        "accuracy": {"metric": "lInf", "tolerance": 1e-3},
    }
    for table, fields in tables.items():
        usual[table] = usual.get(table, {}) | dict(fields)
    lines = _lines({"schema": 1, "name": name, "model": model, "backend": backend, **usual})
    return "\n".join(lines) + "\n"


def _lines(fields: Mapping[str, Any], place: tuple[str, ...] = ()) -> Iterator[str]:
    """As TOML, whose scalars and lists are written as in JSON; what is no table comes before what is one."""
    tables = {key: value for key, value in fields.items() if isinstance(value, Mapping)}
    yield from (f"{key} = {json.dumps(value)}" for key, value in fields.items() if key not in tables)
    for key, value in tables.items():
        yield f"[{'.'.join((*place, key))}]"
        yield from _lines(value, (*place, key))
