"""The workbench of one run: the subject, the store, the workers, and what the run has learnt so far."""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from routetune.tasks import canonical, logs
from routetune.tasks.devices import fleet_of, locked
from routetune.tasks.engines.fleet import Fleet
from routetune.tasks.engines.worker import StepFailed
from routetune.tasks.errors import EnvironmentBroken, RoutetuneError
from routetune.tasks.routes.knob import KnobDatabase
from routetune.tasks.routes.space import RouteSpace, open_space
from routetune.tasks.store import SCRATCH, Store
from routetune.tasks.store.blobs import Missing
from routetune.tasks.store.keys import code_digest, stage_key
from routetune.tasks.store.locks import making
from routetune.tasks.store.records import row
from routetune.tasks.store.runs import Run
from routetune.tasks.store.signing import open_signer
from routetune.tasks.subject import Subject, backend_and_devices, knobs_of, open_subject
from routetune.tasks.targets.schema import load_target
from routetune.tasks.trial import REPRODUCIBLE, Failure, Outcome, Trial

#: Errors of a step that are the route's own; any other exception is the machine's, and not kept.
ROUTE_ERRORS = frozenset({"BuildError", "RunError"})


@dataclass(frozen=True, slots=True)
class Answer:
    """What a step gave: a value as it is in the store.

    Attributes:
        cached: it was there before this run.
        shared: this run made it before, for another trial.
    """

    value: dict[str, Any]
    cached: bool
    shared: bool = False

    def spent(self, step: str) -> dict[str, float]:
        """The seconds of the step that made it, by its name; nothing where another trial has spent them."""
        return {} if self.shared else {step: self.value.get("seconds", 0.0)}


#: Makes a value and the digests of its blobs.
Make = Callable[[], tuple[dict[str, Any], list[str]]]
#: Whether a kept value may still be used.
Holds = Callable[[dict[str, Any]], bool]


def _always(_: dict[str, Any]) -> bool:
    return True


@dataclass
class Bench:
    """Everything that the stages of one run share.

    Attributes:
        references: the reference outputs, one dict per input set; filled by the first stage.
        labels: input set -> blob of its labels, where it has any.
        calibrations: what placements are made from, once it is needed: with ranges (True), and without.
        control: the trial that candidates are timed against; the default route's, where that runs.
        engines: identity of an engine -> the first trial that had it.
        trials: every trial of the run, by route id, in the order they were asked for.
        refresh: answer nothing that was in the store before this run.
        met: the generation that the winner has met, 0 for none.
        limited: whether the budget of seconds ends the run; it is for a search.
        asked: the keys that the stage at work has asked for, each with whether the store had it.
    """

    subject: Subject
    store: Store
    run: Run
    database: KnobDatabase
    fleet: Fleet
    folder: Path
    refresh: bool = False
    references: list[dict[str, Any]] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    timing_inputs: str = ""
    calibrations: dict[bool, dict[str, Any]] = field(default_factory=dict)
    control: Trial | None = None
    engines: dict[str, Trial] = field(default_factory=dict)
    trials: dict[str, Trial] = field(default_factory=dict)
    met: int = 0
    limited: bool = True
    asked: list[tuple[dict[str, Any], bool]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    _deaths: list[dict[str, Any]] = field(default_factory=list)
    _begun: set[str] = field(default_factory=set)
    _made: set[str] = field(default_factory=set)

    def key(self, stage: str, code: str, **parts: Any) -> dict[str, Any]:
        """The whole key of a stage's entry: what it is made from, by which code, where."""
        return stage_key(
            stage,
            code=code,
            environment=self.subject.environment.fields,
            backend=self._backend_key,
            device=self.subject.device.partition(":")[0],  # its number is of this host, and of nothing made
            engine_settings=self.subject.bound_to["target"]["engine"],
            **parts,
        )

    def answer(self, key: dict[str, Any], make: Make, holds: Holds = _always) -> Answer:
        """The value for `key`: from the store, or made now, and kept.

        `make` returns the value and the digests of its blobs. Two processes never make one key at once.
        A step that failed gives the value {"failure": ...}; it is kept only where it says something of the
        route. A kept value that no longer `holds` is made anew.
        """
        answer = self._answer(key, make, holds)
        self.asked.append((key, answer.cached))
        return answer

    def _answer(self, key: dict[str, Any], make: Make, holds: Holds) -> Answer:
        name = canonical.digest(key)
        if (value := self.known(key)) is not None and holds(value):
            return self._answered(name, value)
        with making(self.store.root, name):
            earlier = self.known(key)
            if earlier is not None and holds(earlier):
                return self._answered(name, earlier)
            self._begun.add(name)  # before another device can find what is put
            try:
                value, blobs = make()
            except StepFailed as failed:
                value, blobs = self._failure(key, failed)
                if not value.pop("keep"):
                    return Answer(value, cached=False)
            anew, blameless = self.refresh or earlier is not None, key not in self._deaths
            kept = self.store.entries.put(key, value, blobs, anew=anew, share=blameless)
            self._made.add(name)
            return Answer(kept.value if holds(kept.value) else value, cached=False)

    def _answered(self, name: str, value: dict[str, Any]) -> Answer:
        shared = name in self._begun
        return Answer(value, cached=not shared, shared=shared)

    def known(self, key: dict[str, Any]) -> dict[str, Any] | None:
        """The value for `key` where the store has all of it, every byte read, else None; nothing is made."""
        anew = self.refresh and canonical.digest(key) not in self._made
        entry = None if anew else self.store.entries.get(key)
        try:
            for blob in entry.blobs if entry else ():
                self.store.blobs.verified(blob)
        except Missing as missing:
            warnings.warn(f"{missing}; making it anew", stacklevel=2)
            return None
        if entry is None:
            return None
        self.store.entries.use(entry)
        value: dict[str, Any] = entry.value
        return value

    def step(self, function: str, arguments: dict[str, Any], measuring: float = 0.0) -> Any:
        """Run a step in this thread's worker; its output goes to the trial's log.

        Args:
            measuring: seconds that the step measures for by design, on top of the target's limit for a trial.
        """
        log = self.log
        log.unlink(missing_ok=True)
        limit = self.subject.target.budget.trial_seconds + measuring
        try:
            return self.fleet.call(function, arguments, limit, log)
        except EnvironmentBroken:
            self._disown_deaths()
            raise

    @property
    def _backend_key(self) -> str:
        """The backend's name; with the digest of its code where it is the user's own."""
        module, own, _ = self.subject.backend.partition(":")
        return f"{self.subject.backend} {code_digest(module)}" if own else module

    @property
    def log(self) -> Path:
        """Where the output of this thread's steps goes."""
        return self.folder / f"step-{self.fleet.number}.log"

    def kept_log(self) -> str | None:
        """The digest of the last step's log, or None when it said nothing."""
        if not self.log.exists() or not self.log.stat().st_size:
            return None
        logs.cut(self.log)
        digest: str = self.store.blobs.put_file(self.log)
        return digest

    def finish(self, summary: dict[str, Any]) -> None:
        """End the run well, with its records in one part; now others may know of the crashes, too."""
        for key in self._deaths:
            self.store.entries.share(self.store.entries.path(key))
        self.store.records.compact(self.run.id)
        self.run.finish("finished", summary)
        self.store.share()

    def judge_deaths(self, trials: list[Trial]) -> None:
        """Blame the machine where no engine of a run could be built or run at all.

        Raises:
            EnvironmentBroken: every one of several routes ended its process, the default route's too.
        """
        deaths = [trial for trial in trials if trial.failure and trial.outcome is Outcome.CRASHED]
        if len(deaths) < max(2, len(trials)) or not any(trial.route.is_default for trial in deaths):
            return
        self._disown_deaths()
        raise EnvironmentBroken(
            f"all {len(trials)} routes crashed, the default route too ({deaths[0].reason}): the machine, "
            "driver or library is broken, or this backend cannot take the model; no route is blamed"
        )

    def _disown_deaths(self) -> None:
        """Forget the crashes of this run: they turned out to be the machine's doing.

        Their records say so too: a row that says "crashed" would stand, and teach later searches.
        """
        for key in self._deaths:
            self.store.entries.path(key).unlink(missing_ok=True)
        name, key_of_place = self.subject.target.name, self.subject.key
        disowned = [one for trial in list(self.trials.values()) if (one := _disowned(trial))]
        self.store.records.append([row(self.run.id, name, key_of_place, trial) for trial in disowned])

    @property
    def time_is_up(self) -> bool:
        """Whether the target's budget of seconds is spent."""
        return self.limited and time.monotonic() - self.started > self.subject.target.budget.seconds

    @cached_property
    def space(self) -> RouteSpace:
        """The routes that the target asks for.

        Raises:
            BadInput: an expression or an exclude rule is refused; the message says which token and why.
        """
        search = self.subject.target.search
        return open_space(search.routes, self.database, search.exclude)

    def may_win(self, trial: Trial) -> bool:
        """Whether a trial is eligible, and its route one that the target permits: the default route, which is
        tried in any case, may be none."""
        return trial.eligible and (not trial.route.is_default or self.space.permits({}))

    @property
    def best_speed(self) -> float | None:
        """Speed of the fastest trial so far that may win, or None before there is one."""
        # A copy, since other devices may be adding to it.
        return max((t.speed for t in list(self.trials.values()) if self.may_win(t) and t.speed), default=None)

    def engine_path(self, engine: dict[str, Any]) -> str:
        """Where an engine's bytes are; whoever loads them verifies them."""
        return str(self.store.blobs.path(engine["digest"]))

    def _failure(self, key: dict[str, Any], failed: StepFailed) -> tuple[dict[str, Any], list[str]]:
        own = failed.outcome is not Outcome.FAILED or failed.error in ROUTE_ERRORS
        keep = failed.outcome in REPRODUCIBLE and own
        if keep and failed.outcome is Outcome.CRASHED:
            self._deaths.append(key)
        log = self.kept_log()
        told = {"outcome": failed.outcome.value, "reason": failed.reason, "step": key["stage"], "log": log}
        return {"failure": told, "keep": keep, "device": self.fleet.did}, [log] if log else []


def _disowned(trial: Trial) -> Trial | None:
    """A trial whose process died in this run, with the death laid to the machine; None for any other."""
    failure = trial.failure
    if failure is None or failure.outcome is not Outcome.CRASHED or failure.step in trial.cached:
        return None
    reason = f"{failure.reason}; the machine was at fault, so the route is not blamed"
    return replace(trial, failure=replace(failure, outcome=Outcome.KILLED, reason=reason))


def failure_from(value: dict[str, Any]) -> Failure | None:
    """The failure that an entry's value tells of, or None."""
    told = value.get("failure")
    if told is None:
        return None
    return Failure(Outcome(told["outcome"]), told["reason"], told["step"], told["log"])


@contextmanager
def open_bench(
    path: Path,
    store: Store,
    refresh: bool = False,
    patience: float | None = None,
    purpose: str | None = None,
    amend: Callable[[Subject], Subject] | None = None,
    ray: int | None = None,
) -> Iterator[Bench]:
    """A bench for the target file at `path`, with locked devices and their workers, given back at the end.

    Args:
        refresh: answer nothing from the store.
        patience: seconds to wait for a busy device at most, where the target says "wait"; None: for ever.
        purpose: what the run is for, where it is not to tune: then it goes on with no run that was.
        amend: what the run shall take for its subject in place of what the file says.
        ray: how many workers of a Ray cluster shall do the work, in place of the devices of this machine.

    Raises:
        RoutetuneError: the environment cannot be read, so that no result could be bound to it.
        BusyDevice: a device is in use and the target requires to have it alone.
        RunInProgress: another process is tuning the same.
        BadInput: the devices differ.
    """
    with ExitStack() as stack:
        target = load_target(path)
        if purpose is None:
            open_signer(target.publish.sign_key, store.root)  # refused now, not when all is measured
        if ray is None:  # the workers of a cluster lock their devices themselves
            stack.enter_context(locked(target, backend_and_devices(target)[1], patience))
        subject = open_subject(path)  # only now: while we waited for the device, anything may have moved
        _refuse_unknown(subject)
        subject = amend(subject) if amend else subject
        bound_to = subject.bound_to | ({"purpose": purpose} if purpose else {})
        run = stack.enter_context(store.runs.open(subject.target.name, bound_to))
        folder = stack.enter_context(_scratch(store.root / SCRATCH / run.id))
        fleet = stack.enter_context(_fleet(subject, store, folder, ray, patience))
        yield Bench(subject, store, run, knobs_of(subject), fleet, folder, refresh)


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """The folder of a run, deleted at its end."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _remove_leftovers(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _fleet(
    subject: Subject, store: Store, folder: Path, ray: int | None, patience: float | None
) -> AbstractContextManager[Fleet]:
    if ray is None:
        return fleet_of(subject.devices, folder)
    from routetune.tasks.cluster import cluster_fleet

    return cluster_fleet(subject, store.root, folder, ray, patience)


def _refuse_unknown(subject: Subject) -> None:
    if unknown := subject.environment.cannot_tell:
        raise RoutetuneError(
            f"target {subject.target.name!r}: cannot read {', '.join(unknown)} of the device; nothing is "
            "built or reused until it can be: 'routetune doctor' says what is missing"
        )


def _remove_leftovers(own: Path) -> None:
    """Delete what killed runs left beside `own` over a day ago; a live run touches its folder at every step.

    All times are the file system's: our clock may have been set since, or be another machine's.
    """
    os.utime(own)
    now = own.stat().st_mtime
    for left in own.parent.iterdir():
        if left != own and now - left.stat().st_mtime > 86_400:
            shutil.rmtree(left, ignore_errors=True)
