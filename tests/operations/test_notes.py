"""A target fails, a gain is lost: the notes that a person gets, by the example automation and a webhook."""

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
from routetune.tasks.store import open_store

from tests.flows.test_challenge import OURS
from tests.machine import NEW
from tests.operations.site import ROOT, Site

#: Injected, since no good library refuses every build of a good model.
BROKEN = """
from routetune.tasks.engines.base import BuildError
from stand_in_backend import CpuAsGpu

class Broken(CpuAsGpu):
    def build(self, order):
        raise BuildError('no "tactic"\\nfound')
"""
SAVE = "from prefect.blocks.webhook import Webhook; print(Webhook(url={url!r}).save('routetune-notes'))"


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


def inflate(site: Site, name: str) -> None:
    """Publish again what is published, as if it had been a hundred times faster than its default route."""
    store = open_store(site.folder / "store")
    [environment] = store.publications.environments(name)
    published = store.publications.current(name, environment)
    assert published is not None
    manifest = {key: value for key, value in published.manifest.items() if key not in OURS}
    manifest["speed"] = {"ratio": 100.0, "low": 99.0, "high": 101.0, "loads": 3}
    store.publications.publish(name, environment, published.reference.engine, manifest)


@pytest.mark.slow
def test_a_failed_target_and_a_lost_gain_reach_a_person(site: Site) -> None:
    (site.machine.folder / "broken.py").write_text(BROKEN)
    site.machine.write_target(site.targets / "bad.toml", backend="broken:Broken")
    site.machine.write_target(site.targets / "good.toml")
    with listener() as (url, posted):
        block = site.python(SAVE.format(url=url)).split()[-1]
        site.run(
            "prefect", "--no-prompt", "automation", "create", "--from-file", automation(site.folder, block)
        )
        site.ask("retune", site.targets, code=1)
        text = json.loads(posted.get(timeout=60))["text"]
        assert text.startswith("routetune.target.failed: bad on ")
        assert 'no "tactic"' in text
        assert site.state()["good"] == "fresh"

        (site.targets / "bad.toml").unlink()
        inflate(site, "good")
        site.machine.set(driver=NEW)
        report = site.ask("retune", site.targets, code=6)
        assert report["lost"] == ["good"] and report["targets"][0]["speed_before"]["ratio"] == 100
        text = json.loads(posted.get(timeout=60))["text"]
        assert text.startswith("routetune.gain.lost: good on ") and "after 100.000x" in text
    assert site.ask("retune", site.targets)["counts"] == {"fresh": 1}, "told once"
