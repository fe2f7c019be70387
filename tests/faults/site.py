"""A place where faults happen: a model, a target, a store, and tunes of it in processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import psutil
from routetune.data import folder

HERE = Path(__file__).parent
#: A tune here takes some five seconds on a quiet machine; one that takes this long hangs.
LIMIT = 400.0
#: How long what a dead run started may still be seen.
SURVIVAL = 20.0

TARGET = """
schema = 1
name = "{name}"
model = "model.onnx"
backend = "{backend}"
[shapes]
x = "32x1x8x8"
[reference]
inputs = "inputs.npz"
labels = "y"
[accuracy]
metric = "lInf"
tolerance = {tolerance}
[search]
routes = {routes}
algorithm = "{algorithm}"
[budget]
trial_seconds = {trial_seconds}
[timing]
seconds = 0.02
width = 0.9
loads = 1
finalists = 1
confidence = 0.5
[engine]
device = "cpu"
"""

#: The default route is off by 3e-6, level "disabled" by nothing, one without prepacking by 2e-5.
TOLERANCE = 1e-5
ROUTES = ["-graph_optimization_level=[disabled|all] -session.disable_prepacking=[0|1]"]


@dataclass
class Ended:
    """A tune that is over.

    Attributes:
        code: its exit code; negative where a signal ended it; None where it took too long and was killed.
    """

    code: int | None
    out: str
    err: str

    @property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


@dataclass
class Tune:
    """A tune in a process of its own.

    Attributes:
        limit: seconds that it may take from when it is waited for.
        ended: how it went, once a case has waited for it.
    """

    process: subprocess.Popen[str]
    limit: float
    answers: Path
    was_killed: bool = False
    ended: Ended | None = None

    def wait(self) -> Ended:
        try:
            self.process.wait(self.limit)
            code: int | None = self.process.returncode
        except subprocess.TimeoutExpired:
            kill_tree(self.process.pid)
            self.process.wait()
            code = None
        out, err = (self.answers.with_suffix(end).read_text(errors="replace") for end in (".out", ".err"))
        return Ended(code, out, err)

    def kill(self) -> None:
        """SIGKILL to the run alone: what it started has to notice by itself."""
        self.was_killed = True
        os.kill(self.process.pid, signal.SIGKILL)

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def wait_until_stopped(self) -> bool:
        """Whether it has stopped itself, or else has ended."""
        deadline = time.monotonic() + self.limit
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                if psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED:
                    return True
            except psutil.NoSuchProcess:
                break
            time.sleep(0.02)
        return False

    def workers(self) -> list[psutil.Process]:
        return self._children("routetune.tasks.engines.child")

    def servers(self) -> list[psutil.Process]:
        """The Prefect server that the run has started itself, where none is named."""
        return self._children("prefect.server.api.server:create_app")

    def _children(self, argument: str) -> list[psutil.Process]:
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if argument in child.cmdline():
                    found.append(child)
        return found


def kill_tree(pid: int) -> None:
    with_children = [psutil.Process(pid)] if psutil.pid_exists(pid) else []
    for one in [
        child for parent in with_children for child in parent.children(recursive=True)
    ] + with_children:
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue


@dataclass
class Site:
    """A folder with a target over the sample CNN, and its store.

    Attributes:
        variables: environment variables of every tune here.
    """

    folder: Path
    server: str
    variables: dict[str, str] = field(default_factory=dict)
    target: Path = Path()
    tolerance: float = TOLERANCE
    _tunes: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder() / "models/digits_cnn.onnx", self.model)
        shutil.copy(folder() / "inputs/digits.npz", self.folder / "inputs.npz")
        self.target = self.write()

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def model(self) -> Path:
        return self.folder / "model.onnx"

    def write(self, name: str = "faulty", **fields: Any) -> Path:
        """A target file; `fields` change what is usual here."""
        path = self.folder / f"{name}.toml"
        usual = {
            "backend": "onnxruntime",
            "tolerance": self.tolerance,
            "routes": json.dumps(ROUTES),
            "algorithm": "full",
            "trial_seconds": 20,
        }
        path.write_text(TARGET.format(name=name, **usual | fields))
        return path

    def take_store(self, other: Site, without: tuple[str, ...] = ()) -> None:
        """Begin with a copy of another site's store."""
        shutil.copytree(other.store, self.store, ignore=lambda at, names: set(without) & set(names))

    def own_devices(self) -> None:
        """Let the locks of devices be those of this site alone, in its own folder."""
        self.variables["XDG_RUNTIME_DIR"] = str(self.folder)

    def with_sidecar(self) -> Path:
        """Move the weights of the model into a file beside it."""
        model = onnx.load(self.model)
        self.model.unlink()
        onnx.save(model, self.model, save_as_external_data=True, location="weights.bin", size_threshold=0)
        return self.folder / "weights.bin"

    def start(
        self,
        *arguments: str,
        target: Path | None = None,
        stop: dict[str, Any] | None = None,
        command: str = "tune",
        inside: tuple[str, ...] = (),
        **variables: str,
    ) -> Tune:
        """A tune, or another command, as `inside` starts it: a program that takes the process for it."""
        self._tunes += 1
        answers = self.folder / f"tune-{self._tunes}"
        environment = os.environ | {
            "ROUTETUNE_STORE": str(self.store),
            "PREFECT_API_URL": self.server,
            "PYTHONPATH": str(HERE),
        }
        if stop is not None:
            environment["ROUTETUNE_TEST_STOPPER"] = json.dumps({"under": str(self.store), **stop})
        started = [sys.executable, str(HERE / "stopper.py"), command, str(target or self.target), "--json"]
        with answers.with_suffix(".out").open("wb") as out, answers.with_suffix(".err").open("wb") as err:
            process = subprocess.Popen(
                [*inside, *started, *arguments],
                env=environment | self.variables | variables,
                stdout=out,
                stderr=err,
                text=True,
            )
        return Tune(process, LIMIT, answers)

    @contextmanager
    def running(self, *arguments: str, **options: Any) -> Iterator[Tune]:
        """As `start`; what is still there afterwards is ended."""
        tune = self.start(*arguments, **options)
        try:
            yield tune
        finally:
            kill_tree(tune.process.pid)
            tune.process.wait()

    def survivors(self) -> list[str]:
        """What still works in the scratch folders of the store when nothing should; it is ended."""
        deadline = time.monotonic() + SURVIVAL
        while found := list(_working_under(self.store / "scratch")):
            if time.monotonic() > deadline:
                for one in found:
                    one.kill()
                return [f"process {one.pid} outlives its run" for one in found]
            time.sleep(0.1)
        return []


def _working_under(place: Path) -> Iterator[psutil.Process]:
    for one in psutil.process_iter():
        try:
            if one.cwd().startswith(str(place)) and one.status() != psutil.STATUS_ZOMBIE:
                yield one
        except psutil.Error:
            continue
