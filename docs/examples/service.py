"""An inference service over a published engine: numpy in, numpy out, and new generations without a restart.

    ROUTETUNE_STORE=/srv/routetune python service.py digits --port 8080

    GET  /       which generation is served, and what is stale about it, as JSON
    POST /       the inputs as an npz file; the answer is the outputs as an npz file

Only the standard library, numpy, routetune's loader and the engine's own runtime are used.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from routetune.tasks.errors import RoutetuneError
from routetune.tasks.service import Published, current_engine, has_moved, load_runner


class Model:
    """The current engine of a target, loaded; replaced as a whole when another generation is current."""

    def __init__(self, target: str, strict: bool) -> None:
        self.target = target
        self.strict = strict
        self.turn = threading.Lock()  # a runner is for one thread at a time
        self.published, self.runner = self._load()

    def infer(self, inputs: dict[str, Any]) -> tuple[dict[str, Any], int]:
        """The outputs, and the generation that computed them."""
        with self.turn:
            return self.runner.infer(inputs), self.published.manifest["generation"]

    def refresh(self) -> None:
        """Take over a new generation; until it is checked and loaded, the old one goes on serving."""
        if not has_moved(self.published):
            return
        loaded = self._load()
        with self.turn:
            old, (self.published, self.runner) = self.runner, loaded
        old.close()

    def _load(self) -> tuple[Published, Any]:
        published = current_engine(self.target, strict=self.strict)
        return published, load_runner(published)


def follow(model: Model, seconds: float, stop: threading.Event) -> None:
    """Look for a new generation every so often. What is wrong with it is said; it is not served."""
    while not stop.wait(seconds):
        try:
            model.refresh()
        except (RoutetuneError, OSError, RuntimeError) as error:
            print(f"service: the engine in use stays: {error}", file=sys.stderr, flush=True)


class Handler(BaseHTTPRequestHandler):
    model: Model

    def do_GET(self) -> None:
        published = self.model.published
        told = {
            "target": self.model.target,
            "generation": published.manifest["generation"],
            "route": published.manifest["route"],
            "stale": list(published.stale or ()),
        }
        self._answer(200, json.dumps(told).encode(), "application/json")

    def do_POST(self) -> None:
        try:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            with np.load(io.BytesIO(body), allow_pickle=False) as arrays:
                inputs = dict(arrays)
            outputs, generation = self.model.infer(inputs)
        except (RoutetuneError, ValueError, OSError, EOFError) as error:
            self._answer(400, json.dumps({"error": str(error)}).encode(), "application/json")
            return
        buffer = io.BytesIO()
        np.savez(buffer, **outputs)
        self._answer(200, buffer.getvalue(), "application/octet-stream", generation)

    def log_message(self, *_: Any) -> None:
        """Quiet: a request is no event."""

    def _answer(self, code: int, body: bytes, kind: str, generation: int | None = None) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if generation is not None:
            self.send_header("X-Generation", str(generation))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve the published engine of a target.")
    parser.add_argument("target", help="the target's name")
    parser.add_argument("--port", type=int, default=8080, help="0 for a free one")
    parser.add_argument("--poll", type=float, default=5.0, help="seconds between two looks for a new engine")
    parser.add_argument("--strict", action="store_true", help="serve no engine that is stale in anything")
    chosen = parser.parse_args()
    try:
        Handler.model = Model(chosen.target, chosen.strict)
    except RoutetuneError as error:
        sys.exit(f"service: {error}")
    stop = threading.Event()
    threading.Thread(target=follow, args=(Handler.model, chosen.poll, stop), daemon=True).start()
    with ThreadingHTTPServer(("127.0.0.1", chosen.port), Handler) as server:
        print(f"serving {chosen.target} on port {server.server_address[1]}", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            stop.set()


if __name__ == "__main__":
    main()
