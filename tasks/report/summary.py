"""What a run or a publication comes to, as one plain JSON object and as markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from routetune.tasks.canonical import number
from routetune.tasks.report.explanation import SHOWN, sentences
from routetune.tasks.report.timing import times_text, trial_figures
from routetune.tasks.trial import REPRODUCIBLE

if TYPE_CHECKING:
    from routetune.tasks.bench import Bench
    from routetune.tasks.status import Freshness
    from routetune.tasks.store.manifests import Publication
    from routetune.tasks.trial import Trial

DEFAULT = "default route"
_LATER: dict[str, Any] = {"objective": {"of": "latency", "streams": 1}, "times": {}, "remarks": []}


def trial_summary(trial: Trial) -> dict[str, Any]:
    """One trial in a few words, as plain JSON."""
    return {
        "route": str(trial.route),
        "outcome": trial.outcome.value,
        "reason": _reason(trial),
        "loss": _number(trial.loss),
        "speed": _number(trial.speed),
        "low": _number(trial.low),
        "high": _number(trial.high),
        "step": trial.failure and trial.failure.step,
        "log": trial.failure and trial.failure.log,
        "alias_of": trial.alias_of,
        "abandoned": trial.abandoned,
        "device": trial.device,
        **trial_figures(trial),
        "seconds": trial.seconds,
        "cached": list(trial.cached),
    }


def run_summary(
    bench: Bench,
    publication: Publication,
    ended: str,
    explanation: dict[str, Any] | None = None,
    kept: str = "",
) -> dict[str, Any]:
    """The answer of a run that published, or kept what was published: `kept` says why.

    Args:
        explanation: what the search tells of itself; None where nothing was searched.
    """
    trials = list(bench.trials.values())
    answer, devices = published(publication), devices_of(bench)
    # What was published before and stays has the remarks of its own run.
    remarks = list(dict.fromkeys([*answer["remarks"], *device_remarks(devices)]))
    return answer | {
        "state": "kept" if kept else "tuned",
        **({"note": f"kept: {kept}"} if kept else {}),
        "environment": bench.subject.environment.label,
        "run": bench.run.id,
        "search": ended,
        "explanation": explanation,
        "trials": [trial_summary(trial) for trial in trials],
        "counts": {
            "trials": len(trials),
            "eligible": sum(trial.eligible for trial in trials),
            "builds": sum(trial.built for trial in trials),
            "from_store": sum("build" in trial.cached for trial in trials),
            "aliases": sum(trial.alias_of is not None for trial in trials),
        },
        "devices": devices,
        "remarks": remarks,
    }


def device_remarks(devices: Sequence[Mapping[str, Any]]) -> list[str]:
    """Sentences on several devices; none on one alone."""
    if len(devices) < 2:
        return []
    shares = ", ".join(f"{one['device']} {one['trials']}" for one in devices)
    out = [f"device {one['device']} was taken out: {one['out']}" for one in devices if one["out"]]
    return [f"trials of each device: {shares}", *out]


def devices_of(bench: Bench) -> list[dict[str, Any]]:
    """What each device of a run did, and why it was taken out, where it was; plain JSON."""
    done = Counter(trial.device for trial in bench.trials.values())
    fleet = bench.fleet
    return [{"device": one, "trials": done[one], "out": fleet.out.get(one)} for one in fleet.named]


def published_summary(state: Freshness) -> dict[str, Any]:
    """The answer when nothing had to be done."""
    assert state.publication is not None
    answer = published(state.publication) | {"state": state.state}
    if state.state == "fresh":
        answer["note"] = "fresh, nothing to do" + _unfinished(answer["excluded"])
    return answer


def published(publication: Publication) -> dict[str, Any]:
    """What a manifest says, for a person or a program; see docs/publications.md for each field."""
    manifest = publication.manifest
    kept = ("target", "route", "speed", "accuracy", "decision", "control", "excluded", "aliases", "reproduce")
    answer = {name: manifest[name] for name in kept}
    # Manifests of earlier versions have none of these.
    answer |= {name: manifest.get(name, absent) for name, absent in _LATER.items()}
    answer["accuracy"] = {k: v for k, v in manifest["accuracy"].items() if k != "losses"}
    return answer | {
        "environment": manifest["environment_label"],
        "generation": publication.reference.generation,
        "published_at": manifest["published_at"],
        "engine": str(publication.engine),
        "engine_digest": publication.reference.engine,
        "run": manifest["run"],
        "counts": {"trials": manifest["trials"], "builds": 0},
    }


def _reason(trial: Trial) -> str:
    if not trial.abandoned:
        return trial.reason
    return f"given up as hopelessly slow, at {trial.speed:.2f}x of the control's speed; {trial.reason}"


def _unfinished(excluded: list[dict[str, Any]]) -> str:
    """A clause on routes that ended without a result of their own, so that another run may find more."""
    kept = {outcome.value for outcome in REPRODUCIBLE}
    open_ends = [one for one in excluded if one["outcome"] not in kept]
    if not open_ends:
        return ""
    return f"; {len(open_ends)} route(s) timed out or were killed, and are tried again with --force"


def headline(answer: dict[str, Any]) -> str:
    """The result in one sentence."""
    if not answer["route"]:
        told = f"the default route is published: {answer['decision']['reason']}"
    else:
        speed = speed_text(answer["speed"])
        control = answer["control"] or "the default route"
        told = f"{answer['route']}: {speed} the speed of {control} ({answer['decision']['reason']})"
    doubts = answer["accuracy"].get("warnings")
    return f"{told}. But beware: {'; '.join(doubts)}" if doubts else told


def speed_text(speed: dict[str, Any]) -> str:
    """1.234x [1.210, 1.260]"""
    ratio, low, high = (float(speed[name]) for name in ("ratio", "low", "high"))
    return f"{ratio:.3f}x [{low:.3f}, {high:.3f}]"


def effect_rows(explanation: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The strongest main effects for a table: setting, speed with its interval, routes that had it."""
    rows = []
    for one in explanation["effects"][:SHOWN]:
        speed = "not told apart from others" if one["inseparable"] else speed_text(one)
        rows.append((f"{one['knob']}={one['value']}", speed, str(one["trials"])))
    return rows


def markdown(answer: dict[str, Any]) -> str:
    """The summary artifact of a run."""
    counts = answer["counts"]
    lines = [
        f"# {answer['target']}",
        headline(answer),
        *([answer["note"]] if "note" in answer else []),
        "",
        f"- environment: {answer['environment']}",
        f"- accuracy: {answer['accuracy']['verdict']}",
        f"- trials: {counts['trials']}, of which {counts['eligible']} eligible, {counts['builds']} built, "
        f"{counts['aliases']} aliases of an engine already seen",
        f"- search: {answer['search']}",
        f"- {answer['objective']['of']}: {times_text(answer['times'], answer['objective']['streams'])}",
        f"- engine: `{answer['engine']}` (generation {answer['generation']})",
    ]
    lines += ["", "## Remarks", *(f"- {remark}" for remark in answer["remarks"])] if answer["remarks"] else []
    lines += _explained(answer["explanation"]) if answer["explanation"] else []
    lines += ["", "## Finalists that lost"] if answer["decision"]["explanations"] else []
    lines += [f"- `{route or DEFAULT}`: {why}" for route, why in answer["decision"]["explanations"].items()]
    lines += ["", "## Excluded"]
    excluded = [
        f"- `{one['route'] or DEFAULT}`: {one['outcome']}: {one['reason']}" for one in answer["excluded"]
    ]
    lines += excluded or ["none"]
    lines += ["", "## Reproduce", *(f"    {line}" for line in answer["reproduce"])]
    return "\n".join(lines)


def _explained(explanation: dict[str, Any]) -> list[str]:
    lines = [
        "",
        "## What the knobs did",
        "",
        "| setting | speed with / without it | routes |",
        "|---|---|---|",
    ]
    lines += [f"| `{setting}` | {speed} | {count} |" for setting, speed, count in effect_rows(explanation)]
    return [*lines, "", *(f"- {sentence}" for sentence in sentences(explanation))]


def _number(value: float | None) -> float | str | None:
    return None if value is None else number(value)
