"""What a person sees in a browser: Prefect's own pages of a run."""

from __future__ import annotations

import pytest

from tests.machine import OLD
from tests.operations.site import Site, browse, browser, eventually


@pytest.mark.slow
@pytest.mark.skipif(browser() is None, reason="Chromium is not installed")
def test_the_pages_of_a_run(site: Site) -> None:
    site.ask("tune", site.machine.write_target(site.targets / "seen.toml"))
    pages = site.server.url.removesuffix("/api")
    [run] = site.server.post("/flow_runs/filter", flow_runs={"tags": {"all_": ["target:seen"]}})
    shown = browse(f"{pages}/runs/flow-run/{run['id']}", "--dump-dom")
    for text in ("tune seen on NVIDIA L4", "gpu:NVIDIA L4", f"driver:{OLD}", "Completed"):
        assert text in shown, text

    body = {"key": {"any_": ["summary-seen"]}}
    [summary] = eventually(lambda: site.server.post("/artifacts/filter", artifacts=body), 15, "the artifact")
    shown = browse(f"{pages}/artifacts/artifact/{summary['id']}", "--dump-dom")
    for text in ("Excluded", "generation 1", f"/runs/flow-run/{run['id']}", "/artifacts/key/trials-seen"):
        assert text in shown, text
