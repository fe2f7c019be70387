"""Sentences about what is wrong in a target file, out of pydantic's errors."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

#: How many problems of one file are told.
_MOST = 20
_RULES = {
    "tuple_type": "must be a list",
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "model_attributes_type": "must be a table",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be a string",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
}


def explain(errors: Iterable[Mapping[str, Any]], path: Path, root: type[BaseModel]) -> str:
    """One message on all `errors` of the file at `path`: each field, the value found and what is allowed."""
    found = list(errors)
    lines = [_sentence(error, root) for error in found[:_MOST]]
    if len(found) == 1:
        return f"{path}: {lines[0]}"
    more = [f"  and {len(found) - _MOST} more"] if len(found) > _MOST else []
    return "\n".join([f"{path} has {len(found)} problems:", *(f"  {line}" for line in lines), *more])


def nearest(name: str, known: Iterable[str]) -> str:
    """ " (did you mean a or b?)" with the known names most like `name`; empty where none is."""
    names = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    return f" (did you mean {' or '.join(names)}?)" if names else ""


def _sentence(error: Mapping[str, Any], root: type[BaseModel]) -> str:
    place: Sequence[str | int] = error["loc"]
    field = ".".join(_cut(str(part)) for part in place)
    kind = error["type"]
    if kind == "missing":
        return f"{field} is missing; it is required"
    if kind == "extra_forbidden":
        known = _keys(root, place[:-1])
        return f"{field} is not a known key{nearest(str(place[-1]), known)}; allowed here: {', '.join(known)}"
    rule = _RULES.get(kind) or _rule(error)
    return f"{field} = {_shown(error['input'])}: {rule}" if field else rule


def _rule(error: Mapping[str, Any]) -> str:
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    message: str = error["msg"]
    return message.replace("Input should be", "must be").replace("Input should", "must")


def _shown(value: Any, width: int = 80) -> str:
    """`value` roughly as TOML would write it, cut to `width` characters."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str):
        text = json.dumps(value, ensure_ascii=False)
    elif isinstance(value, (tuple, list)):
        text = f"[{', '.join(_shown(item) for item in value)}]"
    elif isinstance(value, Mapping):
        text = "{" + ", ".join(f"{key} = {_shown(item)}" for key, item in value.items()) + "}"
    elif isinstance(value, BaseModel):
        text = _shown(value.model_dump(exclude_unset=True, by_alias=True))
    elif isinstance(value, int) and value.bit_length() > 256:
        text = "a number of more than 77 digits"
    else:
        text = str(value)
    return _cut(text, width)


def _cut(text: str, width: int = 100) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _keys(root: type[BaseModel], place: Sequence[str | int]) -> list[str]:
    """The keys allowed in the table at `place`."""
    model: Any = root
    inside = False  # a list or table of models: the next part of the place is an index or a user's own key
    for part in place:
        if inside:
            inside = False
            continue
        fields = model.model_fields
        annotation = next(field.annotation for name, field in fields.items() if part == (field.alias or name))
        model = _model_in(annotation)
        inside = annotation is not model
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_in(annotation: Any) -> Any:
    """The model class somewhere inside `annotation`, such as Profile in tuple[Profile, ...] | None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        found = _model_in(argument)
        if found is not None:
            return found
    return None
