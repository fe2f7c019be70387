"""Whether the same target gets the same winner each time it is tuned: ten reruns of the sample targets.

Each rerun measures everything afresh: builds and checks come from the store, times do not. The routes are
cut down to the knobs that matter, so that ten reruns end in minutes; all run on one thread but the default
route, which is the sample's own.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from routetune.data import folder
from routetune.tasks.store import open_store

from tests.benchmarks.stage import appending, kept, runs, write

FILE = "flips.json"
COMMAND = "pytest -m benchmark tests/benchmarks/test_flips.py"
ROUTES = {
    "digits": "-intra_op_num_threads=1 -graph_optimization_level=[basic|all] -NchwcTransformer=[on|off]",
    "encoder": "-intra_op_num_threads=1 -SkipLayerNormFusion=[on|off] -session.disable_prepacking=[0|1]",
}
TIMING = {"min_gain": 0.02, "seconds": 0.5}


@pytest.mark.benchmark
@pytest.mark.parametrize("name", ROUTES)
def test_flips(name: str, tmp_path: Path, prefect_url: str) -> None:
    target = _target(name, tmp_path)
    rows = [_rerun(target, tmp_path / "store") for _ in range(runs(10))]
    rows = kept(FILE, name, rows, fresh=not appending())
    winners = Counter(row["winner"] for row in rows)
    usual = winners.most_common(1)[0][0]
    # A flip within a tie is declared; one between routes that were told apart is not.
    ties = [set(row["tie"]) for row in rows]
    undeclared = sum(row["winner"] != usual and usual not in tie for row, tie in zip(rows, ties, strict=True))
    content = {
        "settings": {"routes": ROUTES[name], "timing": TIMING},
        "winners": dict(winners),
        "flips": len(rows) - winners[usual],
        "ties": sum(map(bool, ties)),
        "flips outside declared ties": undeclared,
        "rows": rows,
    }
    write(FILE, name, COMMAND, content)
    assert undeclared == 0, content


def _target(name: str, place: Path) -> Path:
    """The sample target with fewer routes and a shorter measurement."""
    source = folder() / "targets" / f"{name}.toml"
    data = tomllib.loads(source.read_text())
    data["model"] = str((source.parent / data["model"]).resolve())
    data["reference"]["inputs"] = str((source.parent / data["reference"]["inputs"]).resolve())
    data["search"] = {"routes": [ROUTES[name]], "algorithm": "full"}
    data["timing"] = TIMING
    path = place / f"{name}.toml"
    path.write_text("\n".join(_lines(data)))
    return path


def _lines(data: dict[str, Any]) -> list[str]:
    """TOML of a table of plain values and tables of those; JSON's strings and lists are TOML's."""
    plain = [f"{key} = {json.dumps(value)}" for key, value in data.items() if not isinstance(value, dict)]
    for key, table in data.items():
        if isinstance(table, dict):
            plain.append(f"[{key}]")
            for name, value in table.items():
                if isinstance(value, dict):
                    pairs = ", ".join(f"{inner} = {json.dumps(text)}" for inner, text in value.items())
                    plain.append(f"{name} = {{ {pairs} }}")
                else:
                    plain.append(f"{name} = {json.dumps(value)}")
    return plain


def _rerun(target: Path, store: Path) -> dict[str, Any]:
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
    from routetune.flows.tune import tune

    _forget_times(store)
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        answer = tune(str(target), str(store))
    return {
        "winner": answer["route"],
        "speed": answer["speed"],
        "tie": answer["decision"]["tie"],
        "remarks": answer["remarks"],
        "explanations": answer["decision"]["explanations"],
    }


def _forget_times(store: Path) -> None:
    """Remove every timing from the store, so that the next run measures again."""
    for path in (open_store(store).root / "entries").rglob("*.json"):
        if '"stage":"timing"' in path.read_text().replace(" ", ""):
            path.unlink()
