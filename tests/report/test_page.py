"""The report in a real browser: the slider moves the winner, it fits a phone, and nothing calls out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from routetune.tasks.errors import BadInput
from routetune.tasks.report.canvas import Colours
from routetune.tasks.report.course import LANES
from routetune.tasks.report.drawings import course_picture
from routetune.tasks.report.page import write_report
from routetune.tasks.store import Store, open_store

from tests.browser import browser, opened
from tests.report.planted import crashed, record, sixteen, trial, write_target

__all__ = ["browser"]

WIDTHS = {"phone": 390, "desk": 1280}
#: Text of a model or a library that would be a page of its own, were it not escaped.
HOSTILE = (
    "</script><script>document.title='owned'</script><img src=http://127.0.0.1:9/x onerror=alert(1)>$x^2$"
)


@pytest.fixture
def store(store_folder: Path) -> Store:
    return open_store(store_folder)


def written(path: Path, store: Store) -> Path:
    return Path(write_report(path, store, None, path.with_suffix(".html"))["file"])


def slide(page: Any, value: int) -> dict[str, str]:
    """Move the slider as a person does, and read what the page says then."""
    page.locator("#epsilon").fill(str(value))
    names = ("epsilon", "eligible", "speed", "loss", "top1", "route")
    return {name: page.locator(f"#at-{name}").inner_text() for name in names}


def ring(page: Any) -> tuple[float, float]:
    box = page.locator("#frontier-winner").bounding_box()
    return round(box["x"] + box["width"] / 2, 1), round(box["y"] + box["height"] / 2, 1)


@pytest.mark.slow
def test_the_slider_moves_the_winner(browser: Any, store: Store, tmp_path: Path) -> None:
    path = write_target(tmp_path)
    record(path, store, sixteen())
    with opened(browser, written(path, store)) as page:
        assert page.locator("#epsilon").input_value() == "9", "it begins at the ε of the target, 0.25"
        at_first, points = ring(page), page.locator("#frontier-points use")
        assert points.count() == 16
        everything = slide(page, 16)
        assert everything == {
            "epsilon": "0.46875",
            "eligible": "16",
            "speed": "2.750x [2.723, 2.777]",
            "loss": "0.4375",
            "top1": "56.25%",
            "route": "@p1=on @p2=on @p3=on",
        }
        assert page.locator("#frontier-points use.over").count() == 0
        right, above = ring(page)
        assert right > at_first[0] and above < at_first[1], "more is allowed, and it is faster"
        # The ring is around the very point whose title is the route.
        names = points.evaluate_all("all => all.map(one => one.querySelector('title').textContent)")
        boxes = points.evaluate_all(
            "all => all.map(one => { const b = one.getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2] })"
        )
        wanted = boxes[names.index(everything["route"])]
        assert wanted == pytest.approx([right, above], abs=1.5)
        assert slide(page, 1)["route"] == "default route"
        assert page.locator("#frontier-points use.over").count() == 15
        nothing = slide(page, 0)
        assert (nothing["eligible"], nothing["route"]) == ("0", "no route is eligible")
        assert not page.locator("#frontier-winner").is_visible()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_it_fits_and_can_be_read(browser: Any, store: Store, tmp_path: Path, width: int, scheme: str) -> None:
    path = write_target(tmp_path)
    long = {f"-a_knob_with_a_very_long_name_indeed_{at}": "on" for at in range(12)}
    record(path, store, [*sixteen(), trial(long, 0.01, 0.9), crashed({"-b": "1"}, "why " * 200)])
    with opened(browser, written(path, store), width, scheme) as page:
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        ink, card = (
            page.evaluate(f"getComputedStyle(document.querySelector('{what}')).{which}")
            for what, which in (("figure svg text", "fill"), ("section", "backgroundColor"))
        )
        assert abs(lightness(ink) - lightness(card)) > 0.6, (ink, card)


def lightness(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    return sum(parts) / 3


@pytest.mark.slow
def test_hostile_text_stays_text(browser: Any, store: Store, tmp_path: Path) -> None:
    path = write_target(tmp_path)
    name = "-" + HOSTILE.replace(" ", "").replace("=", "")
    trials = [*sixteen(), trial({name: HOSTILE.replace(" ", "")}, 0.0, 9.0), crashed({"-b": "1"}, HOSTILE)]
    record(path, store, trials)
    with opened(browser, written(path, store)) as page:
        assert page.title() != "owned"
        assert page.locator("img").count() == 0 and page.locator("script").count() == 2
        assert HOSTILE in page.locator("[data-name=reason]").first.inner_text()
        assert slide(page, 1)["route"].startswith("-</script>")


def test_the_file_holds_all_it_shows(store: Store, tmp_path: Path) -> None:
    path = write_target(tmp_path)
    with pytest.raises(BadInput, match="routetune tune"):
        write_report(path, store, None, None)
    record(path, store, [*sixteen(), crashed({"-b": "1"}, "crashed (SIGSEGV)")])
    text = written(path, store).read_text()
    addresses = set(re.findall(r'(?:src|href|url)\s*[=(]\s*"?([^"\')\s>]+)', text))
    assert all(one.startswith("#") for one in addresses), addresses
    assert "default-src 'none'" in text
    data = re.search(r'<script type="application/json" id="steps">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    steps = json.loads(data[1])["steps"]
    assert [step["eligible"] for step in steps] == list(range(16, -1, -1))
    assert len(text) < 400_000


def test_it_shows_what_became_of_trials_and_what_the_search_tells(store: Store, tmp_path: Path) -> None:
    path = write_target(tmp_path)
    plain = [trial({}, 0.0, 1.0), trial({"-a": "1"}, 0.0, 2.0), crashed({"-c": "1"}, "crashed (SIGSEGV)")]
    others = [
        trial({"-b": "1"}, 0.0, 2.0, alias_of="x"),
        trial({"-d": "1"}, 0.0, 0.1, abandoned=True),
        trial({"-e": "1"}, 0.0, 1.5, cached=("build",)),
    ]
    record(path, store, [*plain, *others])
    text = written(path, store).read_text()
    assert "2 built, 1 from the store, 1 alias, 1 given up, 1 failed" in text
    assert "What each knob does" in text and "-a=1" in text, "without a word of the search the trials tell"

    effect = {"knob": "-told", "value": "9", "ratio": 2.0, "low": 1.5, "high": 2.5, "trials": 1}
    explanation = {
        "effects": [effect | {"inseparable": False}],
        "never_tried": [{"knob": "-f", "values": ["2", "3"]}],
        "next": ["-f=2"],
        "pruning": {"idle": ["-g"]},
        "priors": [{"route": "-h=1", "source": "winner", "origin": "other", "speed": 1.25, "likeness": 0.5}],
    }
    record(path, store, [*plain, *others], explanation)
    text = written(path, store).read_text()
    assert "-told=9" in text
    for sentence in (
        "tried first: -h=1 (won other, 1.250x there, likeness 0.50)",
        "tried last, since they do nothing on this model: -g",
        "never tried: -f=2|3",
        "would be tried next: -f=2",
    ):
        assert f"<li>{sentence}</li>" in text


def test_lanes_keep_their_colours() -> None:
    """Whatever lanes a run has: what failed must not be shown as what was built."""
    colours = Colours()
    for lanes in (("failed",), LANES):
        svg = course_picture({name: [(0.0, 1.0)] for name in lanes}, colours).svg()
        assert (colours.bad in svg) and (colours.winner in svg) == ("built" in lanes)


def test_the_command_says_where_the_file_is(
    store: Store, tmp_path: Path, routetune: Callable[..., Any]
) -> None:
    path, output = write_target(tmp_path), tmp_path / "out.html"
    record(path, store, sixteen())
    process = routetune("report", path, "--output", output, "--json")
    assert process.returncode == 0, process.stderr
    assert Path(json.loads(process.stdout)["file"]) == output and output.stat().st_size > 10_000
