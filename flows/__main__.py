"""`python -m routetune.flows` is `routetune`, for where the script is not on the path."""

from routetune.flows.cli import main

main()
