"""A real browser without a screen, for the pages that routetune writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BROWSERS = [
    Path(name) for name in ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    found = next((path for path in BROWSERS if path.exists()), None)
    if found is None:
        pytest.skip(f"no Chromium at {', '.join(map(str, BROWSERS))}")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(found), args=["--no-sandbox"])
        yield chromium
        chromium.close()


@contextmanager
def opened(browser: Any, file: Path, width: int = 1280, scheme: str = "light") -> Iterator[Any]:
    """The page, in which nothing may be logged or asked of any network."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    said: list[str] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url) if request.url != file.as_uri() else None)
    page.goto(file.as_uri())
    yield page
    page.close()
    assert not said
