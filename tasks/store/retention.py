"""Retention: how many generations of a publication stay on the disk."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from routetune.tasks.store import manifests
from routetune.tasks.store.files import is_inside, sync_folder, unfinished
from routetune.tasks.store.manifests import Pointer


def retire(root: Path, place: Path, keep: int) -> list[int]:
    """Remove the generations at `place` that are too old; returns their numbers.

    The `keep` newest stay; so do, whatever `keep` says, the one that is current and the one that `rollback`
    would go to. The lock of the publication must be held. A process that has opened an engine keeps its file.

    Raises:
        OSError: a folder cannot be removed; what is current is not touched.
    """
    pointer = manifests.read_pointer(place)
    if pointer is None or pointer.current is None:
        return []
    numbers = manifests.numbers(place)
    trimmed = trim(pointer, numbers, keep)
    if trimmed != pointer:
        # Before any folder goes: what the pointer names is there at every moment.
        manifests.write_pointer(place, trimmed)
    gone = [number for number in numbers if number not in _staying(pointer, numbers, keep)]
    for number in gone:
        _remove(root, manifests.folder_of(place, number))
    return gone


def trim(pointer: Pointer, numbers: Sequence[int], keep: int) -> Pointer:
    """A pointer without the generations that are too old, where `numbers` are on the disk."""
    stay = _staying(pointer, numbers, keep)
    return replace(pointer, history=tuple(past for past in pointer.history if past.generation in stay))


def _staying(pointer: Pointer, numbers: Sequence[int], keep: int) -> set[int]:
    return {*numbers[-keep:], *(past.generation for past in pointer.newest_first[:2])}


def _remove(root: Path, folder: Path) -> None:
    """By way of a name that no reader takes for a generation, and that the next publisher clears away."""
    doomed = folder.rename(unfinished(folder.parent))
    sync_folder(doomed.parent)
    # Reached through a link, the files are somebody else's.
    if doomed.is_symlink() or not is_inside(root, doomed):
        doomed.unlink()
    else:
        shutil.rmtree(doomed)
