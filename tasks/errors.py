"""The errors a user can meet, each with the exit code of the command line."""

from __future__ import annotations

from typing import Any


class RoutetuneError(Exception):
    """Base of every error shown to a user as one sentence, without a traceback.

    The message names the object, what was expected, what was found and what to do.
    """

    exit_code = 1

    def __init__(self, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        #: What a program would want to know besides the sentence, as plain JSON.
        self.details = details or {}


class BadInput(RoutetuneError):
    """A target, model, input, route or option that cannot be accepted; raised before any build."""

    exit_code = 2


class NotHere(BadInput):
    """This machine lacks the device or the library that is asked for; on another one nothing is wrong."""


class EnvironmentBroken(RoutetuneError):
    """The control itself no longer builds or runs, so no route can be blamed; the run stops."""


class NoEligibleRoute(RoutetuneError):
    """The search ended without a single route that is both runnable and accurate enough."""

    exit_code = 4


class NeedsBuild(RoutetuneError):
    """What is asked for cannot be had from what the store holds: the target must be tuned."""


class Terminated(BaseException):
    """SIGTERM, as from `systemctl stop` or at a shutdown. Like Ctrl-C it is not for a step to handle."""

    exit_code = 143
