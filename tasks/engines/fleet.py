"""The workers of a run, one for each device: who does a step, and which device is to be trusted."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from routetune.tasks.engines.attempts import DEATHS, Attempts
from routetune.tasks.engines.worker import StepFailed
from routetune.tasks.errors import EnvironmentBroken

#: A device is taken out after so many deaths in steps that then passed on another.
STRIKES = 3

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(eq=False)
class Member:
    """One device, and the worker that has it alone.

    Attributes:
        device: what the records call it: the UUID of a GPU, "cpu" or "cpu:0-3"; of another machine with the
            name of that before it.
        number: its place among the devices as they were named.
        strikes: how often its worker died in a step that then passed on another device.
    """

    device: str
    number: int
    attempts: Attempts
    strikes: int = 0
    busy: threading.Lock = field(default_factory=threading.Lock)


#: Whose thread this is, where items are dealt; and the device that did the last step of this thread.
_mine: ContextVar[Member | None] = ContextVar("mine", default=None)
_did: ContextVar[str | None] = ContextVar("did", default=None)


class Fleet:
    """Runs steps on the devices of one run.

    Of several devices a death is believed when it happens on a second one too: where the step passes there,
    its result counts, and the first device has a strike. A device with too many, or one on which the control
    no longer runs, is taken out, and the others go on.

    Args:
        members: at least one; the first does what is not dealt.

    Attributes:
        members: the devices that are in.
        out: those that were taken out, each with the reason.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = list(members)
        self._all = tuple(members)
        self.out: dict[str, str] = {}
        self._changing = threading.RLock()

    @property
    def mine(self) -> Member:
        """The member that this thread works with: its own while that is in, else the first."""
        own = _mine.get()
        return own if own in self.members else self.members[0]

    @property
    def named(self) -> list[str]:
        """Every device, those that were taken out included."""
        return [*dict.fromkeys([*(member.device for member in self._all), *self.out])]

    @property
    def number(self) -> int:
        """A number that no other thread has that works now, for the names of files."""
        own = _mine.get()
        return self.members[0].number if own is None else own.number

    @property
    def did(self) -> str | None:
        """The device that did this thread's last step; None before the first."""
        return _did.get()

    def call(self, step: str, arguments: dict[str, Any], seconds: float, log: Path) -> Any:
        """The result of a step; `did` then says where it was done.

        Raises:
            StepFailed: as `Attempts.call`; of several devices, where a second one says so too.
            EnvironmentBroken: the last device is taken out.
        """
        order = step, arguments, seconds, log
        while True:
            mine = self.mine
            try:
                return self._on(mine, *order)
            except EnvironmentBroken as broken:
                self.take_out(mine, broken)
            except StepFailed as failed:
                if failed.outcome not in DEATHS:
                    raise
                return self._elsewhere(mine, failed, *order)

    def restart(self) -> None:
        """Have this thread's next step done in a new process."""
        self.mine.attempts.worker.restart()

    def deal(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """The results of `work` on each item, in the order of the items; every device takes the next one.

        Whatever `work` raises ends the others' steps, and is raised.
        """
        if len(self.members) == 1 or len(items) < 2:
            return [work(item) for item in items]
        results: dict[int, Result] = {}
        left = iter(list(enumerate(items)))
        members = list(self.members)
        with ThreadPoolExecutor(len(members), thread_name_prefix="routetune-device") as threads:
            served = [
                threads.submit(copy_context().run, self._serve, member, work, left, results)
                for member in members
            ]
            try:
                wait(served, return_when=FIRST_EXCEPTION)
                for one in served:
                    if one.done():
                        one.result()
            except BaseException:
                for member in members:
                    member.attempts.worker.cancel()
                raise
        return [results[at] for at in range(len(items))]

    def _serve(
        self,
        member: Member,
        work: Callable[[Item], Result],
        left: Iterator[tuple[int, Item]],
        results: dict[int, Result],
    ) -> None:
        _mine.set(member)
        while member in self.members:
            with self._changing:
                taken = next(left, None)
            if taken is None:
                return
            results[taken[0]] = work(taken[1])

    def _on(self, member: Member, step: str, arguments: dict[str, Any], seconds: float, log: Path) -> Any:
        with member.busy:
            if member not in self.members:  # while we waited for it
                raise EnvironmentBroken(self.out[member.device])
            try:
                return member.attempts.call(step, arguments, seconds, log)
            finally:  # not before: a worker of a cluster may come to be on another device
                _did.set(member.device)

    def _elsewhere(self, mine: Member, failed: StepFailed, *order: Any) -> Any:
        """The step on another device, whose word decides; where there is none, the failure stands."""
        for other in [member for member in self.members if member is not mine]:
            try:
                result = self._on(other, *order)
            except EnvironmentBroken as broken:
                self.take_out(other, broken)
                continue
            mine.strikes += 1
            if mine.strikes >= STRIKES:
                why = f"its worker died in {STRIKES} steps that passed on another device, at last: {failed}"
                self.take_out(mine, EnvironmentBroken(why))
            return result
        raise failed

    def take_out(self, member: Member, why: EnvironmentBroken) -> None:
        """Go on without a device. Raises `why` where it is the last."""
        with self._changing:
            if self.members == [member]:
                raise why
            if member in self.members:
                self.members.remove(member)
                self.out[member.device] = str(why)
                warnings.warn(f"device {member.device} was taken out of the run: {why}", stacklevel=2)
        with member.busy:
            member.attempts.worker.close()
