"""Publications: the engines that services load, one current generation per target and environment."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from routetune.tasks.canonical import digest
from routetune.tasks.errors import BadInput, RoutetuneError
from routetune.tasks.store import manifests, names
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
from routetune.tasks.store.locks import making
from routetune.tasks.store.manifests import BadPublication, Pointer, Publication, Reference
from routetune.tasks.store.retention import retire
from routetune.tasks.store.sealed import seal
from routetune.tasks.store.signing import PublicKey, Signer, check_signature
from routetune.tasks.targets.memo import Memo, no_memo

_OURS = ("check", "schema", "target", "environment_key", "generation", "published_at", "engine")


@dataclass(slots=True)
class Draft:
    """A publication in the making; each of STEPS takes it one step further."""

    blobs: Blobs
    target: str
    environment: str
    engine: str
    manifest: Mapping[str, Any]
    file_name: str
    place: Path
    pointer: Pointer = field(default_factory=lambda: Pointer(None))
    generation: int = 0
    folder: Path = Path()
    size: int = 0
    published: Publication | None = None
    signer: Signer | None = None


def _prepare(draft: Draft) -> None:
    generations = draft.place / manifests.GENERATIONS
    refuse_way_out(draft.blobs.root, generations)
    draft.pointer = _pointer(draft.blobs.root, draft.place)
    make_folder(generations)
    for left in generations.glob(f"{UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)
    draft.generation = max(manifests.numbers(draft.place), default=0) + 1
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
    manifests.write_pointer(draft.place, Pointer(draft.published.reference, past))


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


class Publications:
    """The publications under `root`, the folder of the store."""

    def __init__(self, root: Path, blobs: Blobs) -> None:
        self.root = root
        self.blobs = blobs

    def publish(
        self,
        target: str,
        environment: str,
        engine: str,
        manifest: Mapping[str, Any],
        file_name: str = "engine.onnx",
        keep: int | None = None,
        signer: Signer | None = None,
    ) -> Publication:
        """Make an engine the current one of a target in an environment.

        Args:
            engine: digest of its blob; its bytes are hashed again while they are copied.
            manifest: plain JSON with at least "bound_to" (with "target" and "environment"), "options" and
                "route"; schema, target, environment_key, generation, published_at and engine are added.
            file_name: name of the engine file, for runtimes that go by the suffix.
            keep: generations that stay on the disk, see `retention.retire`; None keeps all.
            signer: whose signature lies beside the manifest before it becomes the current one.

        Raises:
            Missing: the engine is not in the store, or was damaged. What was current stays so.
            BadInput: a name or the manifest cannot be taken.
        """
        _check_manifest(manifest)
        if names.file(file_name) == manifests.MANIFEST:
            raise BadInput(f"an engine file cannot be called {file_name!r}: the manifest is")
        place = manifests.home(self.root, target, environment)
        draft = Draft(self.blobs, target, environment, names.digest(engine), manifest, file_name, place)
        draft.signer = signer
        with making(self.root, _lock(target, environment), f"publishing {target}"):
            try:
                for step in STEPS:
                    step(draft)
            except BaseException:
                if draft.folder.name.startswith(UNFINISHED):
                    remove_folder(draft.folder)
                raise
            if keep is not None:
                _retire(draft, keep)
        assert draft.published is not None
        return draft.published

    def current(self, target: str, environment: str, memo: Memo = no_memo) -> Publication | None:
        """What is published for a target in an environment, or None. The engine's bytes are not read.

        With a `memo`, see `manifests.read_publication`.

        Raises:
            BadPublication: a file of it is missing or changed; publishing again or `rollback` heals that.
            BadInput: a newer routetune wrote it.
        """
        return manifests.current(self.root, manifests.home(self.root, target, environment), memo)

    def made_by(self, run: str, target: str) -> Publication | None:
        """What a run has published, in whatever environment, current or not; None where it is not there.

        Generations that cannot be read are passed over.
        """
        for key in self.environments(target):
            place = manifests.home(self.root, target, key)
            for number in reversed(manifests.numbers(place)):
                try:
                    found = manifests.read_publication(self.root, place, number, None)
                except RoutetuneError:
                    continue
                if found.manifest.get("run") == run:
                    return found
        return None

    def environments(self, target: str) -> list[str]:
        """Keys of the environments in which a target was ever published, sorted."""
        return manifests.environments(self.root, target)

    def history(self, target: str) -> list[Publication]:
        """Everything ever published for a target, in any environment, that still reads well; newest first.

        The engines' bytes are not read. What is damaged is `verify`'s to tell, and is passed over.
        """
        found = []
        for environment in self.environments(target):
            place = manifests.home(self.root, target, environment)
            try:
                pointer = manifests.read_pointer(place) or Pointer(None)
            except RoutetuneError:
                continue
            for past in pointer.newest_first:
                with suppress(RoutetuneError):
                    found.append(manifests.read_publication(self.root, place, past.generation, past.manifest))
        return sorted(found, key=lambda one: str(one.manifest["published_at"]), reverse=True)

    def verify(self, target: str, environment: str, keys: Sequence[PublicKey] = ()) -> list[str]:
        """One sentence for each file of a publication, current or earlier, that is not what was published.

        Every byte is read. An empty list means that all is well. With `keys`, each must be signed by one.

        Raises:
            BadInput: nothing is published there.
        """
        place = manifests.home(self.root, target, environment)
        try:
            pointer = manifests.read_pointer(place)
        except RoutetuneError as error:
            return [str(error), *self._seals(place, keys)]
        if pointer is None or not pointer.newest_first:
            raise _nothing(target, environment)
        return [problem for past in pointer.newest_first for problem in self._problems(place, past, keys)]

    def rollback(self, target: str, environment: str) -> Publication:
        """Go back to the latest earlier generation that is whole; those that are not are warned of.

        With a damaged pointer it is not known which was current: then the latest whole one is.

        Raises:
            BadInput: there is no earlier one that is whole.
        """
        place = manifests.home(self.root, target, environment)
        with making(self.root, _lock(target, environment), f"rolling back {target}"):
            try:
                pointer = manifests.read_pointer(place) or Pointer(None)
                past = pointer.history
            except BadPublication as error:
                warnings.warn(str(error), StoreWarning, stacklevel=2)
                past = _readable(self.root, place)
            for index in reversed(range(len(past))):
                publication = self._whole(place, past[index])
                if publication is not None:
                    manifests.write_pointer(place, Pointer(past[index], past[:index]))
                    return publication
        raise BadInput(f"target {target!r} has no earlier whole publication in environment {environment}")

    def _whole(self, place: Path, past: Reference) -> Publication | None:
        for problem in (problems := self._problems(place, past)):
            warnings.warn(
                f"generation {past.generation} is passed over: {problem}", StoreWarning, stacklevel=3
            )
        if problems:
            return None
        return manifests.read_publication(self.root, place, past.generation, past.manifest)

    def _problems(self, place: Path, past: Reference, keys: Sequence[PublicKey] = ()) -> list[str]:
        problems = []
        try:
            found = manifests.read_publication(self.root, place, past.generation, past.manifest)
            if keys:
                check_signature(found, keys)
        except RoutetuneError as error:
            problems.append(str(error))
        # The engine beside a bad manifest is still judged: the pointer has its digest too.
        try:
            manifests.check_engine(
                self.root, _engine_in(manifests.folder_of(place, past.generation)), past.engine
            )
        except RoutetuneError as error:
            problems.append(str(error))
        return problems

    def _seals(self, place: Path, keys: Sequence[PublicKey]) -> list[str]:
        """Problems of all generations on the disk, when no pointer says what they should be."""
        problems = []
        for number in manifests.numbers(place):
            try:
                found = manifests.read_publication(self.root, place, number, None)
                manifests.check_engine(self.root, found.engine, found.reference.engine)
                if keys:
                    check_signature(found, keys)
            except RoutetuneError as error:
                problems.append(str(error))
        return problems


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
        return Pointer(None, _readable(root, place))
    if pointer is None:
        pointer = Pointer(None)
        manifests.write_pointer(place, pointer)
    return pointer


def _readable(root: Path, place: Path) -> tuple[Reference, ...]:
    found = []
    for number in manifests.numbers(place):
        try:
            found.append(manifests.read_publication(root, place, number, None).reference)
        except RoutetuneError as error:
            warnings.warn(f"generation {number} is passed over: {error}", StoreWarning, stacklevel=3)
    return tuple(found)


def _engine_in(folder: Path) -> Path:
    files = [path for path in folder.glob("*") if path.name != manifests.MANIFEST and path.suffix != ".sig"]
    return files[0] if len(files) == 1 else folder / "engine"


def _check_manifest(manifest: Mapping[str, Any]) -> None:
    for name, kind in manifests.NEEDED.items():
        if not isinstance(manifest.get(name), kind):
            raise BadInput(f"manifest: {name!r} must be a {kind.__name__}, found {manifest.get(name)!r}")
    if not isinstance(manifest["bound_to"].get("environment"), dict):
        raise BadInput("manifest: 'bound_to' must hold the dict 'environment'")
    taken = sorted(set(manifest) & set(_OURS))
    if taken:
        raise BadInput(f"manifest: {', '.join(taken)} cannot be given, since publishing sets them")


def _lock(target: str, environment: str) -> str:
    return digest({"publication": [target, environment]})


def _nothing(target: str, environment: str) -> BadInput:
    return BadInput(f"nothing is published for target {target!r} in environment {environment}: tune it first")
