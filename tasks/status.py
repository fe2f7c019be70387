"""Whether what is published for a target still holds, and what a re-tune would cost."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from routetune.tasks import canonical
from routetune.tasks.canonical import to_float
from routetune.tasks.engines import cuda
from routetune.tasks.errors import BadInput, NotHere
from routetune.tasks.reading import TEXT, read_bounded
from routetune.tasks.store import Store
from routetune.tasks.store.digests import Digests
from routetune.tasks.store.manifests import BadPublication, Publication
from routetune.tasks.store.runs import FAILED, RunRecord
from routetune.tasks.subject import Subject, open_subject
from routetune.tasks.targets.changes import Change, compare, dearest
from routetune.tasks.targets.gpu import ABSENT, NOT_APPLICABLE
from routetune.tasks.targets.gpu import FIELDS as GPU
from routetune.tasks.targets.memo import Memo, no_memo
from routetune.tasks.targets.schema import load_target


@dataclass(frozen=True, slots=True)
class Freshness:
    """The state of one target.

    Attributes:
        state: "fresh", "stale", "reselect" (only the choice among what is known may change), "never tuned",
            "failed" (the last run of the target as it stands ended without a publication), "cannot tell"
            (the environment cannot be read), or "refused" (the target is bad input).
        changes: the fields that moved since the publication was made.
        cost: the dearest thing a changed field asks for, one of COSTS; "publish" when only the published
            files are damaged; or "".
        detail: one sentence for a person.
        publication: what is published for this environment, else the newest of the others.
        subject: the target as it stands; None where it is refused, or this machine lacks its device.
        failures: how often in a row the target failed as it stands, and nothing came of it since.
    """

    target: str
    path: str
    state: str
    changes: tuple[Change, ...] = ()
    cost: str = ""
    detail: str = ""
    publication: Publication | None = None
    subject: Subject | None = None
    failures: tuple[RunRecord, ...] = ()

    def to_json(self) -> dict[str, Any]:
        published = self.publication
        return {
            "target": self.target,
            "path": self.path,
            "state": self.state,
            "cost": self.cost,
            "detail": self.detail,
            "changes": [
                {"field": c.field, "old": c.old, "new": c.new, "cost": c.cost, "text": str(c)}
                for c in self.changes
            ],
            "generation": published and published.reference.generation,
            "route": published and published.manifest["route"],
            "speed": published and published.manifest["speed"],
        }


#: The runs of a target, oldest first.
RunsOf = Callable[[str], list[RunRecord]]


def look_at(paths: list[Path], store: Store, rehash: bool = False) -> list[Freshness]:
    """Look at many target files; files that nobody wrote to since the last look are not read again.

    Args:
        rehash: read all of them all the same.
    """
    memo = Digests(store.root, rehash)
    if len(paths) > 1:
        store.publications.refresh()

    @cache  # read once for all of them, and not at all where everything is fresh
    def by_target() -> dict[str, list[RunRecord]]:
        found: dict[str, list[RunRecord]] = {}
        for run in store.runs.list():
            found.setdefault(run.target, []).append(run)
        return found

    states = [freshness(path, store, memo, lambda target: by_target().get(target, [])) for path in paths]
    memo.save()
    return _told_apart(states)


def _told_apart(states: list[Freshness]) -> list[Freshness]:
    """The states, where targets of one name and environment are refused: each would replace the other's
    publication, for ever."""
    paths: dict[tuple[str, str], list[str]] = {}
    for one in states:
        if one.subject is not None:
            paths.setdefault((one.target, one.subject.key), []).append(one.path)
    found = []
    for one in states:
        others = paths[one.target, one.subject.key] if one.subject is not None else []
        if len(others) > 1 and (other := _another(one.path, others)):
            detail = f"name = {one.target!r} is also that of {other}: give each target a name of its own"
            one = Freshness(one.target, one.path, "refused", detail=detail)
        found.append(one)
    return found


def _another(path: str, others: list[str]) -> str:
    """The first of `others` that is another file; "" where none is."""
    own = Path(path).resolve()
    return next((other for other in others if Path(other).resolve() != own), "")


def freshness(path: Path, store: Store, memo: Memo = no_memo, runs_of: RunsOf | None = None) -> Freshness:
    """Look at one target file; never builds, never raises for a bad target."""
    try:
        try:
            return freshness_of(open_subject(path, memo), store, memo, runs_of)
        except NotHere as error:
            return _without_device(path, store, memo, error)
    except BadInput as error:
        return _refused(path, error)


def _refused(path: Path, error: BadInput) -> Freshness:
    return Freshness(path.stem, str(path.absolute()), "refused", detail=str(error))


def freshness_of(
    subject: Subject, store: Store, memo: Memo = no_memo, runs_of: RunsOf | None = None
) -> Freshness:
    """Compare what today's publication is bound to with the subject as it stands."""
    state = _compared(subject, store, memo)
    if state.state in ("fresh", "cannot tell"):
        return state
    failures = failed_in_a_row((runs_of or store.runs.list)(state.target), subject.bound_to)
    if failures:
        detail = f"{failures[0].reason}; {state.detail}" if state.detail else failures[0].reason
        return replace(state, state="failed", detail=detail, failures=failures)
    return state


def _compared(subject: Subject, store: Store, memo: Memo) -> Freshness:
    state = Freshness(subject.target.name, str(subject.target.path), "never tuned", subject=subject)
    if unknown := subject.environment.cannot_tell:
        published = _latest(state.target, store, memo)
        detail = f"cannot read {', '.join(unknown)}; nothing is rebuilt and nothing is reused until it can be"
        told = "; ".join(filter(None, (detail, _made_for(published))))
        return replace(state, state="cannot tell", detail=told, publication=published)
    try:
        published = _nearest(subject, store, memo)
    except BadPublication as damage:
        return replace(state, state="stale", cost="publish", detail=str(damage))
    if published is None:
        return state
    state = replace(state, publication=published)
    # The size tells without reading it; `verify` and the loader read every byte.
    if not store.publications.has_engine(published):
        detail = f"engine {published.engine} is missing or has not the size it was published with"
        return replace(state, state="stale", cost="publish", detail=detail)
    changes = tuple(compare(published.manifest["bound_to"], subject.bound_to))
    if not changes:
        return replace(state, state="fresh")
    cost, detail = dearest(changes) or "", another_dial(published.manifest, subject)
    word = "reselect" if cost == "reselect" else "stale"
    return replace(state, state=word, changes=changes, cost=cost, detail=detail)


def _without_device(path: Path, store: Store, memo: Memo, missing: NotHere) -> Freshness:
    """Stale where something is published for a GPU and this machine has none; else refused."""
    name = load_target(path).name
    published = _latest(name, store, memo, on_gpu=True)
    if published is None or cuda.present():  # what is wrong with a GPU that is here, `missing` says
        return _refused(path, missing)
    made_on = _environment_of(published)
    had = {one: made_on[one] for one in GPU if made_on.get(one) not in (None, NOT_APPLICABLE)}
    moved = tuple(Change(f"environment.{one}", value, ABSENT, "rebuild") for one, value in had.items())
    detail = "; ".join(filter(None, (_made_for(published), str(missing))))
    return Freshness(name, str(path.absolute()), "stale", moved, "rebuild", detail, published)


def _environment_of(published: Publication) -> Mapping[str, Any]:
    found = published.manifest["bound_to"].get("environment")
    return found if isinstance(found, Mapping) else {}


def _made_for(published: Publication | None) -> str:
    label = published and published.manifest.get("environment_label")
    return f"what is published was made for {label}" if label else ""


def another_dial(manifest: Mapping[str, Any], subject: Subject) -> str:
    """A sentence where a publication was selected by another ε or metric than the target file has, or ""."""
    dials = [bound.get("target", {}).get("accuracy") for bound in (manifest["bound_to"], subject.bound_to)]
    if None in dials:  # a manifest of a version that bound to less
        return ""
    made, stands = (f"{to_float(one['tolerance']):g} of {one['metric']}" for one in dials)
    if made == stands:
        return ""
    return (
        f"published at ε = {made}, and the target file has {stands}: 'routetune tune' goes back to the "
        "file's; to keep what is published, write its ε into the file"
    )


def failed_in_a_row(runs: list[RunRecord], bound_to: dict[str, Any]) -> tuple[RunRecord, ...]:
    """The latest runs that failed on exactly this, the newest first; killed ones say nothing either way."""
    found: list[RunRecord] = []
    # A run that only reproduced says nothing of whether the target can be tuned.
    ended = [run for run in runs if not run.unfinished and "purpose" not in run.bound_to]
    for run in reversed(ended):
        if run.status != FAILED or canonical.digest(run.bound_to) != canonical.digest(bound_to):
            break
        found.append(run)
    return tuple(found)


def _nearest(subject: Subject, store: Store, memo: Memo) -> Publication | None:
    """The publication for this environment, else the newest of the target's others, to compare with."""
    current = store.publications.current(subject.target.name, subject.key, memo)
    if current is not None:
        return current
    return _latest(subject.target.name, store, memo)


def _latest(name: str, store: Store, memo: Memo, on_gpu: bool = False) -> Publication | None:
    """The newest publication of a target, of whatever environment, or of one with a GPU."""
    found = [_readable(store, name, key, memo) for key in store.publications.environments(name)]
    there = [one for one in found if one and (not on_gpu or _environment_of(one).get("device") == "cuda")]
    return max(there, key=lambda one: str(one.manifest.get("published_at")), default=None)


def _readable(store: Store, name: str, key: str, memo: Memo) -> Publication | None:
    """Another environment's publication; its damage is that environment's affair."""
    try:
        return store.publications.current(name, key, memo)
    except BadPublication:
        return None


def find_targets(places: list[Path]) -> list[Path]:
    """Target files named, or found in the folders named, where TOML files of other tools are passed over.

    Raises:
        BadInput: a place does not exist, or a folder holds no target file.
    """
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            inside = [path for path in sorted(place.glob("*.toml")) if _may_be_target(path)]
            if not inside:
                raise BadInput(f"folder {place} holds no target file (*.toml)")
            found += inside
        elif place.exists():
            found.append(place)
        else:
            raise BadInput(f"{place} does not exist: expected a target file or a folder of them")
    return found


#: A line that begins a table; only keys before the first one are the file's own.
_TABLE = re.compile(rb"^\s*\[", re.MULTILINE)
_OURS = re.compile(rb"^(schema|model)\s*=", re.MULTILINE)


def _may_be_target(path: Path) -> bool:
    """False where the file is TOML and has neither a schema nor a model: then it is some other tool's."""
    try:
        text = read_bounded(path, "target file", TEXT)
        if _OURS.search(_TABLE.split(text, maxsplit=1)[0]):
            return True
        data = tomllib.loads(text.decode())
    except (BadInput, OSError, ValueError, RecursionError):
        return True  # `load_target` says what is wrong with it
    return "schema" in data or "model" in data
