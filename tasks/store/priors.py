"""Priors: what other tools found out about routes, kept to be tried first. They never answer anything.

A prior is not a record of ours: it was measured elsewhere, by other rules, perhaps on another machine. So it
lies in a folder of its own, has no key, and no stage looks for results here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from routetune.tasks.canonical import dumps, number, to_float
from routetune.tasks.routes.tuning_log import LoggedTrial, TuningLog
from routetune.tasks.store import names
from routetune.tasks.store.files import Damaged, put_away, read_file
from routetune.tasks.store.mirror import Mirror, write_shared
from routetune.tasks.store.sealed import is_sealed, seal, unseal

SCHEMA = 1
_FILE = re.compile(r"priors/[0-9a-f]{16}\.json")
#: What reading a file raises that is of another form than `add` writes.
_OTHER_FORMS = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
#: What is kept of a log's first line; the rest is about files and arguments of the machine it comes from.
HEADER = ("tuner_version", "accuracy_algorithm", "accuracy_parameter", "searching_algorithm", "tuning_expr")


class Priors:
    """The priors under `root`, the folder of the store: priors/<digest>.json, one file per imported log."""

    def __init__(self, root: Path, mirror: Mirror | None = None) -> None:
        self.root = root
        self.mirror = mirror
        self.folder = root / "priors"
        self._pulled = False

    def add(self, log: TuningLog, source: str, target: str | None = None) -> Path:
        """Keep the trials of a log; importing the same log again changes nothing.

        Args:
            source: the name of the file, for people.
            target: the target that they are for; None for every target.

        Raises:
            BadInput: not the name of a target.
        """
        content = {
            "schema": SCHEMA,
            "target": None if target is None else names.target(target),
            "header": {name: log.header[name] for name in HEADER if name in log.header},
            "trials": [_to_json(trial) for trial in log.trials],
        }
        path = self.folder / f"{hashlib.sha256(dumps(content).encode()).hexdigest()[:16]}.json"
        if not path.exists():
            told = {"source": source, "imported_at": datetime.now(UTC).isoformat(timespec="seconds")}
            write_shared(self.mirror, path, seal(content | told))
        return path

    def trials(self, target: str) -> list[LoggedTrial]:
        """The trials for a target, those for every target among them; damaged files are set aside."""
        return [trial for _, trial in self._trials(target)]

    def promising(self, target: str) -> list[tuple[str, LoggedTrial]]:
        """Trials for a target that ran, were accurate enough and were timed, the fastest first, each with the
        name of the file that it came from.

        Times of different logs are compared as they stand, which is good enough for an order of trying.
        """
        usable = [(source, trial) for source, trial in self._trials(target) if trial.usable]
        return sorted(usable, key=lambda found: found[1].milliseconds or 0.0)

    def _trials(self, target: str) -> list[tuple[str, LoggedTrial]]:
        return [pair for wanted, pairs in self._contents() if wanted in (None, target) for pair in pairs]

    def _contents(self) -> Iterator[tuple[str | None, list[tuple[str, LoggedTrial]]]]:
        """Of each file the target that it is for, and its trials with the name of what was imported."""
        if self.mirror is not None and not self._pulled:
            self._pulled = True
            self.mirror.pull("priors", _FILE, is_sealed)
        for path in sorted(self.folder.glob("*.json")):
            try:
                content = unseal(read_file(path))
                if content.get("schema") == SCHEMA:
                    source = str(content["source"])
                    yield content["target"], [(source, _from_json(trial)) for trial in content["trials"]]
            except FileNotFoundError:
                continue
            except (Damaged, *_OTHER_FORMS) as damage:
                put_away(self.root, path, "priors", damage)


def _to_json(trial: LoggedTrial) -> dict[str, Any]:
    return {
        # Pairs, since the order of a route's tokens is the other tool's.
        "route": [list(pair) for pair in trial.route.items()],
        "milliseconds": trial.milliseconds,
        "crashed": trial.crashed,
        "error": trial.error,
        "losses": {name: number(loss) for name, loss in trial.losses.items()},
    }


def _from_json(content: Mapping[str, Any]) -> LoggedTrial:
    losses = {name: to_float(loss) for name, loss in content["losses"].items()}
    milliseconds = content["milliseconds"]
    return LoggedTrial(
        {str(name): str(value) for name, value in content["route"]},
        None if milliseconds is None else to_float(milliseconds),
        content["crashed"],
        content["error"],
        losses,
    )
