"""Sample models, their inputs and target files; README.md beside this file describes them."""

from __future__ import annotations

from pathlib import Path


def folder() -> Path:
    """The folder that holds `models/`, `inputs/` and `targets/`, also in an installed package."""
    return Path(__file__).resolve().parent
