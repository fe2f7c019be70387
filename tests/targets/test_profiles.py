from __future__ import annotations

from typing import Any

import pytest
from routetune.tasks.errors import BadInput
from routetune.tasks.targets.model import TensorInfo
from routetune.tasks.targets.profiles import complete_profiles, corner, disagreement, misfit
from routetune.tasks.targets.schema import parse_target

INPUTS = {
    "ids": TensorInfo("ids", "int64", ("batch", "length")),
    "mask": TensorInfo("mask", "int64", ("batch", "length")),
    "fixed": TensorInfo("fixed", "float32", (3, 4)),
    "odd": TensorInfo("odd", "float32", (3, None)),
    "scalar": TensorInfo("scalar", "float32", ()),
}
SHAPES = {
    "ids": {"min": "1x2", "opt": "4x8", "max": "8x16"},
    "mask": {"min": "1x2", "opt": "4x8", "max": "8x16"},
    "odd": {"min": "3x1", "opt": "3x1", "max": "3x5"},
}


def complete(**sections: Any) -> Any:
    data = {"schema": 1, "name": "t", "model": "m", "search": {"routes": "-a=[x|y]"}, **sections}
    return complete_profiles(parse_target(data, "/t.toml"), INPUTS)


def test_inputs_of_fixed_shape_are_filled_in() -> None:
    [profile] = complete(shapes=SHAPES)
    assert corner(profile, "opt") == {
        "ids": (4, 8),
        "mask": (4, 8),
        "fixed": (3, 4),
        "odd": (3, 1),
        "scalar": (),
    }
    assert corner(profile, "max")["fixed"] == (3, 4)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        # D30: one of several dynamic inputs has no profile.
        (
            {"mask": None},
            "must give min, opt and max for input 'mask', whose dimensions 0 ('batch'), 1 ('length')",
        ),
        ({"odd": None}, "input 'odd', whose dimension 1 can vary"),
        ({"fixed": "3x5"}, "dimension 1 of 'fixed' is given as 5, but the model fixes it to 4"),
        ({"odd": {"min": "2x1", "opt": "3x1", "max": "3x1"}}, "dimension 0 of 'odd' is given as 2"),
        ({"mask": "4x8x1"}, "'mask' is given 3 dimensions, but the model gives it 2"),
        ({"maks": "4x8"}, "'maks' is not an input of the model (did you mean mask?)"),
        (
            {"mask": {"min": "1x2", "opt": "4x9", "max": "8x16"}},
            "at opt 'length' is one dimension of the model, but it is 8 in 'ids' (dimension 1) and 9",
        ),
    ],
)
def test_shapes_that_do_not_fit_the_model_are_refused_by_name(change: dict[str, Any], expected: str) -> None:
    shapes = {name: shape for name, shape in {**SHAPES, **change}.items() if shape is not None}
    with pytest.raises(BadInput) as raised:
        complete(shapes=shapes)
    assert "/t.toml: [shapes]" in str(raised.value)
    assert expected in str(raised.value)


def test_each_of_several_profiles_must_be_complete() -> None:
    with pytest.raises(BadInput, match=r"profile 1 must give .* 'odd'"):
        complete(profiles=[{"shapes": SHAPES}, {"shapes": {k: v for k, v in SHAPES.items() if k != "odd"}}])


def test_an_input_of_unknown_rank_needs_shapes() -> None:
    inputs = {"x": TensorInfo("x", "float32", None)}
    data = {"schema": 1, "name": "t", "model": "m", "search": {"routes": "-a=[x|y]"}}
    with pytest.raises(BadInput, match="'x', of which the model does not state the shape"):
        complete_profiles(parse_target(data, "/t.toml"), inputs)
    [profile] = complete_profiles(parse_target({**data, "shapes": {"x": "2x2"}}, "/t.toml"), inputs)
    assert corner(profile, "min") == {"x": (2, 2)}


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("ids", (1, 2), ""),
        ("ids", (8, 16), ""),
        ("ids", (9, 16), "'ids': dimension 0 ('batch') is 9, above the profile's max 8"),
        ("ids", (1, 1), "'ids': dimension 1 ('length') is 1, below the profile's min 2"),
        ("ids", (1,), "'ids' has 1 dimensions, not 2"),
        ("fixed", (3, 5), "'fixed': dimension 1 is 5, but the model fixes it to 4"),
    ],
)
def test_shapes_of_arrays_are_held_against_the_profile(
    name: str, shape: tuple[int, ...], expected: str
) -> None:
    [profile] = complete(shapes=SHAPES)
    assert misfit(name, shape, INPUTS[name], profile) == expected


def test_one_symbol_is_one_size() -> None:
    assert disagreement({"ids": (1, 2), "mask": (1, 2)}, INPUTS) == ""
    assert "'batch'" in disagreement({"ids": (1, 2), "mask": (3, 2)}, INPUTS)
