"""What earlier runs of a target have found out: one run's trials, and what has moved since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from routetune.tasks.canonical import digest
from routetune.tasks.errors import BadInput
from routetune.tasks.store.runs import FAILED, FINISHED, RunRecord
from routetune.tasks.targets.changes import Change, compare

if TYPE_CHECKING:
    from routetune.tasks.store import Store
    from routetune.tasks.subject import Subject

#: Changes after which the losses and speeds of a run still hold: only what is made of them moved, or what
#: else would be tried.
HARMLESS = frozenset({"reselect", "search"})


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One run as it was recorded.

    Attributes:
        run: the run.
        rows: its trials as plain dicts, oldest first; the columns of `store.records`.
        moved: what has changed since so that the rows no longer hold for the target.
    """

    run: RunRecord
    rows: list[dict[str, Any]]
    moved: tuple[Change, ...]


def recorded(
    subject: Subject, store: Store, run: str | None = None, columns: Sequence[str] = ()
) -> RecordedRun:
    """The trials of a run; by default of the latest one in today's environment that came to an end.

    Args:
        columns: only these columns; all by default.

    Raises:
        BadInput: there is no such run, it is another target's, or there are no trials.
    """
    name = subject.target.name
    runs = [store.runs.get(run)] if run else _candidates(subject, store)
    for one in runs:
        if one.target != name:
            raise BadInput(f"run {run!r} is of target {one.target!r}, not of {name!r}")
        if rows := store.records.read(one.id, columns=columns).to_pylist():
            changes = compare(one.bound_to, subject.bound_to)
            return RecordedRun(one, rows, tuple(change for change in changes if change.cost not in HARMLESS))
    what = f"of run {run!r}" if run else f"in this environment ({subject.environment.label})"
    raise BadInput(
        f"target {name!r}: there are no trials {what} in {store.name}; run 'routetune tune "
        f"{subject.target.path}' first, with --force where that calls it fresh{_elsewhere(subject, store)}"
    )


def _candidates(subject: Subject, store: Store) -> list[RunRecord]:
    """Runs in today's environment, the latest first; those under way or killed behind all others."""
    runs = [one for one in store.runs.list(subject.target.name) if _is_here(one, subject)]
    runs.reverse()
    return sorted(runs, key=lambda one: one.status not in (FINISHED, FAILED))


def _is_here(run: RunRecord, subject: Subject) -> bool:
    return digest(run.bound_to["environment"]) == digest(dict(subject.environment.fields))


def _elsewhere(subject: Subject, store: Store) -> str:
    others = [one for one in store.runs.list(subject.target.name) if not _is_here(one, subject)]
    return f", or name one of another environment with --run, such as {others[-1].id}" if others else ""
