"""Run in a process of its own: which of the names on stdin does a module not have?

python look_up.py FOLDER MODULE  < uses.json > missing.json
"""

from __future__ import annotations

import importlib
import json
import re
import sys


def missing(module: object, name: str, keyword: str) -> bool:
    found, parts = module, name.split(".")
    for part in parts:
        documented = re.search(rf"\bdef {re.escape(part)}\(", getattr(found, "__doc__", None) or "")
        # What is there to be overridden only shows in the documentation of its class.
        if not hasattr(found, part):
            return documented is None
        found = getattr(found, part)
    signature = getattr(found, "__init__", found) if isinstance(found, type) else found
    return bool(keyword) and re.search(rf"\b{re.escape(keyword)}: ", signature.__doc__ or "") is None


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    looked_at = importlib.import_module(sys.argv[2])
    asked = json.load(sys.stdin)
    print(
        json.dumps(
            {"version": looked_at.__version__, "missing": [u for u in asked if missing(looked_at, *u[:2])]}
        )
    )
