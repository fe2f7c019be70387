"""`routetune` that stops itself (SIGSTOP) just before a chosen step on the store, for a test to do its worst.

The interpreter's own audit events tell the steps, so the code under test is the real code, unchanged.
ROUTETUNE_TEST_STOPPER holds a JSON object: "under" (the store's folder), and one of "at" (the number of a
step, from 0), "unseen" (labels: stop before the first step that is not one of them, in the part "part" of the
store where that is given) or "log" (a file that gets the label of every step).
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

EVENTS = (
    "open",
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.chmod",
    "os.truncate",
    "shutil.rmtree",
)


def label(event: str, path: str, under: str) -> str:
    """What kind of step it is: digests, run ids and the names of unfinished files are left out."""
    parts = [part for part in path.removeprefix(under).split("/") if part]
    plain = ["*" if re.search(r"[0-9a-f]{4}|^\d+$|^[0-9a-f]{2}$|^\.tmp-", part) else part for part in parts]
    unfinished = "unfinished " if any(part.startswith(".tmp-") for part in parts) else ""
    return f"{event} {unfinished}{'/'.join(plain)}"


class Stopper:
    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.under = str(Path(order["under"]).resolve())
        self.count = 0
        self.done = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.done or event not in EVENTS or not isinstance(arguments[0], (str, os.PathLike)):
            return
        path = os.fspath(arguments[0])
        if not path.startswith(self.under):
            return
        if event == "open" and not (
            isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        ):
            return
        self.step(label(event, path, self.under))
        self.count += 1

    def step(self, kind: str) -> None:
        order = self.order
        if "log" in order:
            os.write(self.log, f"{kind}\n".encode())
            return
        if "at" in order:
            self.done = self.count == order["at"]
        else:
            inside = kind.split(" ")[-1].startswith(order.get("part", ""))
            self.done = inside and kind not in order["unseen"]
        if self.done:
            if "told" in order:
                Path(order["told"]).write_text(kind)
            os.kill(os.getpid(), signal.SIGSTOP)

    def arm(self) -> None:
        if "log" in self.order:
            self.log = os.open(self.order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        sys.addaudithook(self)


if __name__ == "__main__":
    if found := os.environ.pop("ROUTETUNE_TEST_STOPPER", ""):
        Stopper(json.loads(found)).arm()
    from routetune.flows.cli import main

    sys.argv[0] = "routetune"
    main()
