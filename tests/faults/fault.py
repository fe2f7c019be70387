"""A fault: what is done to a real tune, how often, and what was found when the three questions were asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.questions import (
    Findings,
    Rows,
    Snapshot,
    lost,
    repeated,
    rows_of,
    snapshot,
    wrong,
    wrongly_published,
)
from tests.faults.site import Ended, Site, Tune


@dataclass(frozen=True)
class Undisturbed:
    """A tune without a fault.

    Attributes:
        verdicts: route -> outcome.
        steps: the kind of each step that the run took on its store, in order.
        seconds: what it took.
    """

    site: Site
    verdicts: Mapping[str, str]
    steps: tuple[str, ...]
    seconds: float


@dataclass
class Case:
    """One fault being tried.

    Attributes:
        place: a new folder.
        damaged: entries that the fault has destroyed.
        verdicts: what the routes must come to in the end.
    """

    place: Path
    undisturbed: Undisturbed
    findings: Findings = field(default_factory=Findings)
    damaged: set[Path] = field(default_factory=set)
    verdicts: dict[str, str] = field(default_factory=dict)
    _sites: int = 0
    _seen: dict[Path, Rows] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.verdicts = dict(self.undisturbed.verdicts)

    def site(self, server: str | None = None) -> Site:
        """A new site with an empty store; with "" as its server, each run starts one of its own."""
        self._sites += 1
        usual = self.undisturbed.site.server
        return Site(self.place / f"site-{self._sites}", usual if server is None else server)

    def tuned(self, without: tuple[str, ...] = ()) -> Site:
        """A new site whose store is that of the undisturbed run."""
        site = self.site()
        site.take_store(self.undisturbed.site, without)
        return site

    @contextmanager
    def stopped(self, site: Site, *arguments: str, at: float, **options: Any) -> Iterator[Tune]:
        """A tune that has stopped itself `at` a share of its steps on the store; the body is the fault.

        Afterwards it goes on, unless the body has killed it, and has to end.
        """
        step = round(at * (len(self.undisturbed.steps) - 1))
        with site.running(*arguments, stop={"at": step}, **options) as tune:
            assert tune.wait_until_stopped(), f"it ended before step {step}: {tune.wait()}"
            self.findings.times += 1
            yield tune
            if tune.process.poll() is None:
                tune.go_on()
            tune.ended = self.findings.ended(tune.wait(), tune.was_killed)

    def killed(self, site: Site, tune: Tune) -> None:
        """Kill a stopped run, and look at what it leaves, and at what it has made again."""
        before = snapshot(site)
        self._compare(site, before)
        tune.kill()
        self.findings.ended(tune.wait(), tune.was_killed)
        self.findings.lost += lost(site, before)
        self.findings.wrong += wrongly_published(site)

    def conclude(self, site: Site, before: Snapshot, *arguments: str, target: str = "faulty") -> Ended:
        """Tune to the end without a fault, and ask the three questions."""
        self._compare(site, before)
        with site.running(*arguments, target=site.folder / f"{target}.toml") as tune:
            ended = self.findings.ended(tune.wait())
        self.findings.lost += lost(site, before, frozenset(self.damaged))
        if not self.damaged and ended.code == 0:
            rows = {of: row for of, row in rows_of(site).items() if of[0] == ended.summary["run"]}
            self.findings.lost += repeated(before.rows, rows)
        self.findings.wrong += wrong(site, self.verdicts, ended, target)
        self.findings.hung += site.survivors()
        return ended

    def _compare(self, site: Site, now: Snapshot) -> None:
        """Look for what the runs since the last look have made again."""
        self.findings.lost += repeated(self._seen.get(site.folder, {}), now.rows)
        self._seen[site.folder] = now.rows


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Attributes:
        name: as the table calls it.
        how: how it is injected, in a few words.
        inject: does it and asks the questions; the case counts how often.
        usual: whether it is tried for every change (marker "slow"), and not only when asked for.
    """

    name: str
    how: str
    inject: Callable[[Case], None]
    usual: bool = False
