"""The recorder of landscapes, on a real model."""

from __future__ import annotations

from pathlib import Path

import pytest
from routetune.data import folder
from routetune.tasks.routes.route import Route
from routetune.tasks.targets.schema import load_target

from tests.benchmarks.search import landscape, record

TARGETS = Path(record.__file__).parent / "targets"
TARGET = """
schema = 1
name = "{name}"
model = "{folder}/models/digits_cnn.onnx"
backend = "onnxruntime"
[shapes]
x = "4x1x8x8"
[accuracy]
metric = "lInf"
tolerance = 0
[search]
routes = ["-graph_optimization_level=[disabled|all] -intra_op_num_threads=1 -NchwcTransformer=[on|off]"]
algorithm = "{algorithm}"
[timing]
seconds = 0.02
"""


def written(place: Path, name: str, algorithm: str) -> Path:
    path = place / f"{name}.toml"
    path.write_text(TARGET.format(name=name, folder=folder(), algorithm=algorithm))
    return path


@pytest.mark.slow
def test_every_route_is_recorded_and_one_that_fails_leaves_the_others_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    targets = [written(tmp_path, "bad", "fast"), written(tmp_path, "good", "full")]
    arguments = [str(tmp_path / "out"), *map(str, targets)]
    assert record.main(arguments) == 1
    assert 'must be "full"' in capsys.readouterr().err
    path = tmp_path / "out" / "good.parquet"
    found = landscape.read(path)
    assert len(found.trials) == found.space.size + 1  # the default route is not one of them, and is there
    assert not found.default_is_eligible and found.trials[Route()].speed == 1.0
    assert found.best > 0 and found.about["source"] == "recorded"
    before = path.stat().st_mtime_ns
    record.main(arguments)
    assert path.stat().st_mtime_ns == before


def test_targets_hold_as_many_routes_as_they_say() -> None:
    """Their own first line names the count; the knobs of a GPU are not here, so lists are multiplied."""
    files = sorted(TARGETS.glob("*.toml"))
    assert len([file for file in files if file.stem.startswith("cpu_")]) >= 6
    assert len([file for file in files if file.stem.startswith("gpu_")]) >= 5
    for file in files:
        target, size = load_target(file), 1
        for expression in target.search.routes:
            size *= expression.count("|") + 1
            size *= 2 ** expression.count("=[*]")  # a place is off or on
        assert file.read_text().startswith(f"# {size} routes"), file.name
        assert size >= (256 if file.stem.startswith("cpu_") else 96)
        assert target.search.algorithm == "full" and target.budget.trials >= size
