"""Publications: the engines that services load, one current generation per target and environment."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from routetune.tasks.errors import BadInput, RoutetuneError
from routetune.tasks.store import manifests, names
from routetune.tasks.store.blobs import Blobs
from routetune.tasks.store.draft import Draft, complete, readable
from routetune.tasks.store.files import StoreWarning
from routetune.tasks.store.locks import making
from routetune.tasks.store.manifests import BadPublication, Pointer, Publication, Reference
from routetune.tasks.store.mirror import Mirror
from routetune.tasks.store.signing import PublicKey, Signer, check_signature
from routetune.tasks.store.switches import Outrun, Shelf, Switches
from routetune.tasks.targets.memo import Memo, no_memo

#: How often a publication is tried while other hosts are faster.
_TRIES = 8
_OURS = ("check", "schema", "target", "environment_key", "generation", "published_at", "engine")


class Publications:
    """The publications under `root`, the folder of the store; a mirror's are those of its remote."""

    def __init__(self, root: Path, blobs: Blobs, mirror: Mirror | None = None) -> None:
        self.root = root
        self.blobs = blobs
        self.switches = None if mirror is None else Switches(mirror)

    def publish(
        self,
        target: str,
        environment: str,
        engine: str,
        manifest: Mapping[str, Any],
        file_name: str = "engine.onnx",
        keep: int | None = None,
        signer: Signer | None = None,
        yields: Callable[[Publication], bool] | None = None,
    ) -> Publication:
        """Make an engine the current one of a target in an environment.

        Args:
            engine: digest of its blob; its bytes are hashed again while they are copied.
            manifest: plain JSON with at least "bound_to" (with "target" and "environment"), "options" and
                "route"; schema, target, environment_key, generation, published_at and engine are added.
            file_name: name of the engine file, for runtimes that go by the suffix.
            keep: generations that stay on the disk, see `retention.retire`; None keeps all.
            signer: whose signature lies beside the manifest before it becomes the current one.
            yields: of a store that hosts share, whether what is current by now, or becomes so meanwhile,
                stays so; then that is the answer. Otherwise this one follows it.

        Raises:
            RoutetuneError: other hosts publish all the time.
            Missing: the engine is not in the store, or was damaged. What was current stays so.
            BadInput: a name or the manifest cannot be taken.
        """
        _check_manifest(manifest)
        if names.file(file_name) == manifests.MANIFEST:
            raise BadInput(f"an engine file cannot be called {file_name!r}: the manifest is")
        place = manifests.home(self.root, target, environment)
        draft = Draft(self.blobs, target, environment, names.digest(engine), manifest, file_name, place)
        draft = replace(draft, signer=signer, keep=keep, switches=self.switches)
        with making(self.root, manifests.lock_of(target, environment), f"publishing {target}"):
            return self._completed(draft, yields)

    def _completed(self, draft: Draft, yields: Callable[[Publication], bool] | None) -> Publication:
        """What a draft becomes, tried again as long as other hosts are faster; or theirs, if it yields."""
        target = draft.target
        for _ in range(_TRIES):
            if yields and (theirs := self._theirs(draft.place)) and yields(theirs):
                label = f"generation {theirs.reference.generation} of {target}"
                warnings.warn(f"{label} was published by another host meanwhile: it stays", stacklevel=3)
                return theirs
            try:
                return complete(replace(draft))
            except Outrun as outrun:
                warnings.warn(str(outrun), StoreWarning, stacklevel=3)
        raise RoutetuneError(
            f"target {target!r} cannot be published: other hosts did so {_TRIES} times meanwhile. "
            "Tune it on one host at a time"
        )

    def _theirs(self, place: Path) -> Publication | None:
        """What counts at `place` for every host; None in a folder of its own. The lock must be held."""
        if self.switches is None or self.switches.look(place) is None:
            return None
        with suppress(RoutetuneError):  # damaged: then ours follows it
            return manifests.current(self.root, place)
        return None

    def sign(self, publication: Publication, signer: Signer) -> None:
        """Put a signature beside the manifest of what is published, also at the remote."""
        path = signer.sign(publication)
        if self.switches is not None:
            self.switches.mirror.note(path)
            self.switches.mirror.offer(path)

    def share(self, path: Path) -> None:
        """Give the remote a file that it lacks: a pointer with all that it names, or a signature."""
        assert self.switches is not None
        if path.name != manifests.POINTER:
            self.switches.mirror.offer(path)
            return
        target, environment = path.parent.parent.name, path.parent.name
        with making(self.root, manifests.lock_of(target, environment), f"publishing {target}"):
            self.switches.look(path.parent)

    def refresh(self, target: str | None = None, at_once: bool = False) -> None:
        """Have a mirror look at what its remote has of a target, or of all, if it did not a moment ago."""
        if self.switches is not None:
            self.switches.refresh(target, at_once)

    def has_engine(self, publication: Publication) -> bool:
        """Whether the engine file is there, of the size it was published with; its bytes are not read."""
        size = int(publication.manifest["engine"]["size"])
        try:
            return publication.engine.stat().st_size == size
        except OSError:
            return self.switches is not None and self.switches.mirror.has(publication.engine, size)

    def current(self, target: str, environment: str, memo: Memo = no_memo) -> Publication | None:
        """What is published for a target in an environment, or None. The engine's bytes are not read.

        With a `memo`, see `manifests.read_publication`.

        Raises:
            BadPublication: a file of it is missing or changed; publishing again or `rollback` heals that.
            BadInput: a newer routetune wrote it.
        """
        self.refresh(target)
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
        self.refresh(target)
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
        self.refresh(target)
        while True:
            try:
                pointer = manifests.read_pointer(place)
            except RoutetuneError as error:
                return [str(error), *self._seals(place, keys)]
            if pointer is None or not pointer.newest_first:
                raise _nothing(target, environment)
            found = [
                problem for past in pointer.newest_first for problem in self._problems(place, past, keys)
            ]
            # A publisher may have retired just what was being read.
            if not found or _unmoved(place, pointer):
                return found

    def rollback(self, target: str, environment: str) -> Publication:
        """Go back to the latest earlier generation that is whole; those that are not are warned of.

        With a damaged pointer it is not known which was current: then the latest whole one is.

        Raises:
            BadInput: there is no earlier one that is whole.
            RoutetuneError: the remote of a mirror cannot be reached, or another host switches right now.
        """
        place = manifests.home(self.root, target, environment)
        with making(self.root, manifests.lock_of(target, environment), f"rolling back {target}"):
            shelf = self._shelf(place)
            try:
                pointer = manifests.read_pointer(place) or Pointer(None)
                past = pointer.history
            except BadPublication as error:
                warnings.warn(str(error), StoreWarning, stacklevel=2)
                pointer = Pointer(None, readable(self.root, place))
                past = pointer.history
            for index in reversed(range(len(past))):
                publication = self._whole(place, past[index])
                if publication is not None:
                    back = Pointer(past[index], past[:index], pointer.switch)
                    if self.switches is not None and shelf is not None:
                        back = self.switches.put(place, shelf, back, new=False)
                    manifests.write_pointer(place, back)
                    return publication
        raise BadInput(f"target {target!r} has no earlier whole publication in environment {environment}")

    def _shelf(self, place: Path) -> Shelf | None:
        """What a mirror's remote has, without which nobody may switch; None in a folder of its own."""
        if self.switches is None:
            return None
        shelf = self.switches.look(place)
        if shelf is None:
            raise RoutetuneError(
                f"{self.switches.mirror.remote.url} cannot be reached, so nothing was rolled back: try again"
            )
        return shelf

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
        engine = _engine_in(manifests.folder_of(place, past.generation))
        try:
            found = manifests.read_publication(self.root, place, past.generation, past.manifest)
            engine = found.engine
            if keys:
                check_signature(found, keys)
        except RoutetuneError as error:
            problems.append(str(error))
        # The engine beside a bad manifest is still judged: the pointer has its digest too.
        try:
            manifests.check_engine(self.root, engine, past.engine)
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


def _nothing(target: str, environment: str) -> BadInput:
    return BadInput(f"nothing is published for target {target!r} in environment {environment}: tune it first")


def _unmoved(place: Path, pointer: Pointer) -> bool:
    try:
        return manifests.read_pointer(place) == pointer
    except RoutetuneError:
        return False
