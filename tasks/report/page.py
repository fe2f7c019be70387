"""The report of a run as one HTML file that holds all it shows: text, pictures, a slider, and no network."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from routetune.tasks.errors import RoutetuneError
from routetune.tasks.report import document as documents
from routetune.tasks.report.course import course
from routetune.tasks.report.document import MANY, STRONGEST, Document, open_document
from routetune.tasks.report.summary import DEFAULT
from routetune.tasks.store.files import write_atomically
from routetune.tasks.verdicts.figures import percentiles

if TYPE_CHECKING:
    from routetune.tasks.report.canvas import Picture
    from routetune.tasks.store import Store

#: Colours that stand for the page's own until it says which, so that pictures follow light and dark.
_STAND_INS = {
    "ink": "#010203",
    "faint": "#010204",
    "control": "#010205",
    "winner": "#010206",
    "point": "#010207",
    "bad": "#010208",
}


def write_report(path: Path, store: Store, run: str | None, output: Path | None) -> dict[str, Any]:
    """Write the report of a target's run, and say where it is, as plain JSON.

    Args:
        output: the file; by default the target's name with .html, in this folder.

    Raises:
        BadInput: there is no such run, or it has no trials.
        RoutetuneError: a library that draws is missing.
    """
    document = open_document(path, store, run)
    output = output or Path(f"{document.subject.target.name}.html")
    raw = page(document).encode()
    write_atomically(output.absolute(), raw)
    return {
        "target": document.subject.target.name,
        "run": document.found.run.id,
        "file": str(output.absolute()),
        "bytes": len(raw),
        "headline": documents.headline(document),
    }


def page(document: Document) -> str:
    """The whole file. Every text of a target or a library is escaped; data is JSON that no tag can end."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise RoutetuneError(
            "the report is made with jinja2, which is not installed: run 'pip install routetune[report]'"
        ) from None
    templates = Environment(
        loader=PackageLoader("routetune.tasks.report"), autoescape=True, undefined=StrictUndefined
    )
    script, css = (_template(f"report.{kind}") for kind in ("js", "css"))
    pictures, dial = _pictures(document)
    steps = dial["steps"]
    at = _step_at(document)
    return templates.get_template("report.html").render(
        _told(document)
        | {
            "script": Markup(script),
            "script_hash": _hash(script),
            "css": Markup(css),
            "pictures": {name: Markup(svg) for name, svg in pictures.items()},
            "data": Markup(_json(dial)),
            "steps": steps[:-1],
            "step": len(steps) - 1 - at,
            "now": steps[at],
        }
    )


def _told(document: Document) -> dict[str, Any]:
    """All texts of the page."""
    manifest = document.manifest or {}
    never, trials = document.weighed["never"], documents.trials(document)
    samples = documents.duel_samples(document.manifest)
    environment = sorted(document.found.run.bound_to["environment"].items())
    conditions = sorted(manifest.get("conditions", {}).items())
    effects = documents.effects(document)
    return {
        "version": version("routetune"),
        "target": document.subject.target.name,
        "run": document.found.run.id,
        "environment_label": manifest.get("environment_label", document.subject.environment.label),
        "headline": documents.headline(document),
        "facts": documents.facts(document),
        "doubts": documents.doubts(document),
        "moved": [str(change) for change in document.found.moved],
        "metric": document.stairs.metric,
        "labels": document.weighed["labels"],
        "marks": documents.marks(document),
        "times": _times(samples),
        "calls": sum(map(len, samples.values())),
        "no_duel": "no finalist got that far" if manifest else "it published nothing",
        "effects_left": max(len(effects) - STRONGEST, 0),
        "counts": _counts(document),
        "search": documents.search_notes(document),
        "excluded": [one | {"route": one["route"] or DEFAULT} for one in never[:MANY]],
        "excluded_left": max(len(never) - MANY, 0),
        "trials": trials[:MANY],
        "trials_left": max(len(trials) - MANY, 0),
        "remarks": manifest.get("remarks", []),
        "environment": [*environment, *((f"condition: {name}", value) for name, value in conditions)],
        "reproduce": documents.reproduce(document),
    }


def _pictures(document: Document) -> tuple[dict[str, str], dict[str, Any]]:
    """The pictures by name, and what the script needs to move the slider's marks in the first of them."""
    from routetune.tasks.report import drawings
    from routetune.tasks.report.canvas import Colours
    from routetune.tasks.report.frontier_drawing import frontier_picture

    colours = Colours(**_STAND_INS)
    frontier = frontier_picture(document.stairs, document.epsilon, colours)
    found = {"frontier": _svg(frontier, "frontier")}
    if samples := documents.duel_samples(document.manifest):
        found["latency"] = _svg(drawings.latency_picture(samples, colours), "latency")
    if effects := documents.effects(document)[:STRONGEST]:
        found["effects"] = _svg(drawings.effects_picture(effects, colours), "effects")
    found["course"] = _svg(drawings.course_picture(course(document.found.rows), colours), "course")
    steps = documents.steps_shown(document, frontier.places["steps"])
    stairs, drawn = document.stairs, frontier.places["routes"]
    point = steps[_step_at(document)]["point"] or frontier.places["ring"]
    levels = {step.epsilon: len(steps) - 2 - at for at, step in enumerate(stairs.steps)}
    dial = {
        "steps": steps,
        "routes": [stairs.rows[index]["route"] or DEFAULT for index in drawn[:MANY]],
        "levels": [levels[stairs.thresholds[index]] for index in drawn],
        "drawn": {"x": frontier.places["line"], "point": point},
    }
    return found, dial


def _step_at(document: Document) -> int:
    """The step that the run's own ε falls on."""
    steps = document.stairs.steps
    return next((at for at, step in enumerate(steps) if step.epsilon <= document.epsilon), len(steps))


def _svg(picture: Picture, name: str) -> str:
    """A picture with ids of its own in the page, and the page's colours."""
    svg = re.sub(r'\bid="', f'id="{name}-', picture.svg())
    svg = re.sub(r'href="#', f'href="#{name}-', svg).replace("url(#", f"url(#{name}-")
    for colour, stand_in in _STAND_INS.items():
        svg = svg.replace(stand_in, f"var(--{colour})")
    # What matplotlib draws by itself is black: axes, ticks and their texts.
    return svg.replace("#000000", "var(--ink)")


def _times(samples: dict[str, list[int]]) -> list[dict[str, str]]:
    rows = []
    for name, taken in samples.items():
        found = percentiles(taken)
        times = {mark: f"{found[mark] / 1e6:.3f} ms" for mark in ("p50", "p95", "p99")}
        rows.append({"name": name, "calls": str(found["calls"]), **times})
    return rows


def _counts(document: Document) -> str:
    lanes = course(document.found.rows)
    return ", ".join(f"{len(spans)} {name}" for name, spans in lanes.items())


def _json(value: Any) -> str:
    """JSON that may stand in a script element: no letter in it begins a tag or a comment."""
    text = json.dumps(value, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _template(name: str) -> str:
    return (files("routetune.tasks.report") / "templates" / name).read_text(encoding="utf-8")
