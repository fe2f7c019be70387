"""Makes the pictures of the docs, from a real tune: the frontier, and the report on a desk and on a phone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from routetune.data import folder

from tests.browser import browser, opened

__all__ = ["browser"]

IMAGES = Path(__file__).parents[2] / "docs" / "images"
#: Name -> width, height and colours. Not the whole page: what is below names folders of whoever made it.
SHOTS = {
    "report": (1280, 1700, "light"),
    "report-dark": (1280, 1700, "dark"),
    "report-phone": (390, 1300, "light"),
}


@pytest.mark.benchmark
def test_pictures(
    browser: Any,
    routetune: Callable[..., Any],
    tmp_path: Path,
    prefect_url: str,
) -> None:
    targets = folder() / "targets"
    target = next(path for name in ("digits_qdq", "digits") if (path := targets / f"{name}.toml").exists())
    process = routetune("tune", target, "--json", PREFECT_API_URL=prefect_url)
    assert process.returncode == 0, process.stderr
    page = tmp_path / "report.html"
    assert json.loads(routetune("report", target, "--output", page, "--json").stdout)["bytes"]
    IMAGES.mkdir(exist_ok=True)
    assert routetune("frontier", target, "--plot", IMAGES / "frontier.png").returncode == 0
    shoot(browser, page, IMAGES)
    assert all(path.stat().st_size <= 300_000 for path in IMAGES.glob("*.png"))


def shoot(chromium: Any, file: Path, place: Path) -> None:
    for name, (width, height, scheme) in SHOTS.items():
        with opened(chromium, file, width, scheme) as page:
            clip = {"x": 0, "y": 0, "width": width, "height": height}
            page.screenshot(path=place / f"{name}.png", clip=clip, full_page=True)
