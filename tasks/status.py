"""Whether what is published for a target still holds, and what a re-tune would cost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from routetune.tasks.errors import BadInput
from routetune.tasks.store import Store
from routetune.tasks.store.manifests import BadPublication, Publication
from routetune.tasks.store.runs import FAILED
from routetune.tasks.subject import Subject, open_subject
from routetune.tasks.targets.changes import Change, compare, dearest


@dataclass(frozen=True, slots=True)
class Freshness:
    """The state of one target.

    Attributes:
        state: "fresh", "stale", "reselect" (only the choice among what is known may change), "never tuned",
            "failed" (the last run ended without a publication), "cannot tell" (the environment cannot be
            read), or "refused" (the target is bad input).
        changes: the fields that moved since the publication was made.
        cost: the dearest thing a changed field asks for, one of COSTS; "publish" when only the published
            files are damaged; or "".
        detail: one sentence for a person.
    """

    target: str
    path: str
    state: str
    changes: tuple[Change, ...] = ()
    cost: str = ""
    detail: str = ""
    publication: Publication | None = None

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


def freshness(path: Path, store: Store) -> Freshness:
    """Look at one target file; never builds, never raises for a bad target."""
    try:
        return freshness_of(open_subject(path), store)
    except BadInput as error:
        return Freshness(path.stem, str(path.absolute()), "refused", detail=str(error))


def freshness_of(subject: Subject, store: Store) -> Freshness:
    """Compare what today's publication is bound to with the subject as it stands."""
    name, path = subject.target.name, str(subject.target.path)
    if unknown := subject.environment.cannot_tell:
        detail = f"cannot read {', '.join(unknown)}; nothing is rebuilt and nothing is reused until it can be"
        return Freshness(name, path, "cannot tell", detail=detail)
    try:
        published = _nearest(subject, store)
    except BadPublication as damage:
        return Freshness(name, path, "stale", cost="publish", detail=str(damage))
    if published is None:
        runs = store.runs.list(name)
        if runs and runs[-1].status == FAILED and runs[-1].bound_to == subject.bound_to:
            return Freshness(name, path, "failed", detail=runs[-1].reason)
        return Freshness(name, path, "never tuned")
    if _is_cut(published):
        detail = f"engine {published.engine} is missing or has not the size it was published with"
        return Freshness(name, path, "stale", cost="publish", detail=detail, publication=published)
    changes = tuple(compare(published.manifest["bound_to"], subject.bound_to))
    if not changes:
        return Freshness(name, path, "fresh", publication=published)
    cost = dearest(changes) or ""
    state = "reselect" if cost == "reselect" else "stale"
    return Freshness(name, path, state, changes, cost, publication=published)


def _nearest(subject: Subject, store: Store) -> Publication | None:
    """The publication for this environment, else the newest of the target's others, to compare with."""
    current = store.publications.current(subject.target.name, subject.key)
    if current is not None:
        return current
    name = subject.target.name
    others = [_readable(store, name, key) for key in store.publications.environments(name)]
    return max((p for p in others if p), key=lambda p: str(p.manifest["published_at"]), default=None)


def _readable(store: Store, name: str, key: str) -> Publication | None:
    """Another environment's publication; its damage is that environment's affair."""
    try:
        return store.publications.current(name, key)
    except BadPublication:
        return None


def _is_cut(published: Publication) -> bool:
    """Whether the engine file cannot be the published one. Its size tells without reading it; `verify` and
    the loader read every byte."""
    try:
        return published.engine.stat().st_size != int(published.manifest["engine"]["size"])
    except OSError:
        return True


def find_targets(places: list[Path]) -> list[Path]:
    """Target files named, or found in the folders named.

    Raises:
        BadInput: a place does not exist, or a folder holds no target file.
    """
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            inside = sorted(place.glob("*.toml"))
            if not inside:
                raise BadInput(f"folder {place} holds no target file (*.toml)")
            found += inside
        elif place.exists():
            found.append(place)
        else:
            raise BadInput(f"{place} does not exist: expected a target file or a folder of them")
    return found
