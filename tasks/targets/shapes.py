"""The shapes that inputs may take: ranges of one input, and profiles over all of them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, model_validator
from routetune.tasks.targets.fields import LARGEST, Positive, Section


def _shape(value: Any) -> tuple[int, ...]:
    """A shape written as "1x3x224x224" or as [1, 3, 224, 224]; [] is a scalar's."""
    rule = 'must be a shape such as "1x3x224x224" or [1, 3, 224, 224]'
    if isinstance(value, str):
        parts = value.lower().split("x")
        if not all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts):
            raise ValueError(rule)
        return tuple(int(part) for part in parts)
    if not isinstance(value, tuple):
        raise ValueError(rule)
    if not all(type(size) is int and 0 <= size <= LARGEST for size in value):
        raise ValueError(rule)
    return value


Shape = Annotated[tuple[int, ...], BeforeValidator(_shape)]


class ShapeRange(Section):
    """The shapes one input may take: every dimension from `min` to `max`, tuned and timed at `opt`."""

    min: Shape
    opt: Shape
    max: Shape

    @model_validator(mode="before")
    @classmethod
    def _one_shape(cls, value: Any) -> Any:
        if isinstance(value, (str, tuple)):
            shape = _shape(value)
            return {"min": shape, "opt": shape, "max": shape}
        return value

    @model_validator(mode="after")
    def _ordered(self) -> ShapeRange:
        if not len(self.min) == len(self.opt) == len(self.max):
            raise ValueError("must have the same number of dimensions in min, opt and max")
        for axis, (low, best, high) in enumerate(zip(self.min, self.opt, self.max, strict=True)):
            if not low <= best <= high:
                raise ValueError(f"must be min <= opt <= max, but dimension {axis} has {low}, {best}, {high}")
        return self


class Profile(Section):
    """One optimization profile. The profile with the largest weight (the first of equals) is timed."""

    weight: Positive = 1.0
    shapes: dict[str, ShapeRange]

    def as_order(self) -> dict[str, dict[str, list[int]]]:
        """The profile as `BuildOrder` takes it: input name -> {"min": [...], "opt": [...], "max": [...]}."""
        return {
            name: {"min": list(shape.min), "opt": list(shape.opt), "max": list(shape.max)}
            for name, shape in sorted(self.shapes.items())
        }
