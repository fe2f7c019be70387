"""The progress bar of a tune on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from routetune.tasks.report.progress import Snapshot


class Bar:
    """Shows trials done and excluded, the best so far, and the time left; on stderr."""

    def __init__(self) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[counts]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[best]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task("starting", total=None, counts="", best="", left="")
        self._progress.start()

    def update(self, snapshot: Snapshot) -> None:
        counts = f"{snapshot.done}/{snapshot.planned or '?'} trials, {snapshot.excluded} excluded"
        best = "" if snapshot.speed is None else f"best {snapshot.speed:.3f}x {snapshot.best}"
        left = "" if snapshot.seconds_left is None else f"~{snapshot.seconds_left:.0f} s left"
        self._progress.update(
            self._task,
            description=snapshot.stage,
            completed=snapshot.done,
            total=snapshot.planned,
            counts=counts if snapshot.done else "",
            best=best,
            left=left,
        )

    def close(self) -> None:
        self._progress.stop()
