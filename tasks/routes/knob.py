"""Knobs: the named options of a compiler, and the database of them that a library publishes.

The format is the JSON of TensorRT's `IBuilderConfig.all_build_routes`:

    {"tuner_version": "2.19.15",
     "tuner_options": [{"option": "-copy_ppg", "allowed_values": "-copy_ppg=[on|off]",
                        "default_value": "on", "help": "..."}]}

Allowed values without brackets (`-peep:max=int32_t`), or with `...` in them, are unbounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from routetune.tasks.errors import BadInput
from routetune.tasks.routes.route import Route

#: The signs that begin a knob's name, in canonical order: compiler knobs, builder settings, Q/DQ places.
FAMILIES = {"-": "compiler knobs", "+": "builder settings", "@": "Q/DQ places"}

#: What makes a knob's values an open range.
OPEN = "..."


@dataclass(frozen=True, slots=True)
class Knob:
    """One option of a compiler.

    Attributes:
        name: with its family sign: "-copy_ppg", "+tf32", "@conv1".
        values: the allowed values in the library's order; None when unbounded (an open range or a type):
            such a knob can be fixed, never swept.
        default: the value that a route leaves unsaid.
        help: the library's own words.
        hint: how the library writes the allowed values of an unbounded knob: "int32_t", "[0|1|...]".

    Raises:
        BadInput: a name or a value that could not be written in a route.
    """

    name: str
    values: tuple[str, ...] | None
    default: str
    help: str = ""
    hint: str = ""

    def __post_init__(self) -> None:
        if problem := _name_problem(self.name):
            raise BadInput(f"knob {quoted(self.name)} {problem}")
        if self.values is None:
            return
        if not self.values:
            raise BadInput(f"knob {self.name} lists no allowed value; at least one is needed")
        for value in (*self.values, self.default):
            problem = value_problem(value) or ("is an open range" if OPEN in value else "")
            if problem:
                raise BadInput(f"knob {self.name}: value {quoted(value)} {problem}")
        if len(set(self.values)) < len(self.values):
            raise BadInput(f"knob {self.name} lists a value twice: {self.allowed}")

    @property
    def bounded(self) -> bool:
        """Whether the allowed values form a closed set, so that the knob can be swept."""
        return self.values is not None

    @property
    def allowed(self) -> str:
        """The allowed values as the library writes them: "[on|off]", "int32_t"."""
        return self.hint if self.values is None else f"[{'|'.join(self.values)}]"

    def check(self, value: str) -> None:
        """Accept a value that this knob may be set to.

        An unbounded knob takes any single word but the name of its type, as trtexec does: only the
        library knows the range.

        Raises:
            BadInput: the value is not allowed; the message lists what is.
        """
        if self.values is not None:
            if value not in self.values:
                allowed = ", ".join(self.values)
                raise BadInput(f"knob {self.name} does not allow {quoted(value)}; allowed: {allowed}")
            return
        problem = value_problem(value)
        if value in (self.hint, "int32_t", OPEN):
            problem = "names a type or a range, not a value of it"
        if problem:
            raise BadInput(
                f"knob {self.name}: {quoted(value)} {problem}; give one value, as in {self.name}=1"
            )


class KnobDatabase(Mapping[str, Knob]):
    """The knobs of a library in its own order, by name.

    Looking up an unknown name raises BadInput with the nearest names, never KeyError.

    Attributes:
        version: the library's "tuner_version".
        malformed: a sentence for each entry of the source that could not be used.
        notes: family sign -> why the library has no knob of that family; said when one is asked for.
    """

    def __init__(
        self,
        version: str,
        knobs: Iterable[Knob],
        malformed: Iterable[str] = (),
        notes: Mapping[str, str] | None = None,
    ) -> None:
        self.version = version
        self.malformed = tuple(malformed)
        self.notes = dict(notes or {})
        self._knobs: dict[str, Knob] = {}
        for knob in knobs:
            if knob.name in self._knobs:
                raise BadInput(f"knob {knob.name} is in the knob database twice; names must be unique")
            self._knobs[knob.name] = knob
        self._position = {name: position for position, name in enumerate(self._knobs)}

    @classmethod
    def from_json(cls, source: str | bytes | Mapping[str, Any]) -> KnobDatabase:
        """Read the database from JSON text or from the parsed document.

        An entry that cannot be used is left out and named in `malformed`, so that one odd entry of a
        newer library does not make all the others unusable.

        Raises:
            BadInput: not JSON, not of this form, or no entry can be used.
        """
        document = _parsed(source)
        options = document.get("tuner_options")
        if not isinstance(options, list):
            raise BadInput(
                f'knob database: "tuner_options" must be a list of objects, found {_kind(options)}'
            )
        version = document.get("tuner_version")
        knobs: dict[str, Knob] = {}
        malformed = []
        for position, entry in enumerate(options):
            try:
                knob = _knob(entry)
                if knob.name in knobs:
                    raise BadInput(f"knob {knob.name} is listed twice; the first entry counts")
                knobs[knob.name] = knob
            except BadInput as problem:
                malformed.append(f"entry {position}: {problem}")
        if malformed and not knobs:
            raise BadInput(f"knob database: none of its {len(malformed)} entries can be used; {malformed[0]}")
        return cls(version if isinstance(version, str) else "unknown", knobs.values(), malformed)

    def to_json(self) -> dict[str, Any]:
        """The document that `from_json` reads; plain JSON types."""
        options = [
            {
                "option": knob.name,
                "allowed_values": f"{knob.name}={knob.allowed}",
                "default_value": knob.default,
                "help": knob.help,
            }
            for knob in self._knobs.values()
        ]
        return {"tuner_version": self.version, "tuner_options": options}

    def __getitem__(self, name: str) -> Knob:
        try:
            return self._knobs[name]
        except KeyError:
            raise BadInput(self._unknown(name)) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._knobs)

    def __len__(self) -> int:
        return len(self._knobs)

    def __contains__(self, name: object) -> bool:
        return name in self._knobs

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KnobDatabase):
            return NotImplemented
        # Order counts: it is the order of the canonical string.
        return self.version == other.version and [*self.values()] == [*other.values()]

    def get(self, name: str, default: Any = None) -> Any:
        return self._knobs.get(name, default)

    def glob(self, pattern: str) -> list[Knob]:
        """The bounded knobs whose name matches `pattern`, in order; `*` stands for any text."""
        # fnmatch never backtracks from one star into another; its other marks are taken literally.
        literal = re.sub(r"[?\[]", r"[\g<0>]", pattern)
        return [knob for name, knob in self._knobs.items() if knob.bounded and fnmatchcase(name, literal)]

    def merged(self, *others: KnobDatabase) -> KnobDatabase:
        """One database of several, its families side by side: "-", then "+", then "@".

        Raises:
            BadInput: a name is in more than one of them.
        """
        databases = (self, *others)
        families = list(FAMILIES)
        knobs = sorted(
            (knob for database in databases for knob in database.values()),
            key=lambda knob: families.index(knob.name[0]),
        )
        versions = dict.fromkeys(database.version for database in databases if database.version)
        malformed = [sentence for database in databases for sentence in database.malformed]
        notes = {sign: note for database in databases for sign, note in database.notes.items()}
        return KnobDatabase(", ".join(versions), knobs, malformed, notes)

    def route(self, assignment: Mapping[str, str]) -> Route:
        """The canonical route of an assignment.

        Raises:
            BadInput: an unknown knob, or a value that it does not allow.
        """
        settings = []
        for name, value in assignment.items():
            knob = self[name]
            # A library's own default needs no permission: routes never spell it.
            if value != knob.default:
                knob.check(value)
                settings.append((name, value))
        settings.sort(key=lambda setting: self._position[setting[0]])
        return Route(tuple(settings))

    def _unknown(self, name: str) -> str:
        near = get_close_matches(name[:200], self._knobs, n=3, cutoff=0.6)
        if name[:1] in self.notes:
            advice = self.notes[name[:1]]
        elif near:
            advice = f"did you mean {' or '.join(near)}?"
        elif name[:1] not in FAMILIES:
            advice = "names begin with -, + or @, and `routetune knobs` lists them"
        else:
            advice = f"none of the {len(self)} known names is near; `routetune knobs` lists them"
        return f"unknown knob {quoted(name)}; {advice}"


def quoted(text: str) -> str:
    """The text in quotes for a message: shortened when long, what cannot be printed escaped."""
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


def value_problem(value: str) -> str:
    """Why a value could not be written in a route, or ""."""
    if not value:
        return "is empty"
    if " " in value or not value.isprintable():
        return "holds white space or an unprintable character"
    if value == "*":
        return "stands for all values and only within brackets, as in [*]"
    if any(mark in value for mark in "[]|"):
        return "holds one of the marks [ ] | of a list"
    return ""


def _name_problem(name: str) -> str:
    if name[:1] not in FAMILIES or len(name) < 2:
        return "must begin with one of the signs -, + or @, and a name must follow"
    if " " in name or not name.isprintable() or any(mark in name for mark in "=[]*"):
        return "holds white space, an unprintable character or one of the marks = [ ] *"
    return ""


def _parsed(source: object) -> Mapping[str, Any]:
    document = source
    if isinstance(source, str | bytes):
        if not source.strip():
            raise BadInput("knob database: the text is empty; this library has no tuner of its own")
        try:
            document = json.loads(source)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"knob database: not JSON: {error}") from error
    if not isinstance(document, Mapping):
        raise BadInput(f"knob database: expected an object with tuner_options, found {_kind(document)}")
    return document


def _knob(entry: object) -> Knob:
    """One entry of "tuner_options"; BadInput says what is wrong with it."""
    if not isinstance(entry, Mapping):
        raise BadInput(f"expected an object, found {_kind(entry)}")
    name = entry.get("option")
    if not isinstance(name, str) or not name:
        raise BadInput(f'"option" must be the name of a knob, found {_kind(name)}')
    fields = {key: entry.get(key, "") for key in ("allowed_values", "default_value", "help")}
    for key, value in fields.items():
        if not isinstance(value, str):
            raise BadInput(f'knob {quoted(name)}: "{key}" must be a string, found {_kind(value)}')
    allowed = fields["allowed_values"].removeprefix(f"{name}=").strip()
    opening, closing = allowed.find("["), allowed.find("]")
    # As trtexec: no bracket pair, or an open range within it, means unbounded.
    if opening < 0 or closing < opening or OPEN in allowed[opening:closing]:
        return Knob(name, None, fields["default_value"], fields["help"], hint=allowed)
    values = dict.fromkeys(split_list(allowed[opening + 1 : closing]))
    return Knob(name, tuple(values), fields["default_value"], fields["help"])


def split_list(inside: str) -> list[str]:
    """The values between brackets; white space around them and empty ones do not count, as in trtexec."""
    return [value for part in inside.split("|") if (value := part.strip())]


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    return quoted(value) if isinstance(value, str) else f"a value of type {type(value).__name__}"
