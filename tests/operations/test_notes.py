"""A target fails: the note that a person gets, through the example automation and a real webhook."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml

from tests.operations.site import ROOT, Site

#: Injected, since no good library refuses every build of a good model.
BROKEN = """
from routetune.tasks.engines.base import BuildError
from stand_in_backend import CpuAsGpu

class Broken(CpuAsGpu):
    def build(self, order):
        raise BuildError("no tactic found")
"""
SAVE = "from prefect.blocks.webhook import Webhook; print(Webhook(url={url!r}).save('routetune-notes'))"
RETUNE = "from routetune.flows.retune import retune; retune({targets!r})"


@contextmanager
def listener() -> Iterator[tuple[str, queue.Queue[str]]]:
    """Something like a chat: its address, and what is posted there."""
    posted: queue.Queue[str] = queue.Queue()

    class Chat(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.put(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Chat)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", posted
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def automation(folder: Path, block: str) -> Path:
    """The example file, with the id of a block."""
    told = yaml.safe_load((ROOT / "docs/examples/webhook.yaml").read_text())
    told["automations"][0]["actions"][0]["block_document_id"] = block
    path = folder / "webhook.yaml"
    path.write_text(yaml.safe_dump(told))
    return path


@pytest.mark.slow
def test_a_failed_target_reaches_a_person(site: Site) -> None:
    (site.machine.folder / "broken.py").write_text(BROKEN)
    site.machine.write_target(site.targets / "bad.toml", backend="broken:Broken")
    site.machine.write_target(site.targets / "good.toml")
    with listener() as (url, posted):
        block = site.python(SAVE.format(url=url)).split()[-1]
        site.run(
            "prefect", "--no-prompt", "automation", "create", "--from-file", automation(site.folder, block)
        )
        site.python(RETUNE.format(targets=str(site.targets)))
        text = json.loads(posted.get(timeout=60))["text"]
    assert text.startswith("routetune.target.failed: bad on ")
    assert "no tactic found" in text
    assert site.state()["good"] == "fresh"
