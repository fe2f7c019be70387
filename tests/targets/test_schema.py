from __future__ import annotations

import json
import math
import os
import re
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from routetune.tasks.errors import BadInput
from routetune.tasks.targets.schema import Target, load_target, parse_target

DESIGN = """
schema = 1
name = "digits"
model = "../models/digits_cnn.onnx"
backend = "auto"
[shapes]
x = { min = "1x1x8x8", opt = "32x1x8x8", max = "64x1x8x8" }
[reference]
inputs = "../inputs/digits.npz"
labels = "y"
source = "onnxruntime"
[accuracy]
metric = "l0"
tolerance = 0.01
atol = 1e-5
rtol = 1e-5
[search]
routes = ["-graph_optimization_level=[basic|extended|all]", "-x=[a|b]"]
exclude = []
algorithm = "mixed"
[budget]
trials = 200
seconds = 3600
trial_seconds = 300
[timing]
objective = "latency"
min_gain = 0.01
exclusive = "wait"
[engine]
plugins = []
"""

VALID: dict[str, Any] = {"schema": 1, "name": "t", "model": "m.onnx", "search": {"routes": ["-a=[x|y]"]}}


def merged(patch: dict[str, Any]) -> dict[str, Any]:
    return {**VALID, **patch}


def test_the_design_example_loads(tmp_path: Path) -> None:
    folder = tmp_path / "targets"
    folder.mkdir()
    (folder / "digits.toml").write_text(DESIGN)
    target = load_target(folder / "digits.toml")
    assert target.path == folder / "digits.toml"
    assert (target.name, target.backend, target.schema_) == ("digits", "auto", 1)
    assert target.model == tmp_path / "models" / "digits_cnn.onnx"
    assert target.reference.inputs == (tmp_path / "inputs" / "digits.npz",)
    assert target.reference.labels == "y"
    [profile] = target.profiles
    assert profile.as_order() == {"x": {"min": [1, 1, 8, 8], "opt": [32, 1, 8, 8], "max": [64, 1, 8, 8]}}
    assert (target.accuracy.metric, target.accuracy.tolerance, target.accuracy.atol) == ("l0", 0.01, 1e-5)
    assert target.search.routes == ("-graph_optimization_level=[basic|extended|all]", "-x=[a|b]")
    assert (target.budget.trials, target.budget.seconds, target.budget.trial_seconds) == (200, 3600.0, 300.0)
    assert (target.timing.objective, target.timing.exclusive) == ("latency", "wait")
    assert target.engine.as_settings() == {"plugins": []}


def test_paths_follow_linked_folders_but_not_a_linked_model(tmp_path: Path) -> None:
    real, blobs = tmp_path / "real" / "sub", tmp_path / "blobs"
    real.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "b").write_bytes(b"")
    (real.parent / "m.onnx").symlink_to(blobs / "b")
    (tmp_path / "link").symlink_to(real)
    # By the rules of the file system link/.. is real's parent, not tmp_path.
    target = parse_target(
        merged({"model": "link/../m.onnx", "engine": {"plugins": ["p.so", "/q.so"]}}), tmp_path / "t"
    )
    assert target.model == real.parent / "m.onnx"
    assert target.engine.as_settings() == {"plugins": [str(tmp_path / "p.so"), "/q.so"]}


def test_a_relative_target_path_does_not_depend_on_the_working_directory_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.toml").write_text(
        'schema = 1\nname = "t"\nmodel = "m.onnx"\n[search]\nroutes = "-a=[x|y]"\n'
    )
    monkeypatch.chdir(tmp_path)
    target = load_target("t.toml")
    os.chdir("/")
    assert (target.path, target.model) == (tmp_path / "t.toml", tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ({"x": "1x3x8x8"}, ((1, 3, 8, 8),) * 3),
        ({"x": [1, 3]}, ((1, 3),) * 3),
        ({"x": "7"}, ((7,),) * 3),
        ({"x": {"min": "1", "opt": [2], "max": "3"}}, ((1,), (2,), (3,))),
    ],
)
def test_shapes_can_be_written_in_several_ways(shapes: dict[str, Any], expected: Any) -> None:
    [profile] = parse_target(merged({"shapes": shapes}), "/t.toml").profiles
    found = profile.shapes["x"]
    assert (found.min, found.opt, found.max) == expected


@pytest.mark.parametrize(("weights", "timed"), [([], 0), ([1.0], 0), ([1, 2, 2], 1), ([3, 2], 0)])
def test_the_heaviest_profile_is_timed(weights: list[float], timed: int) -> None:
    profiles = [{"weight": weight, "shapes": {"x": "1"}} for weight in weights]
    assert parse_target(merged({"profiles": profiles}), "/t.toml").timed_profile == timed


@pytest.mark.parametrize("tolerance", ["inf", math.inf])
def test_tolerance_can_be_off(tolerance: Any) -> None:
    assert (
        parse_target(merged({"accuracy": {"tolerance": tolerance}}), "/t.toml").accuracy.tolerance == math.inf
    )


# Every row: what is changed, and what the message must hold: field, value found, what is allowed.
WRONG: list[tuple[dict[str, Any], list[str]]] = [
    ({"schema": 2}, ["schema = 2", "must be 1"]),
    ({"schema": True}, ["schema = true", "whole number"]),
    ({"schema": 1.0}, ["schema = 1.0", "whole number"]),
    ({"name": "a b"}, ['name = "a b"', "letters, digits"]),
    ({"name": "../x"}, ['name = "../x"', "letters, digits"]),
    ({"name": "a\n"}, ["name = ", "letters, digits"]),
    ({"model": 3}, ["model = 3", "path"]),
    ({"model": "a\0b"}, ["model = ", "path"]),
    ({"modle": "m"}, ["modle is not a known key", "did you mean model", "backend"]),
    ({"backend": "trt"}, ['backend = "trt"', "onnxruntime", "module:Class"]),
    ({"shapes": {"x": "1xx"}}, ['shapes.x = "1xx"', "1x3x224x224"]),
    ({"shapes": {"x": [1, -1]}}, ["shapes.x = [1, -1]", "[1, 3, 224, 224]"]),
    ({"shapes": {"x": {"min": "1", "opt": "2"}}}, ["shapes.x.max is missing"]),
    (
        {"shapes": {"x": {"min": "1", "opt": "2", "mx": "3"}}},
        ["shapes.x.mx is not", "did you mean", "min, opt, max"],
    ),
    (
        {"shapes": {"x": {"min": "2", "opt": "1", "max": "3"}}},
        ["shapes.x = ", "min <= opt <= max", "dimension 0"],
    ),
    ({"shapes": {"x": {"min": "2", "opt": "2x1", "max": "3"}}}, ["shapes.x = ", "same number of dimensions"]),
    ({"shapes": {}, "profiles": [{"shapes": {}}]}, ["either [shapes]", "[[profiles]]"]),
    ({"profiles": [{"weight": 0, "shapes": {}}]}, ["profiles.0.weight = 0", "greater than 0"]),
    (
        {"profiles": [{"shpes": {}}]},
        ["profiles.0.shpes is not", "did you mean shapes", "profiles.0.shapes is missing"],
    ),
    ({"reference": {"inputs": []}}, ["reference = ", "at least one npz"]),
    ({"reference": {"labels": "y"}}, ["reference = ", "inputs that holds the labels"]),
    ({"reference": {"inputs": "a.npz", "samples": 2}}, ["reference = ", "either inputs"]),
    ({"reference": {"samples": 0}}, ["reference.samples = 0", "greater than or equal to 1"]),
    ({"reference": {"seed": -1}}, ["reference.seed = -1"]),
    ({"reference": {"source": "default"}}, ['reference.source = "default"', "onnxruntime, default-route"]),
    ({"reference": {"source": []}}, ["reference.source = []", ".npz"]),
    ({"reference": {"source": ["a.npz", "b.pkl"]}}, ['["a.npz", "b.pkl"]', ".npz"]),
    ({"reference": {"inputs": "x.npz", "source": ["a.json", "b.npz"]}}, ["one .json"]),
    ({"reference": {"source": "a.npz"}}, ["reference = ", "saved outputs of source"]),
    ({"reference": {"ranges": {"x": [1]}}}, ["reference.ranges.x = [1]", "two finite numbers"]),
    ({"reference": {"ranges": {"x": [2, 1]}}}, ["reference.ranges.x = [2, 1]", "smallest value first"]),
    ({"reference": {"ranges": {"x": [0, math.inf]}}}, ["reference.ranges.x = [0, inf]", "finite"]),
    (
        {"accuracy": {"metric": "my.module"}},
        ['accuracy.metric = "my.module"', "l0, l1, l2, lInf, cos", '"module:function"'],
    ),
    ({"accuracy": {"metric": "linf"}}, ['accuracy.metric = "linf"', "lInf"]),
    ({"accuracy": {"metric": "accuracy_drop"}}, ["accuracy_drop", "needs reference.labels"]),
    ({"accuracy": {"k": 0}}, ["accuracy.k = 0"]),
    ({"accuracy": {"outputs": {"y": {"metric": "my:loss"}}}}, ["accuracy.outputs.y.metric", "'topk'"]),
    ({"accuracy": {"outputs": {"y": {"weight": 0}}}}, ["accuracy.outputs.y.weight = 0"]),
    ({"accuracy": {"outputs": {"y": {"tolerance": -1}}}}, ["accuracy.outputs.y.tolerance = -1", '"inf"']),
    ({"accuracy": {"outputs": {"y": {"ignored": True}}}}, ["outputs.y.ignored is not", "mean ignore"]),
    ({"accuracy": {"tolerance": -0.1}}, ["accuracy.tolerance = -0.1", '"inf"']),
    ({"accuracy": {"tolerance": math.nan}}, ["accuracy.tolerance = nan"]),
    ({"accuracy": {"tolerance": 10**400}}, ["accuracy.tolerance = a number of more than"]),
    ({"reference": {"ranges": {"x": [0, 10**400]}}}, ["reference.ranges.x = ", "finite"]),
    ({"budget": {"seconds": 10**400}}, ["budget.seconds = a number of more than"]),
    ({"budget": {"trials": 10**400}}, ["budget.trials = a number of more than"]),
    ({"accuracy": {"atol": "1"}}, ['accuracy.atol = "1"', "must be a number"]),
    ({"accuracy": {"output": {}}}, ["accuracy.output is not a known key", "metric, tolerance, atol, rtol"]),
    ({"search": {}}, ["search.routes is missing"]),
    ({"search": {"routes": []}}, ["search.routes = []", "must not be empty"]),
    ({"search": {"routes": ["a", 1]}}, ["search.routes.1 = 1", "must be a string"]),
    ({"search": {"routes": "a", "algorithm": "best"}}, ['search.algorithm = "best"', "'mixed'", "'random'"]),
    ({"search": 3}, ["search = 3", "must be a table"]),
    ({"budget": {"trials": 1.5}}, ["budget.trials = 1.5", "whole number"]),
    ({"budget": {"seconds": 0}}, ["budget.seconds = 0", "greater than 0"]),
    ({"timing": {"objective": "throughput"}}, ["timing", "streams = N, at least 2"]),
    ({"timing": {"streams": 4}}, ["timing", 'objective = "throughput"']),
    ({"timing": {"objective": "energy"}}, ['timing.objective = "energy"', "'latency' or 'throughput'"]),
    ({"timing": {"exclusive": True}}, ["timing.exclusive = true", "'wait', 'require' or 'warn'"]),
    ({"timing": {"confidence": 1.0}}, ["timing.confidence = 1.0", "less than 1"]),
    ({"timing": {"min_gian": 0.1}}, ["timing.min_gian is not", "did you mean min_gain"]),
    ({"engine": {"device": "gpu"}}, ['engine.device = "gpu"', "cuda:N"]),
    ({"engine": {"workspace": 1}}, ["engine.workspace is not a known key", "plugins, device"]),
]


@pytest.mark.parametrize(
    ("patch", "expected"), WRONG, ids=lambda part: str(part)[:60] if isinstance(part, dict) else ""
)
def test_a_wrong_field_is_named_with_its_value_and_what_is_allowed(
    patch: dict[str, Any], expected: list[str]
) -> None:
    with pytest.raises(BadInput) as raised:
        parse_target(merged(patch), "/folder/t.toml")
    for part in ["/folder/t.toml", *expected]:
        assert part in str(raised.value)


def test_every_wrong_field_is_listed_at_once() -> None:
    with pytest.raises(BadInput) as raised:
        parse_target({"schema": 1, "name": "", "budget": {"trials": 0}, "serach": {}}, "/t.toml")
    lines = str(raised.value).splitlines()
    assert lines[0] == "/t.toml has 5 problems:"
    assert {re.split(r" |=", line.strip())[0] for line in lines[1:]} == {
        "name",
        "model",
        "search",
        "budget.trials",
        "serach",
    }


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"schema = 1\nname = \n", "line 2"),
        (b"schema = 1\nschema = 1\n", "line 2"),
        (b"name = '\xff'", "not UTF-8"),
        (b"", "schema is missing"),
        (b"x = " + b"[" * 100_000, "nested too deeply"),
        (b"x = " + b"9" * 5000, "not valid TOML"),
    ],
    ids=["syntax", "duplicate", "latin-1", "empty", "deep", "digits"],
)
def test_a_file_that_is_no_target_is_refused_in_a_sentence(
    tmp_path: Path, content: bytes, expected: str
) -> None:
    (tmp_path / "t.toml").write_bytes(content)
    with pytest.raises(BadInput) as raised:
        load_target(tmp_path / "t.toml")
    assert str(tmp_path / "t.toml") in str(raised.value)
    assert expected in str(raised.value)


def test_missing_file_and_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        load_target(tmp_path / "none.toml")
    with pytest.raises(BadInput, match="is a folder"):
        load_target(tmp_path)
    with pytest.raises(BadInput, match="cannot be read"):
        load_target("a\0b")


scalars = (
    st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["inf", "1x2", "cpu", "fast", "a:b", "l0", "", "/", "..", "\0"])
    | st.dates()
    | st.times()
    | st.datetimes()
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
SECTIONS = {
    name: [field.alias or key for key, field in Target.model_fields[name].annotation.model_fields.items()]  # type: ignore[union-attr]
    for name in ("reference", "accuracy", "search", "budget", "timing", "engine")
}
field_paths = st.sampled_from(
    [(key,) for key in ("schema", "name", "model", "backend", "shapes", "profiles", *SECTIONS)]
    + [("shapes", "x"), ("shapes", "x", "min")]
    + [(section, key) for section, keys in SECTIONS.items() for key in keys]
)


def toml(value: Any) -> str:
    """`value` as an inline TOML value."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08X}" for c in value)
        return f'"{escaped}"'
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(key)} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    return str(value)


relaxed = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@relaxed
@given(
    st.dictionaries(
        st.text(max_size=5) | st.sampled_from([*SECTIONS, "shapes", "profiles"]), values, max_size=6
    )
)
def test_arbitrary_toml_raises_nothing_but_bad_input(tmp_path: Path, data: dict[str, Any]) -> None:
    text = "".join(f"{toml(key)} = {toml(value)}\n" for key, value in data.items())
    (tmp_path / "t.toml").write_text(text, encoding="utf-8", errors="ignore")
    with pytest.raises(BadInput):  # `schema`, at least, is missing
        load_target(tmp_path / "t.toml")


@relaxed
@given(st.dictionaries(field_paths, values, min_size=1, max_size=3))
def test_arbitrary_values_in_known_fields_raise_nothing_but_bad_input(
    patch: dict[tuple[str, ...], Any],
) -> None:
    data = json.loads(json.dumps(VALID))
    for path, value in patch.items():
        place = data
        for part in path[:-1]:
            if not isinstance(place.get(part), dict):
                place[part] = {}
            place = place[part]
        place[path[-1]] = value
    try:
        target = parse_target(data, "/t.toml")
    except BadInput as error:
        assert "/t.toml" in str(error)
    else:
        assert isinstance(target.timed_profile, int)
