"""A publication in the making, step by step: a kill after any of them leaves what was current before."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from routetune.tasks.errors import RoutetuneError
from routetune.tasks.store import manifests
from routetune.tasks.store.blobs import Blobs, Missing
from routetune.tasks.store.files import (
    UNFINISHED,
    StoreWarning,
    copy_hashed,
    make_folder,
    refuse_way_out,
    remove_folder,
    set_aside,
    sync_folder,
    unfinished,
    write_atomically,
)
from routetune.tasks.store.manifests import BadPublication, Pointer, Publication, Reference
from routetune.tasks.store.remote import Unreachable
from routetune.tasks.store.retention import retire, trim
from routetune.tasks.store.sealed import seal
from routetune.tasks.store.signing import Signer
from routetune.tasks.store.switches import Outrun, Shelf, Switches


@dataclass(slots=True)
class Draft:
    """A publication in the making; each of STEPS takes it one step further.

    Attributes:
        shelf: what a mirror's remote has; None where there is no remote, or it cannot be reached.
    """

    blobs: Blobs
    target: str
    environment: str
    engine: str
    manifest: Mapping[str, Any]
    file_name: str
    place: Path
    keep: int | None = None
    switches: Switches | None = None
    shelf: Shelf | None = None
    pointer: Pointer = field(default_factory=lambda: Pointer(None))
    generation: int = 0
    folder: Path = Path()
    size: int = 0
    published: Publication | None = None
    signer: Signer | None = None


def _prepare(draft: Draft) -> None:
    generations = draft.place / manifests.GENERATIONS
    refuse_way_out(draft.blobs.root, generations)
    draft.shelf = draft.switches.look(draft.place) if draft.switches else None
    draft.pointer = _pointer(draft.blobs.root, draft.place)
    make_folder(generations)
    for left in generations.glob(f"{UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)
    taken = draft.shelf.files if draft.shelf else {}
    draft.generation = max([0, *manifests.numbers(draft.place), *taken]) + 1
    draft.folder = unfinished(generations)
    draft.folder.mkdir()


def _copy_engine(draft: Draft) -> None:
    # A copy, not a link: what happens to a blob later must not reach what services load.
    source, copy = draft.blobs.path(draft.engine), draft.folder / draft.file_name
    refuse_way_out(draft.blobs.root, source)
    try:
        found = copy_hashed(source, copy, 0o444)
    except FileNotFoundError:
        raise Missing(f"engine {draft.engine} is not in the store, so it cannot be published") from None
    if found != draft.engine:
        set_aside(draft.blobs.root, source, f"the bytes of this blob have another digest: {found}")
        raise Missing(f"engine {draft.engine} was damaged and has been put aside: it is not published")
    draft.size = copy.stat().st_size


def _write_manifest(draft: Draft) -> None:
    content = {
        **draft.manifest,
        "schema": manifests.SCHEMA,
        "target": draft.target,
        "environment_key": draft.environment,
        "generation": draft.generation,
        "published_at": datetime.now(UTC).isoformat(),
        "engine": {"file": draft.file_name, "digest": draft.engine, "size": draft.size},
    }
    write_atomically(draft.folder / manifests.MANIFEST, seal(content, indent=2), 0o444)


def _settle(draft: Draft) -> None:
    sync_folder(draft.folder)
    draft.folder = draft.folder.rename(manifests.folder_of(draft.place, draft.generation))
    sync_folder(draft.folder.parent)


def _verify(draft: Draft) -> None:
    # As a service will read it, and while what was current still is.
    root = draft.blobs.root
    try:
        found = manifests.read_publication(root, draft.place, draft.generation, None)
        manifests.check_engine(root, found.engine, draft.engine)
    except RoutetuneError:
        draft.folder = draft.folder.rename(unfinished(draft.folder.parent))
        raise
    draft.published = found


def _sign(draft: Draft) -> None:
    if draft.signer is not None:
        assert draft.published is not None
        draft.signer.sign(draft.published)


def _switch(draft: Draft) -> None:
    assert draft.published is not None
    past = (*draft.pointer.history, *([draft.pointer.current] if draft.pointer.current else []))
    pointer = Pointer(draft.published.reference, past, draft.pointer.switch)
    if draft.switches is not None:
        pointer = _switch_at_remote(draft, draft.switches, pointer)
    manifests.write_pointer(draft.place, pointer)


def _switch_at_remote(draft: Draft, switches: Switches, pointer: Pointer) -> Pointer:
    """The pointer with the number of its switch; where the remote fails, it is noted for another time.

    Raises:
        Outrun: another host has switched.
    """
    if draft.keep is not None:  # now, since no switch is ever changed
        pointer = trim(pointer, manifests.numbers(draft.place), draft.keep)
    if draft.shelf is not None:
        try:
            pointer = switches.put(draft.place, draft.shelf, pointer)
            if draft.keep is not None:
                switches.retire(draft.shelf, pointer)
            return pointer
        except Unreachable as error:
            switches.mirror.fell_asleep(error)
    switches.mirror.note(draft.place / manifests.POINTER)
    return pointer


#: In this order; a kill after any of them leaves what was current before, whole.
STEPS: tuple[Callable[[Draft], None], ...] = (
    _prepare,
    _copy_engine,
    _write_manifest,
    _settle,
    _verify,
    _sign,
    _switch,
)


def complete(draft: Draft) -> Publication:
    """Take every step; a draft that fails leaves nothing behind.

    Raises:
        Outrun: another host has published meanwhile.
        RoutetuneError: as the steps.
    """
    try:
        for step in STEPS:
            step(draft)
    except Outrun:
        assert draft.switches is not None
        if draft.published is not None:
            draft.switches.take_back(draft.place, draft.published.reference)
        remove_folder(draft.folder)
        raise
    except BaseException:
        if draft.folder.name.startswith(UNFINISHED):
            remove_folder(draft.folder)
        raise
    if draft.keep is not None:
        _retire(draft, draft.keep)
    assert draft.published is not None
    return draft.published


def _retire(draft: Draft, keep: int) -> None:
    try:
        retire(draft.blobs.root, draft.place, keep)
    except OSError as error:  # what was published is, and the next publisher tries again
        warnings.warn(f"old generations of {draft.place} stay: {error}", StoreWarning, stacklevel=3)


def _pointer(root: Path, place: Path) -> Pointer:
    """The pointer to add to. Where there is none, one that says "nothing yet" is written first: after that a
    missing pointer always means that it was lost, also when the very first publication is killed."""
    try:
        pointer = manifests.read_pointer(place)
    except BadPublication as error:
        set_aside(root, place / manifests.POINTER, str(error))
        return Pointer(None, readable(root, place))
    if pointer is None:
        pointer = Pointer(None)
        manifests.write_pointer(place, pointer)
    return pointer


def readable(root: Path, place: Path) -> tuple[Reference, ...]:
    """The generations on the disk that still read well, oldest first; others are warned of."""
    found = []
    for number in manifests.numbers(place):
        try:
            found.append(manifests.read_publication(root, place, number, None).reference)
        except RoutetuneError as error:
            warnings.warn(f"generation {number} is passed over: {error}", StoreWarning, stacklevel=3)
    return tuple(found)
