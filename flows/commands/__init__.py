"""The commands, a module for each noun; importing it registers them in the order of the help."""

from routetune.flows.commands import tuning, retuning, publications, frontier, reporting  # noqa: F401, I001
from routetune.flows.commands import serving, routes, experience, machine  # noqa: F401
from routetune.flows.commands.common import answer, app

__all__ = ["answer", "app"]
