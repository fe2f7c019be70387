"""An S3-compatible server on loopback, in a process of its own, that keeps its buckets as plain folders.

So it can be killed and started again, and what it holds can be looked at and damaged.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from routetune.tasks.store import Store, mirror, open_store

ENVIRONMENT = "0123456789abcdef"
FIRST, SECOND, THIRD = b"first engine" * 99, b"second engine" * 99, b"third engine" * 99
SECRET = "SWordThatNobodyMayEverSee0123456789"
KEY_ID = "AKIDTHATISNOTTOLD000"


class Server:
    """A server of the buckets that are the folders in `data`."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.port = _free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def variables(self) -> dict[str, str]:
        """What a process needs to find it."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_SESSION_TOKEN": "",
        }

    def bucket(self, name: str) -> Path:
        """The folder of a bucket; made if need be."""
        folder = self.data / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.data.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "localbucket", str(self.data), "--host", "127.0.0.1"]
        with (self.data.parent / "server.log").open("ab") as log:
            self.process = subprocess.Popen([*command, "--port", str(self.port)], stdout=log, stderr=log)
        for _ in range(600):
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError("the server did not come up")

    def freeze(self) -> None:
        """Have it take requests and answer none: what is sent now is in flight when it is killed."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        """End it at once, whatever it is doing."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Site:
    """Hosts that share a bucket which can be away, each with a cache of its own."""

    def __init__(self, url: str, bucket: Path, home: Path, patch: pytest.MonkeyPatch) -> None:
        self.url, self.bucket, self.home, self._patch = url, bucket, home, patch

    def open(self, host: str, write: bool = True) -> Store:
        """The store as a new process of a host opens it."""
        mirror._known.clear()
        self._patch.setenv("XDG_CACHE_HOME", str(self.home / host))
        return open_store(self.url, write)

    def go_away(self) -> None:
        self._patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # discard: nobody listens there

    def come_back(self, server: Server) -> None:
        self._patch.setenv("AWS_ENDPOINT_URL", server.variables["AWS_ENDPOINT_URL"])

    def files(self, name: str = "**/*") -> list[str]:
        return sorted(str(p.relative_to(self.bucket)) for p in self.bucket.glob(name) if p.is_file())


def manifest(route: str = "-a=on") -> dict[str, Any]:
    environment = {"backend": "onnxruntime", "device": "cpu", "version.onnxruntime": "1.32.0"}
    bound_to = {"target": {"model": "m"}, "environment": environment}
    return {"bound_to": bound_to, "route": route, "options": {}}


def publish(store: Store, data: bytes, **more: Any) -> int:
    digest = store.blobs.put_bytes(data)
    made = store.publications.publish("digits", ENVIRONMENT, digest, manifest(), **more)
    return made.reference.generation


def history(store: Store) -> list[int]:
    return [past.reference.generation for past in store.publications.history("digits")]


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
