"""The answer of `knobs`: the knobs of a backend, or those that the routes of a target may hold."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from routetune.tasks.engines.base import default_device, open_backend
from routetune.tasks.errors import BadInput
from routetune.tasks.routes.knob import KnobDatabase
from routetune.tasks.subject import resolve, target_knobs
from routetune.tasks.targets.devices import plain
from routetune.tasks.targets.model import inspect_model
from routetune.tasks.targets.places import names_places
from routetune.tasks.targets.schema import load_target

if TYPE_CHECKING:
    from routetune.tasks.targets.schema import Target

#: Words for the signs, for a command line on which signs are awkward.
FAMILIES = {"compiler": "-", "builder": "+", "qdq": "@"}


def knob_table(
    backend: str, device: str | None, name: str | None, family: str | None = None
) -> dict[str, Any]:
    """The knobs that a name, a glob, a family or a target file means, in the database's own JSON.

    Raises:
        BadInput: no knob is meant, or the target cannot be used.
    """
    sign = _sign(family)
    if name is not None and name.endswith(".toml"):
        database, name, owner = all_knobs(load_target(Path(name))), None, f"target {name}"
    else:
        database, owner = open_backend(backend).knobs(device or default_device(backend)), backend
    if name is not None and not any(mark in name for mark in "*?["):
        found = [database[name]]
    else:
        found = [knob for knob in database.values() if fnmatchcase(knob.name, name or "*")]
    found = [knob for knob in found if knob.name.startswith(sign)]
    if not found:
        asked = repr(name) if name is not None else f"the family {family!r}"
        raise BadInput(f"no knob of {owner} matches {asked}; {_advice(database, sign)}")
    families = {knob.name[0] for knob in database.values()}
    notes = [note for family_sign, note in database.notes.items() if family_sign not in families]
    kept = KnobDatabase(database.version, found)
    return kept.to_json() | {"malformed": list(database.malformed), "notes": notes}


def all_knobs(target: Target) -> KnobDatabase:
    """Every knob that a route of the target may hold. Raises BadInput: its model cannot be used."""
    return target_knobs(target, inspect_model(target), *resolve(target))


def searched_knobs(target: Target) -> KnobDatabase:
    """As `all_knobs`, but the model is only looked at where a route names a place of it."""
    if names_places([*target.search.routes, *target.search.exclude]):
        return all_knobs(target)
    backend, device = resolve(target)
    return open_backend(backend).knobs(plain(device))


def _sign(family: str | None) -> str:
    if family is None:
        return ""
    if family not in FAMILIES:
        raise BadInput(f"family {family!r} is not one of {', '.join(FAMILIES)}")
    return FAMILIES[family]


def _advice(database: KnobDatabase, sign: str) -> str:
    if sign == "@" and sign not in database.notes:
        return (
            "places belong to a model: name a target file, as in 'routetune knobs TARGET.toml --family qdq'"
        )
    return database.notes.get(sign, "'routetune knobs' lists them all")
