"""Manifests: how a publication lies on the disk, and how it is read and checked.

    publications/<target>/<environment key>/current.json
    publications/<target>/<environment key>/generations/000001/{engine.onnx, manifest.json}

Generations never change once they have their number. `current.json` names the one that counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from routetune.tasks.canonical import digest, to_float
from routetune.tasks.errors import BadInput, RoutetuneError
from routetune.tasks.store import names
from routetune.tasks.store.files import Damaged, hash_file, refuse_way_out, write_atomically
from routetune.tasks.store.mirror import mirror_of
from routetune.tasks.store.sealed import read_hashed, read_sealed, seal
from routetune.tasks.targets.memo import Memo, no_memo

SCHEMA = 1
#: Parts of a manifest that no look at many targets needs.
_LONGEST = "duel"
_LARGE = frozenset({_LONGEST, "excluded", "accuracy", "conditions", "decision", "remarks", "times"})
#: What every reader of a manifest needs.
NEEDED = {"bound_to": dict, "options": dict, "route": str}
#: What those have that we write; the newest parts may be missing.
_WRITTEN = {
    "accuracy": dict,
    "decision": dict,
    "environment_label": str,
    "objective": dict,
    "published_at": str,
    "speed": dict,
    "times": dict,
}
#: Far above what anyone publishes.
_LAST = 10**9
POINTER, MANIFEST, GENERATIONS = "current.json", "manifest.json", "generations"


class BadPublication(RoutetuneError):
    """A published file is missing or is not what was published, so it is refused; the message names it."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What the pointer keeps of a generation: its number, the SHA-256 of its manifest and of its engine."""

    generation: int
    manifest: str
    engine: str

    def to_json(self) -> dict[str, Any]:
        return {"generation": self.generation, "manifest": self.manifest, "engine": self.engine}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Reference:
        number = content["generation"]
        if type(number) is not int or not 1 <= number <= _LAST:
            raise ValueError(f"{number!r:.80} is not the number of a generation")
        return cls(number, names.digest(content["manifest"]), names.digest(content["engine"]))


@dataclass(frozen=True, slots=True)
class Pointer:
    """What `current.json` says.

    Attributes:
        current: the generation that counts, or None while the very first is being made.
        history: those that counted before, oldest first.
        switch: the number of the switch at a remote that this was last equal to; 0 in a folder of its own.
    """

    current: Reference | None
    history: tuple[Reference, ...] = ()
    switch: int = 0

    @property
    def newest_first(self) -> list[Reference]:
        return [*([self.current] if self.current else []), *reversed(self.history)]


@dataclass(frozen=True, slots=True)
class Publication:
    """One published generation, its manifest read and found right; the engine's bytes are not yet.

    Attributes:
        manifest: plain JSON: schema, target, environment_key, generation, published_at, engine
            {file, digest, size}, and what the publisher was given: bound_to, route, options, ...
        reference: its number and digests.
        engine: the engine file.
    """

    manifest: dict[str, Any]
    reference: Reference
    engine: Path


def home(root: Path, target: str, environment: str) -> Path:
    """The folder of everything published for a target in an environment."""
    return root / "publications" / names.target(target) / names.environment(environment)


def lock_of(target: str, environment: str) -> str:
    """The key that is held while what is published there changes, see `locks.making`."""
    return digest({"publication": [target, environment]})


def folder_of(place: Path, generation: int) -> Path:
    """The folder of one generation."""
    return place / GENERATIONS / f"{generation:06d}"


def numbers(place: Path) -> list[int]:
    """The generations on the disk, ascending; unfinished ones are not among them."""
    found = (place / GENERATIONS).glob("[0-9]*")
    return sorted(int(path.name) for path in found if path.name.isdecimal())


def environments(root: Path, target: str) -> list[str]:
    """Keys of the environments that hold anything of a target, sorted."""
    folder = root / "publications" / names.target(target)
    return sorted(path.name for path in folder.glob("*") if names.is_environment(path.name))


def read_pointer(place: Path) -> Pointer | None:
    """What is current at `place`, or None when nothing was ever published there.

    Raises:
        BadPublication: the pointer is damaged, or gone while its generations are there.
        BadInput: a newer routetune wrote it.
    """
    path = place / POINTER
    if not path.exists() and not numbers(place):
        return None
    try:
        return pointer_from(read_sealed(path, SCHEMA, "pointer"))
    except (Damaged, OSError) as error:
        raise BadPublication(
            f"{path} is damaged ({error}), so it does not say which generation is current: publish again, or "
            "roll back to the last good one"
        ) from error


def pointer_from(content: Mapping[str, Any]) -> Pointer:
    """The pointer that `sealed_pointer` made the content of. Raises Damaged: it is none."""
    try:
        history = tuple(Reference.from_json(past) for past in content["history"])
        current = None if content["generation"] is None else Reference.from_json(content)
        return Pointer(current, history, int(content.get("switch", 0)))
    except (KeyError, TypeError, ValueError, OverflowError, BadInput) as error:
        raise Damaged(str(error)) from error


def sealed_pointer(pointer: Pointer) -> bytes:
    """What `current.json` holds for a pointer."""
    now = pointer.current.to_json() if pointer.current else {"generation": None}
    content = {"schema": SCHEMA, **now, "history": [past.to_json() for past in pointer.history]}
    return seal(content | ({"switch": pointer.switch} if pointer.switch else {}), indent=2)


def write_pointer(place: Path, pointer: Pointer) -> None:
    """Make `pointer` what is current at `place`: readers see the earlier one or this one."""
    write_atomically(place / POINTER, sealed_pointer(pointer))


def read_publication(
    root: Path, place: Path, generation: int, expected: str | None, memo: Memo = no_memo
) -> Publication:
    """One generation.

    Args:
        expected: SHA-256 that its manifest.json must have, or None when nothing says so.
        memo: answers for files that nobody wrote to since; the raw samples of the duel are then left out.

    Raises:
        BadPublication: its manifest is missing, or was changed after it was published.
        BadInput: a newer routetune wrote it, or a link leads out of the store.
    """
    path = folder_of(place, generation) / MANIFEST
    refuse_way_out(root, path)
    try:
        found, manifest = memo("manifest", path, partial(_read_manifest, path, expected, memo is no_memo))
        if expected is not None and found != expected:
            raise Damaged(f"published with SHA-256 {expected}, now it has {found}")
        _check_content(manifest, place, generation)
        engine = path.with_name(names.file(manifest["engine"]["file"]))
        reference = Reference(generation, found, names.digest(manifest["engine"]["digest"]))
        return Publication(manifest, reference, engine)
    except OSError as error:
        raise BadPublication(f"manifest {path} cannot be read: {error.strerror}") from error
    except (Damaged, KeyError, TypeError) as error:
        raise BadPublication(f"manifest {path} was changed after it was published: {error}") from error


def _read_manifest(
    path: Path, expected: str | None, whole: bool
) -> tuple[tuple[str, dict[str, Any]], list[Path]]:
    # Its schema before its digest: a manifest of a newer one was not damaged, it is only not for us.
    manifest, found = read_hashed(path, SCHEMA, "manifest", expected, unread=None if whole else _LONGEST)
    return (found, manifest if whole else {k: v for k, v in manifest.items() if k not in _LARGE}), [path]


def _check_content(manifest: Mapping[str, Any], place: Path, generation: int) -> None:
    """Raise Damaged unless the manifest has what every reader needs, and belongs where it lies."""
    for name, kind in NEEDED.items():
        if not isinstance(manifest.get(name), kind):
            raise Damaged(f"its {name!r} is not a {kind.__name__}")
    for name, kind in _WRITTEN.items():
        if name in manifest and not isinstance(manifest[name], kind):
            raise Damaged(f"its {name!r} is not a {kind.__name__}")
    _check_speed(manifest.get("speed", {}))
    if not isinstance(manifest["bound_to"].get("environment"), dict):
        raise Damaged("its 'bound_to' does not hold the dict 'environment'")
    found = [manifest.get(name) for name in ("target", "environment_key", "generation")]
    if found != [place.parent.name, place.name, generation]:
        raise Damaged(
            f"it is that of generation {found[2]!r:.80} of target {found[0]!r:.80} "
            f"in environment {found[1]!r:.80}"
        )


def _check_speed(speed: Mapping[str, Any]) -> None:
    try:
        for name in ("ratio", "low", "high"):
            to_float(speed.get(name, 1.0))
    except (TypeError, ValueError) as error:
        raise Damaged(f"its 'speed' is no speed: {error}") from error


def check_engine(root: Path, path: Path, expected: str) -> Path:
    """`path`, all its bytes read and found to be those that were published; a mirror fetches what it lacks.

    Raises:
        BadPublication: they are not; the message names both digests.
        BadInput: a link leads out of the store.
    """
    refuse_way_out(root, path)
    try:
        found = hash_file(path)
    except OSError as error:
        if _is_fetched(root, path, expected):
            return path
        raise BadPublication(f"engine {path} cannot be read: {error.strerror}") from error
    if found != expected and not _is_fetched(root, path, expected):
        raise BadPublication(
            f"engine {path} was changed after it was published: published with SHA-256 "
            f"{expected}, now it has {found}"
        )
    return path


def _is_fetched(root: Path, path: Path, expected: str) -> bool:
    """Whether a mirror has got the engine from its remote, since it had none, or none that is right."""
    mirror = mirror_of(root)
    return mirror is not None and mirror.download(mirror.root / path.relative_to(root), expected)


def current(root: Path, place: Path, memo: Memo = no_memo) -> Publication | None:
    """What is published at `place`, or None.

    Raises:
        BadPublication, BadInput: as `read_pointer` and `read_publication`.
    """
    pointer = read_pointer(place)
    if pointer is None or pointer.current is None:
        return None
    return read_publication(root, place, pointer.current.generation, pointer.current.manifest, memo)
