"""What a service needs: the engine to load here, found and graded, and a runner with its options applied.

Nothing here imports Prefect or writes to the store; a mirror of a bucket is brought up to date.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from routetune.tasks.engines.base import Engine, open_backend
from routetune.tasks.errors import BadInput, RoutetuneError
from routetune.tasks.store import manifests, store_root
from routetune.tasks.store.loader import Published, Refused, has_moved, load_current, look, trusted
from routetune.tasks.store.signing import KeySource, public_keys
from routetune.tasks.subject import Subject, open_subject, today
from routetune.tasks.targets.changes import compare

if TYPE_CHECKING:
    from routetune.tasks.engines.base import Runner

__all__ = ["Published", "current_engine", "has_moved", "load_runner", "located"]


def current_engine(
    name: str,
    root: Path | str | None = None,
    *,
    strict: bool = False,
    require_signature: Sequence[KeySource] | None = None,
) -> Published:
    """The engine published for the target called `name`, every byte read, graded by today's environment.

    Args:
        root: the store, a folder or a URL; None for the one of ROUTETUNE_STORE or the user's.
        strict: refuse an engine whose environment differs in anything.
        require_signature: public keys of which one must have signed it, as `loader.load_current`.

    Raises:
        BadInput: nothing is published, or for several kinds of device, of which one must be chosen.
        Refused, BadPublication: as `loader.load_current`.
    """
    place = store_root(root)
    look(place, name)
    kinds = _kinds(place, name, require_signature)
    if len(kinds) > 1:
        told = ", ".join(f"{backend} on {device}" for backend, device in kinds)
        raise BadInput(
            f"target {name!r} is published for several kinds of device ({told}): give its target file, which "
            "says which one is meant, or call load_current with today's environment"
        )
    fields = today(*kinds[0]).fields if kinds else None
    return load_current(
        place, name, today=fields, strict=strict and bool(kinds), require_signature=require_signature
    )


def load_runner(published: Published, plugins: Iterable[Path | str] = ()) -> Runner:
    """The engine loaded, with the options that it was measured with; close it to free its memory.

    Args:
        plugins: the custom-op libraries that the target names, if any; a manifest knows their contents only.

    Raises:
        BadInput: the backend cannot be used here, or the engine is not for this device.
        Exception: the library's own, when it refuses the file.
    """
    manifest = published.manifest
    engine = Engine(
        path=published.path,
        digest=manifest["engine"]["digest"],
        size=manifest["engine"]["size"],
        identity=manifest["identity"],
        options=published.options,
    )
    settings = {"plugins": [str(Path(plugin).absolute()) for plugin in plugins]}
    return open_backend(manifest["backend"]).load(engine, manifest["device"], settings)


def find(
    what: Path, root: Path | str | None, strict: bool, require_signature: Sequence[KeySource] | None = None
) -> tuple[Published, Subject | None]:
    """The engine for a target file, or for the name of a target on a machine that has only the store.

    With the file, `stale` also names what moved in the target itself, such as the model.

    Raises:
        Refused: it cannot run here; with `strict`, anything moved.
        BadInput, BadPublication: as `current_engine`.
    """
    if what.suffix != ".toml" and not what.exists():
        return current_engine(str(what), root, strict=strict, require_signature=require_signature), None
    subject = open_subject(what)
    published = load_current(
        store_root(root),
        subject.target.name,
        today=subject.environment.fields,
        strict=strict,
        require_signature=require_signature,
    )
    before, now = published.manifest["bound_to"]["target"], subject.bound_to["target"]
    moved = [str(change) for change in compare({"target": before}, {"target": now})]
    if moved and strict:
        raise Refused(
            f"the engine published for target {subject.target.name!r} was tuned for another state of it "
            f"({'; '.join(moved)}): tune it again"
        )
    stale = (*(published.stale or ()), *moved)
    return Published(published.path, published.options, published.manifest, stale), subject


def located(
    what: Path,
    root: Path | str | None,
    strict: bool = False,
    require_signature: Sequence[KeySource] | None = None,
) -> dict[str, Any]:
    """Where the engine lies that a service shall load here, and what to know of it; plain JSON."""
    published, _ = find(what, root, strict, require_signature)
    warn_if_stale(published)
    manifest = published.manifest
    return {
        "target": manifest["target"],
        "path": str(published.path),
        "manifest": str(published.path.with_name(manifests.MANIFEST)),
        "options": published.options,
        "generation": manifest["generation"],
        "engine_digest": manifest["engine"]["digest"],
        "backend": manifest["backend"],
        "device": manifest["device"],
        "route": manifest["route"],
        "stale": list(published.stale or ()),
    }


def warn_if_stale(published: Published) -> None:
    """One warning for each thing that moved since the engine was tuned."""
    for line in published.stale or ():
        warnings.warn(
            f"the engine published for target {published.manifest['target']!r} is stale: {line}", stacklevel=3
        )


def _kinds(
    root: Path, name: str, require_signature: Sequence[KeySource] | None = None
) -> list[tuple[str, str]]:
    """Backend and device of what is published for a target; what is damaged is left to the loader.

    A backend's name may name a module to import: where a signature is asked for, none is taken without.
    """
    keys = None if require_signature is None else public_keys(require_signature)
    found = set()
    for key in manifests.environments(root, name):
        try:
            publication = trusted(root, name, key, keys)
        except RoutetuneError:
            continue
        if publication is not None:
            found.add((str(publication.manifest["backend"]), str(publication.manifest["device"])))
    return sorted(found)
