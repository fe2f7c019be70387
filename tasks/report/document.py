"""What the report of a run says: everything that the page shows, gathered from the store as plain values."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from routetune.tasks.canonical import to_float
from routetune.tasks.recorded import RecordedRun, recorded
from routetune.tasks.report.course import lane_of
from routetune.tasks.report.effects import Timed, main_effects
from routetune.tasks.report.epsilon import weighed
from routetune.tasks.report.explanation import sentences
from routetune.tasks.report.scale import number_text
from routetune.tasks.report.staircase import Staircase
from routetune.tasks.report.summary import DEFAULT, speed_text
from routetune.tasks.routes.tuning_log import parse_tokens
from routetune.tasks.status import another_dial
from routetune.tasks.store.manifests import BadPublication
from routetune.tasks.subject import open_subject

if TYPE_CHECKING:
    from routetune.tasks.store import Store
    from routetune.tasks.store.manifests import Publication
    from routetune.tasks.subject import Subject

#: How the duel calls the control in its samples; `select.CONTROL`, which imports Prefect.
CONTROL = "(control)"
#: Rows of a table at the most; the records have all.
MANY = 500
#: Effects that are drawn.
STRONGEST = 20


@dataclass(frozen=True, slots=True)
class Document:
    """A run and what it came to.

    Attributes:
        manifest: what the run published, or None where it published nothing that is still there.
        stairs: its staircase under the metric that it was judged by.
        weighed: the answer of `routetune epsilon` for it.
    """

    subject: Subject
    found: RecordedRun
    manifest: dict[str, Any] | None
    stairs: Staircase
    weighed: dict[str, Any]

    @property
    def epsilon(self) -> float:
        """The tolerance that the run was judged by."""
        if self.manifest is not None:
            return to_float(self.manifest["accuracy"]["tolerance"])
        return to_float(self.found.run.bound_to["target"]["accuracy"]["tolerance"])


def open_document(path: Path, store: Store, run: str | None) -> Document:
    """The document of a run: by default of the one that made what is published here, else of the latest.

    Raises:
        BadInput: there is no such run, or it has no trials.
    """
    subject = open_subject(path)
    publication = _publication(subject, store, run)
    if run is None and publication is not None:
        run = publication.manifest["run"]
    found = recorded(subject, store, run)
    manifest = None if publication is None else publication.manifest
    metric = found.run.bound_to["target"]["accuracy"]["metric"]
    stairs = Staircase(found, subject.target, metric)
    return Document(subject, found, manifest, stairs, weighed(stairs))


def _publication(subject: Subject, store: Store, run: str | None) -> Publication | None:
    """What a run published, or without one what is current; None where it cannot be read."""
    try:
        if run is None:
            return store.publications.current(subject.target.name, subject.key)
        return store.publications.made_by(run, subject.target.name)
    except BadPublication:
        return None


def headline(document: Document) -> dict[str, str]:
    """The result in large letters, and why."""
    manifest = document.manifest
    if manifest is None:
        run = document.found.run
        told = (
            f"The run ended as {run.status} and what it may have published is not in the store. {run.reason}"
        )
        return {"speed": "nothing published", "interval": "", "route": "", "told": told, "short": run.status}
    speed, control = manifest["speed"], manifest["control"]
    ratio, low, high = (to_float(speed[name]) for name in ("ratio", "low", "high"))
    beside = control or "the default route"
    interval = (
        f"[{low:.3f}, {high:.3f}] the speed of {beside}" if manifest["route"] else "the default route wins"
    )
    return {
        "speed": f"{ratio:.3f}x",
        "interval": interval,
        "route": manifest["route"] or DEFAULT,
        "told": manifest["decision"]["reason"],
        "short": f"{ratio:.2f}x",
    }


def facts(document: Document) -> list[tuple[str, str]]:
    """Name and value of what a reader looks for first."""
    manifest, stairs = document.manifest, document.stairs
    found = [
        ("metric", stairs.metric),
        ("ε", f"{document.epsilon:g}"),
        ("trials", str(len(stairs.rows))),
        ("eligible at ε", str(stairs.answers([document.epsilon])[0]["eligible"])),
        ("run", document.found.run.id),
    ]
    if manifest is not None:
        found.insert(2, ("loss", f"{to_float(manifest['accuracy']['loss']):.6g}"))
        at = manifest["published_at"][:19].replace("T", " ")
        found.append(("generation", f"{manifest['generation']}, {at} UTC"))
        found.append(("engine", manifest["engine"]["digest"][:16]))
    return found


def doubts(document: Document) -> list[str]:
    """What a reader must know before the figures are believed, or taken for those of the target file."""
    manifest = document.manifest
    if manifest is None:
        return []
    other = another_dial(manifest, document.subject)
    return [*manifest["accuracy"].get("warnings", []), *([other] if other else [])]


def reproduce(document: Document) -> list[str]:
    """Command lines that show the same again."""
    path = shlex.quote(str(document.subject.target.path))
    if document.manifest is None:
        return [f"routetune tune {path}", f"routetune frontier {path} --run {document.found.run.id}"]
    lines = list(document.manifest["reproduce"])
    if another_dial(document.manifest, document.subject):
        lines.append(
            f"routetune publish {path} --epsilon {document.epsilon!r} --metric {document.stairs.metric}"
        )
    return [*lines, f"routetune frontier {path} --run {document.found.run.id}"]


def duel_samples(manifest: Mapping[str, Any] | None) -> dict[str, list[int]]:
    """Nanoseconds of each call in the loads of the duel that count: the control's, then the winner's."""
    kept = [load["samples"] for load in (manifest or {}).get("duel", ()) if not load["dropped"]]
    if manifest is None or not kept:
        return {}
    names = {manifest["control"] or DEFAULT: CONTROL}
    if manifest["route"] in kept[0]:
        names[manifest["route"] or DEFAULT] = manifest["route"]
    return {told: [ns for samples in kept for ns in samples[name]] for told, name in names.items()}


def steps_shown(document: Document, places: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What the slider shows at each step, from the largest ε down; the last one is below every loss.

    Args:
        places: where each step is in the picture, as `frontier_picture` gives them.
    """
    steps = document.weighed["steps"]
    shown = [
        _shown(document, step, _chosen(document, at))
        | {"x": place["x"], "point": place["fastest"], "level": len(steps) - 1 - at}
        for at, (step, place) in enumerate(zip(steps, places, strict=True))
    ]
    least = number_text(to_float(steps[-1]["epsilon"])) if steps else "∞"
    none: dict[str, Any] = dict.fromkeys(("speed", "loss", "top1", "route", "note"), "")
    below = {"epsilon": f"below {least}", "eligible": 0, "x": places[-1]["x"] if places else 0, "point": None}
    return [*shown, none | below | {"level": -1, "route": "no route is eligible"}]


def _chosen(document: Document, at: int) -> str:
    """What the run itself chose, at the step that its ε falls on: the screening only ranks."""
    steps = document.stairs.steps
    above = steps[at - 1].epsilon if at else math.inf
    if (
        document.manifest is None
        or not steps[at].epsilon <= document.epsilon
        or document.epsilon >= above > 0
    ):
        return ""
    return (
        f" The duel of the run, at ε = {document.epsilon:g}, chose {document.manifest['route'] or DEFAULT}."
    )


def _shown(document: Document, step: Mapping[str, Any], chosen: str) -> dict[str, Any]:
    if step["fastest"] is None:
        route, speed, loss = "none that may win: given up as too slow, or of another's engine", "", ""
    else:
        route = step["fastest"] or DEFAULT
        speed, loss = speed_text(step["speed"]), f"{to_float(step['loss']):.6g}"
    top1 = step["top1"]
    return {
        "epsilon": f"{to_float(step['epsilon']):.6g}",
        "eligible": step["eligible"],
        "route": route,
        "speed": speed,
        "loss": loss,
        "top1": "" if top1 is None else f"{top1:.2%}",
        "note": _note(document, step) + chosen,
    }


def _note(document: Document, step: Mapping[str, Any]) -> str:
    """What the speeds of the screening let one expect of a duel."""
    if step["fastest"] is None:
        return ""
    if not step["default_eligible"]:
        return "The default route is not eligible here, so the fastest one would win whatever its gain."
    gain = f"1 + min_gain = {1 + document.subject.target.timing.min_gain:g}"
    if step["clears"]:
        return f"By the screening it clears {gain}; a duel would decide."
    return f"By the screening it does not clear {gain}, so the default route may well win."


def marks(document: Document) -> list[dict[str, str]]:
    """Losses to hold ε against, as text."""
    return [
        {
            "name": f"{one['name']}: {one['route']}" if one["route"] else one["name"],
            "loss": "not tried" if one["loss"] is None else f"{to_float(one['loss']):.6g}",
            "top1": "" if one["top1"] is None else f"{one['top1']:.2%}",
        }
        for one in document.weighed["marks"]
    ]


def trials(document: Document) -> list[dict[str, str]]:
    """Every trial as text, the fastest first, those without a speed behind."""
    rows = zip(document.found.rows, document.stairs.thresholds, strict=True)
    ordered = sorted(rows, key=lambda pair: -(pair[0]["speed"] or 0.0))
    return [
        {
            "route": row["route"] or DEFAULT,
            "outcome": row["outcome"],
            "least": "none" if math.isnan(least) else number_text(least),
            "speed": _speed(row),
            "how": lane_of(row),
            "reason": row["reason"] or "",
        }
        for row, least in ordered
    ]


def _speed(row: Mapping[str, Any]) -> str:
    if row["speed"] is None:
        return ""
    return speed_text({"ratio": row["speed"], "low": row["low"], "high": row["high"]})


def effects(document: Document) -> list[dict[str, Any]]:
    """Main effects of the knobs on the speed, the strongest first; those that cannot be told are left out.

    They are those that the run told of itself; a run that searched nothing has none, and its trials tell.
    """
    explanation = document.found.run.summary.get("explanation")
    found = explanation["effects"] if explanation else _effects_of(document.found.rows)
    return [one for one in found if not one["inseparable"]]


def _effects_of(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    timed = [
        Timed(parse_tokens(row["route"]), row["speed"], row["low"], row["high"])
        for row in rows
        if row["speed"] is not None and row["alias_of"] is None
    ]
    return [one.to_json() for one in main_effects(timed)]


def search_notes(document: Document) -> list[str]:
    """What was tried first and why, what was put off, what was never tried and what would come next."""
    explanation = document.found.run.summary.get("explanation")
    return sentences(explanation) if explanation else []
