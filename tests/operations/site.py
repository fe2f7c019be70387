"""An installation for tests: a real Prefect server, a machine with a GPU, targets, a store, processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tests.machine import Machine

ROOT = Path(__file__).parents[2]
Found = TypeVar("Found")

#: How often the served process and the worker ask for work, in seconds.
ASKING = {"PREFECT_RUNNER_POLL_FREQUENCY": "2", "PREFECT_WORKER_QUERY_SECONDS": "2"}


def allowed(seconds: float) -> float:
    """A limit as it is meant for a machine of our own, longer where others crowd it.

    What these tests themselves start keeps two processes a core busy.
    """
    crowd = os.getloadavg()[0] / (2 * len(os.sched_getaffinity(0)))
    return seconds * max(1.0, crowd)


def eventually(ask: Callable[[], Found], seconds: float, what: str) -> Found:
    """The first answer that is true; fails when there is none in the time `allowed`."""
    deadline = time.monotonic() + allowed(seconds)
    while time.monotonic() < deadline:
        if answer := ask():
            return answer
        time.sleep(0.25)
    raise AssertionError(f"not within {seconds:g} s: {what}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def process(command: list[str], variables: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, its output in `log`; asked to end, then made to."""
    with log.open("ab") as output:
        started = subprocess.Popen(
            command, env=os.environ | variables, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield started
    finally:
        if started.poll() is None:
            started.send_signal(signal.SIGTERM)
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            kill_tree(started.pid)
            started.wait(20)


def kill_tree(pid: int) -> None:
    """SIGKILL a process and everything it started, all at once, as the kernel does when memory runs out."""
    import psutil

    parent = psutil.Process(pid)
    for one in [*parent.children(recursive=True), parent]:
        one.kill()


def browser() -> str | None:
    """The program of Chromium, or None."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


def browse(page: str, *arguments: str) -> str:
    """Open a page in a browser without a screen, until its requests are answered; what the browser prints."""
    program = browser()
    assert program, "install chromium"
    with tempfile.TemporaryDirectory() as profile:
        command = [program, "--headless", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={profile}"]
        command += ["--virtual-time-budget=20000", "--window-size=1400,1000", *arguments, page]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


@dataclass
class Server:
    """A Prefect server, with nothing of this process's settings.

    Attributes:
        url: of the API.
        variables: for processes that use it.
        pid: of its process.
    """

    url: str
    variables: dict[str, str]
    pid: int

    def send(self, number: signal.Signals) -> None:
        """A signal to all that the server is made of."""
        import psutil

        server = psutil.Process(self.pid)
        for one in [server, *server.children(recursive=True)]:
            one.send_signal(number)

    def post(self, path: str, **body: Any) -> Any:
        deadline = time.monotonic() + 60
        while True:
            answer = httpx.post(f"{self.url}{path}", json=body, timeout=30)
            # A server whose SQLite is locked asks to come again, as every client of Prefect's does.
            if answer.status_code != 503 or time.monotonic() > deadline:
                break
            time.sleep(1)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def runs(self, deployment: str, *types: str) -> list[dict[str, Any]]:
        """The flow runs of a deployment, by its name; of the state types given, or of all."""
        body: dict[str, Any] = {"deployments": {"name": {"any_": [deployment]}}}
        if types:
            body["flow_runs"] = {"state": {"type": {"any_": list(types)}}}
        found: list[dict[str, Any]] = self.post("/flow_runs/filter", **body)
        return found

    def deployment(self, name: str) -> dict[str, Any] | None:
        found = self.post("/deployments/filter", deployments={"name": {"any_": [name]}})
        return found[0] if found else None


@contextmanager
def serving(folder: Path, database: str | None = None) -> Iterator[Server]:
    """`prefect server start` with its home in `folder`, on SQLite or on the database of an URL."""
    folder.mkdir(parents=True, exist_ok=True)
    url = f"http://127.0.0.1:{(port := free_port())}/api"
    variables = {"PREFECT_HOME": str(folder), "PREFECT_API_URL": url, "PREFECT_SERVER_ANALYTICS_ENABLED": "0"}
    variables |= {"PREFECT_SERVER_LOGGING_LEVEL": "WARNING", "DO_NOT_TRACK": "1", "PREFECT_UI_URL": url[:-4]}
    if database:
        variables["PREFECT_API_DATABASE_CONNECTION_URL"] = database
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]

    def answers() -> bool:
        assert started.poll() is None, (folder / "server.log").read_text()
        try:
            return httpx.get(f"{url}/health", timeout=2).is_success
        except httpx.HTTPError:
            return False

    with process(command, variables, folder / "server.log") as started:
        eventually(answers, 120, "the server answers")
        yield Server(url, variables, started.pid)


class Site:
    """What an operator has: a server, a machine whose driver moves, a folder of targets and a store."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder, self.server = folder, server
        self.machine = Machine(folder / "machine")
        self.targets = folder / "targets"
        self.variables = {
            **server.variables,
            **self.machine.variables,
            **ASKING,
            "ROUTETUNE_STORE": str(folder / "store"),
            "ROUTETUNE_TARGETS": str(self.targets),
            "ROUTETUNE_POOL": f"pool-{folder.name}",
            "ROUTETUNE_KIND": "NVIDIA L4",
        }

    def run(self, module: str, *arguments: str | Path, code: int = 0) -> str:
        """Run `python -m module` to its end; what it printed."""
        return self._run(["-m", module, *map(str, arguments)], code)

    def python(self, text: str) -> str:
        """Run a line of Python; what it printed."""
        return self._run(["-c", text], 0)

    def _run(self, arguments: list[str], code: int) -> str:
        ended = subprocess.run(
            [sys.executable, *arguments],
            env=os.environ | self.variables,
            cwd=ROOT,
            text=True,
            capture_output=True,
            timeout=300,
        )
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout

    def ask(self, *arguments: str | Path, code: int = 0) -> dict[str, Any]:
        """A command of routetune; its answer."""
        answer: dict[str, Any] = json.loads(self.run("routetune.flows", *arguments, "--json", code=code))
        return answer

    def state(self) -> dict[str, str]:
        """What `status` says of each target."""
        return {one["target"]: one["state"] for one in self.ask("status", self.targets)["targets"]}

    @contextmanager
    def served(self) -> Iterator[str]:
        """`routetune serve`; the name of its deployment."""
        name = f"served-{self.folder.name}"
        command = [sys.executable, "-m", "routetune.flows", "serve", str(self.targets), "--name", name]
        log = self.folder / "serve.log"
        before = log.read_text().count("serving retune") if log.exists() else 0
        with process(command, self.variables, log) as started:
            eventually(
                lambda: started.poll() is not None or log.read_text().count("serving retune") > before,
                60,
                "the deployment is served",
            )
            assert started.poll() is None, log.read_text()
            yield name

    def deploy(self, kind: str = "") -> str:
        """The project's own prefect.yaml on a new pool, that of another kind of GPU where one is named.

        Returns: the name of the deployment.
        """
        mine = dict(self.variables)
        if kind:
            self.variables |= {"ROUTETUNE_KIND": kind, "ROUTETUNE_POOL": f"{mine['ROUTETUNE_POOL']}-other"}
        pool = self.variables["ROUTETUNE_POOL"]
        self.run("prefect", "--no-prompt", "work-pool", "create", "--type", "process", pool)
        self.run("prefect", "--no-prompt", "deploy", "--all", "--prefect-file", ROOT / "prefect.yaml")
        self.variables = mine
        return pool

    @contextmanager
    def worker(self) -> Iterator[subprocess.Popen[bytes]]:
        """`prefect worker start` on that pool."""
        pool = self.variables["ROUTETUNE_POOL"]
        command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--limit", "1"]
        with process(command, self.variables, self.folder / "worker.log") as started:
            yield started
