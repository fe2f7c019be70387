"""Who is to blame when a worker dies: the route, what ran before it, or the machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from routetune.tasks.engines.worker import StepFailed
from routetune.tasks.errors import EnvironmentBroken
from routetune.tasks.trial import Outcome

#: After this many deaths in a row the control is run as a canary.
DEATHS_IN_A_ROW = 3

#: Ends of a step that may be the device's or the neighbours' doing as well as the route's.
DEATHS = frozenset({Outcome.CRASHED, Outcome.KILLED, Outcome.OUT_OF_MEMORY, Outcome.TIMED_OUT})


class Steps(Protocol):
    """What runs steps: a worker of this machine (`worker.Worker`), or one elsewhere."""

    def call(self, step: str, arguments: dict[str, Any], seconds: float, log: Path | None = None) -> Any: ...

    def restart(self) -> None: ...

    def cancel(self) -> None: ...

    def close(self) -> None: ...


class Attempts:
    """Runs steps in a worker so that a failure is blamed on a route only when it is the route's.

    Attributes:
        canary: runs the control; raises StepFailed when even that fails. None while there is no control.
    """

    def __init__(self, worker: Steps) -> None:
        self.worker = worker
        self.canary: Callable[[], None] | None = None
        self._deaths = 0

    def call(self, step: str, arguments: dict[str, Any], seconds: float, log: Path) -> Any:
        """The step's result.

        Raises:
            StepFailed: with outcome FLAKY when it died in a used process and passed in a fresh one.
            EnvironmentBroken: the control does not run any more either.
        """
        try:
            result = self._blameless(step, arguments, seconds, log)
        except StepFailed as failed:
            self._count(failed)
            raise
        self._deaths = 0
        return result

    def _blameless(self, step: str, arguments: dict[str, Any], seconds: float, log: Path) -> Any:
        try:
            return self.worker.call(step, arguments, seconds, log)
        except StepFailed as failed:
            if failed.outcome is Outcome.KILLED:
                # SIGKILL is somebody else's doing: where the step passes now, nothing is said of the route.
                return self.worker.call(step, arguments, seconds, log)
            if failed.fresh or failed.outcome is not Outcome.CRASHED:
                raise
            first = failed
        self.worker.call(step, arguments, seconds, log)
        reason = f"{first.reason}, and passed when tried again in a fresh process"
        raise StepFailed(Outcome.FLAKY, reason, fresh=True)

    def _count(self, failed: StepFailed) -> None:
        self._deaths = self._deaths + 1 if failed.outcome in DEATHS else 0
        if self._deaths < DEATHS_IN_A_ROW or self.canary is None:
            return
        self._deaths = 0
        self.worker.restart()
        try:
            self.canary()
        except StepFailed as broken:
            raise EnvironmentBroken(
                f"{DEATHS_IN_A_ROW} routes in a row ended their process, and then the control did too "
                f"({broken.reason}): the machine, driver or library is at fault, so no route is blamed. "
                "Mend it and run again; what was finished is kept"
            ) from broken
