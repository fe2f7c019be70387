"""The errors a user can meet, each with the exit code of the command line."""


class RoutetuneError(Exception):
    """Base of every error shown to a user as one sentence, without a traceback.

    The message names the object, what was expected, what was found and what to do.
    """

    exit_code = 1


class BadInput(RoutetuneError):
    """A target, model, input, route or option that cannot be accepted; raised before any build."""

    exit_code = 2


class EnvironmentBroken(RoutetuneError):
    """The control itself no longer builds or runs, so no route can be blamed; the run stops."""


class NoEligibleRoute(RoutetuneError):
    """The search ended without a single route that is both runnable and accurate enough."""

    exit_code = 4
