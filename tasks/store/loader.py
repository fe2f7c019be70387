"""The loader that services use: from a target's name to an engine file that was checked, byte by byte."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from routetune.tasks.errors import BadInput, RoutetuneError
from routetune.tasks.store import manifests, store_root
from routetune.tasks.store.files import StoreWarning
from routetune.tasks.store.manifests import BadPublication, Publication
from routetune.tasks.store.mirror import mirror_of, name_of
from routetune.tasks.store.signing import KeySource, PublicKey, Untrusted, check_signature, public_keys
from routetune.tasks.store.switches import Switches
from routetune.tasks.targets.changes import Change, compare
from routetune.tasks.targets.environment import Environment

#: Fields of the environment that an engine cannot do without; any other difference makes it merely stale.
#: On a CPU the instruction sets count, since layouts chosen for them are baked into the engine.
_FATAL = ("backend", "device", "cpu.architecture")
_FATAL_ON = {"cpu": ("cpu.flags",), "cuda": ("gpu.name", "gpu.capability", "gpu.mig")}


class Refused(RoutetuneError):
    """The published engine was made for another kind of device or another version of the backend."""


@dataclass(frozen=True, slots=True)
class Published:
    """An engine to load.

    Attributes:
        path: the engine file; its SHA-256 has just been compared with the manifest's.
        options: plain JSON, to be applied again by the backend that loads it.
        manifest: everything known about it.
        stale: None when nothing was compared; else one line "field: old -> new" for each field in which
            today's environment is another than the one it was tuned in, empty when it is fresh.
    """

    path: Path
    options: dict[str, Any]
    manifest: dict[str, Any]
    stale: tuple[str, ...] | None = None


def load_current(
    root: Path | str | None,
    target: str,
    environment: str | None = None,
    today: Mapping[str, Any] | None = None,
    *,
    strict: bool = False,
    require_signature: Iterable[KeySource] | None = None,
) -> Published:
    """The engine that is published for a target. Nothing is written, so the store may be read-only.

    Of a store in a bucket, what is missing in this user's mirror of it is fetched.

    Args:
        root: the store, a folder or a URL; None for the one of ROUTETUNE_STORE or the user's.
        environment: key of the environment. None takes the only one published; with `today`, the only one
            whose engine can run here, one that equals `today` first.
        today: fields of this machine's environment as `targets.environment.observe` gives them. Another kind
            of device or another version of the backend is refused; other differences are served, as stale.
        strict: refuse every difference; needs `today`.
        require_signature: public keys, as PEM files or PEM texts in bytes. The manifest must be signed by
            one, and nothing in it is believed before; None asks for no signature.

    Raises:
        BadInput: nothing is published, several are (the message names them), or a newer routetune wrote it.
        BadPublication: a published file was changed or is gone; the message names it, with both digests.
        Untrusted: it is not signed by such a key, or is not what was signed.
        Refused: `today` is too different.
    """
    if strict and today is None:
        raise BadInput("strict loading compares environments: give today's, as environment.observe tells it")
    keys = None if require_signature is None else public_keys(require_signature)
    return _settled(_Wish(store_root(root), target, environment, today, strict, keys))


@dataclass(frozen=True, slots=True)
class _Wish:
    """What a service asks for; the fields are the arguments of `load_current`."""

    root: Path
    target: str
    environment: str | None
    today: Mapping[str, Any] | None
    strict: bool
    keys: Sequence[PublicKey] | None


def _settled(wish: _Wish) -> Published:
    """Load, and load again where a publisher came between; so what is damaged is what nobody replaces."""
    while True:
        look(wish.root, wish.target)
        pointers = _pointers(wish.root, wish.target)
        try:
            return _load(wish)
        except BadPublication:
            # Between our look at a pointer and at what it names, a publisher may have retired just that.
            if _pointers(wish.root, wish.target) == pointers:
                raise


def has_moved(published: Published) -> bool:
    """Whether another generation is current by now, where this one was; reads one small file, and asks the
    bucket of a store in one for one more.

    Raises:
        BadPublication: the pointer is damaged or gone.
    """
    place = published.path.parents[2]
    pointer = manifests.read_pointer(place)
    mirror = mirror_of(place.parents[2])
    if mirror is not None and pointer is not None and Switches(mirror).has_moved(place, pointer):
        Switches(mirror).refresh(place.parent.name)
        pointer = manifests.read_pointer(place)
    if pointer is None or pointer.current is None:
        raise BadPublication(f"nothing is published at {place} any more")
    generation: int = published.manifest["generation"]
    return pointer.current.generation != generation


def look(root: Path, target: str) -> None:
    """Have the mirror of a store in a bucket brought up to date for a target; else nothing is done.

    Raises:
        RoutetuneError: the bucket cannot be reached, and the mirror has nothing of the target.
    """
    mirror = mirror_of(root)
    if mirror is None:
        return
    Switches(mirror).refresh(target)
    if mirror.is_asleep and not manifests.environments(root, target):
        raise RoutetuneError(
            f"{mirror.remote.url} cannot be reached, and nothing of target {target!r} is in {root} yet"
        )


def _pointers(root: Path, target: str) -> list[tuple[str, int, int]]:
    """What tells that a target was published in the meantime: environment, inode and time of each pointer."""
    found = []
    for key in manifests.environments(root, target):
        try:
            status = (manifests.home(root, target, key) / manifests.POINTER).stat()
            found.append((key, status.st_ino, status.st_mtime_ns))
        except OSError:
            continue
    return found


def trusted(
    root: Path, target: str, environment: str, keys: Sequence[PublicKey] | None
) -> Publication | None:
    """What is published there, or None; with `keys` only when it is signed by one of them.

    Raises:
        BadPublication, BadInput: as `manifests.current`.
        Untrusted: it is not signed by any of `keys`.
    """
    found = manifests.current(root, manifests.home(root, target, environment))
    if found is not None and keys is not None:
        check_signature(found, keys)
    return found


def _load(wish: _Wish) -> Published:
    publication = _choose(wish) if wish.environment is None else _named(wish, wish.environment)
    manifest = publication.manifest
    stale = None if wish.today is None else _graded(publication, wish.today, wish.strict)
    path = manifests.check_engine(wish.root, publication.engine, publication.reference.engine)
    return Published(path, dict(manifest["options"]), manifest, stale)


def _named(wish: _Wish, environment: str) -> Publication:
    found = trusted(wish.root, wish.target, environment, wish.keys)
    if found is None:
        there = ", ".join(manifests.environments(wish.root, wish.target)) or "none"
        raise BadInput(
            f"target {wish.target!r} is not published in environment {environment} of store "
            f"{name_of(wish.root)}; published: {there}"
        )
    return found


def _choose(wish: _Wish) -> Publication:
    root, target, today = wish.root, wish.target, wish.today
    own = None if today is None else Environment(dict(today)).key
    found: list[Publication] = []
    for key in manifests.environments(root, target):
        try:
            publication = trusted(root, target, key, wish.keys)
        except RoutetuneError as error:
            # Another environment's must not take its place in silence; that of another is not missed.
            if own in (None, key):
                raise
            warnings.warn(
                f"{error}; passed over, as it is for another environment", StoreWarning, stacklevel=2
            )
            continue
        if publication is not None:
            found.append(publication)
    if not found:
        raise BadInput(f"target {target!r} is not published in store {name_of(root)}: tune it first")
    fitting = found if today is None else _fitting(found, today)
    if len(fitting) == 1:
        return fitting[0]
    if len(found) == 1:
        return found[0]
    names = "; ".join(_label(publication) for publication in found)
    compared = "give today's to compare with" if today is None else f"{len(fitting)} of them fit today's"
    raise BadInput(
        f"target {target!r} is published for {len(found)} environments: {compared}, or choose one by its "
        f"key: {names}"
    )


def _fitting(found: list[Publication], today: Mapping[str, Any]) -> list[Publication]:
    changes = [(publication, _changes(publication, today)) for publication in found]
    same = [publication for publication, differing in changes if not differing]
    return same or [publication for publication, differing in changes if not _fatal(today, differing)]


def _graded(publication: Publication, today: Mapping[str, Any], strict: bool) -> tuple[str, ...]:
    changes = _changes(publication, today)
    refused = changes if strict else _fatal(today, changes)
    if refused:
        raise Refused(
            f"the engine published for target {publication.manifest['target']!r} was made for another "
            f"environment ({'; '.join(map(_shown, refused))}): tune the target on this machine"
        )
    return tuple(map(_shown, changes))


def _changes(publication: Publication, today: Mapping[str, Any]) -> list[Change]:
    earlier = publication.manifest["bound_to"]["environment"]
    return compare({"environment": earlier}, {"environment": dict(today)})


def _fatal(today: Mapping[str, Any], changes: list[Change]) -> list[Change]:
    names = (*_FATAL, *_FATAL_ON.get(str(today.get("device")), ()), f"version.{today.get('backend')}")
    return [change for change in changes if change.field.removeprefix("environment.") in names]


def would_refuse(today: Mapping[str, Any], changes: list[Change]) -> bool:
    """Whether `load_current` refuses an engine whose environment differs from today's in this way."""
    return bool(_fatal(today, changes))


def _shown(change: Change) -> str:
    return str(change).removeprefix("environment.")


def _label(publication: Publication) -> str:
    fields = publication.manifest["bound_to"]["environment"]
    device = fields.get("gpu.name") or fields.get("cpu.model") or "unnamed device"
    when = str(publication.manifest["published_at"])[:10]
    return f"{publication.manifest['environment_key']} ({device}, published {when})"


__all__ = ["BadPublication", "Published", "Refused", "Untrusted", "has_moved", "load_current", "trusted"]
