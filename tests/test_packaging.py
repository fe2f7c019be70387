"""The package lists every folder of code, and sample data travels with it."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def code_folders() -> set[str]:
    tops = ("flows", "tasks", "data")
    found = [init.parent for top in tops for init in (ROOT / top).rglob("__init__.py")]
    return {".".join(("routetune", *folder.relative_to(ROOT).parts)) for folder in found}


def test_every_folder_of_code_is_packaged() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert set(settings["packages"]) == code_folders()


def test_arrows_point_down_and_prefect_stays_in_its_rooms() -> None:
    wrong = []
    for path in [*(ROOT / "tasks").rglob("*.py"), *(ROOT / "data").rglob("*.py")]:
        deep = path.parent != ROOT / "tasks"
        for name in imported(path):
            if name.startswith("routetune.flows"):
                wrong.append(f"{path}: {name}")
            if deep and name.partition(".")[0] == "prefect":
                wrong.append(f"{path}: {name}")
            if path.is_relative_to(ROOT / "tasks/engines") and name.startswith("routetune.tasks.store"):
                wrong.append(f"{path}: {name}")
            if path.is_relative_to(ROOT / "tasks/targets") and name.startswith("routetune.tasks.engines"):
                wrong.append(f"{path}: {name}")
    assert not wrong


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names
