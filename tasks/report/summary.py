"""What a run or a publication comes to, as one plain JSON object and as markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from routetune.tasks.canonical import number

if TYPE_CHECKING:
    from routetune.tasks.bench import Bench
    from routetune.tasks.status import Freshness
    from routetune.tasks.store.manifests import Publication
    from routetune.tasks.trial import Trial

DEFAULT = "default route"


def trial_summary(trial: Trial) -> dict[str, Any]:
    """One trial in a few words, as plain JSON."""
    return {
        "route": str(trial.route),
        "outcome": trial.outcome.value,
        "reason": trial.reason,
        "loss": _number(trial.loss),
        "speed": _number(trial.speed),
        "low": _number(trial.low),
        "high": _number(trial.high),
        "alias_of": trial.alias_of,
        "abandoned": trial.abandoned,
        "seconds": trial.seconds,
        "cached": list(trial.cached),
    }


def run_summary(bench: Bench, publication: Publication, ended: str) -> dict[str, Any]:
    """The answer of a run that published."""
    trials = list(bench.trials.values())
    fresh = [trial for trial in trials if "build" not in trial.cached]
    return published(publication) | {
        "state": "tuned",
        "environment": bench.subject.environment.label,
        "run": bench.run.id,
        "search": ended,
        "trials": [trial_summary(trial) for trial in trials],
        "counts": {
            "trials": len(trials),
            "eligible": sum(trial.eligible for trial in trials),
            "builds": len(fresh),
            "from store": len(trials) - len(fresh),
            "aliases": sum(trial.alias_of is not None for trial in trials),
        },
    }


def published_summary(state: Freshness) -> dict[str, Any]:
    """The answer when nothing had to be done."""
    assert state.publication is not None
    answer = published(state.publication) | {"state": state.state}
    if state.state == "fresh":
        answer["note"] = "fresh, nothing to do"
    return answer


def published(publication: Publication) -> dict[str, Any]:
    """What a manifest says, for a person or a program; see docs/publications.md for each field."""
    manifest = publication.manifest
    kept = ("target", "route", "speed", "accuracy", "decision", "control", "excluded", "aliases", "reproduce")
    answer = {name: manifest[name] for name in kept}
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


def headline(answer: dict[str, Any]) -> str:
    """The result in one sentence."""
    if not answer["route"]:
        told = f"the default route is published: {answer['decision']['reason']}"
    else:
        speed = speed_text(answer["speed"])
        told = f"{answer['route']}: {speed} the default's speed ({answer['decision']['reason']})"
    doubts = answer["accuracy"].get("warnings")
    return f"{told}. But beware: {'; '.join(doubts)}" if doubts else told


def speed_text(speed: dict[str, Any]) -> str:
    """1.234x [1.210, 1.260]"""
    ratio, low, high = (float(speed[name]) for name in ("ratio", "low", "high"))
    return f"{ratio:.3f}x [{low:.3f}, {high:.3f}]"


def markdown(answer: dict[str, Any]) -> str:
    """The summary artifact of a run."""
    counts = answer["counts"]
    lines = [
        f"# {answer['target']}",
        headline(answer),
        "",
        f"- environment: {answer['environment']}",
        f"- accuracy: {answer['accuracy']['verdict']}",
        f"- trials: {counts['trials']}, of which {counts['eligible']} eligible, {counts['builds']} built, "
        f"{counts['aliases']} aliases of an engine already seen",
        f"- search: {answer['search']}",
        f"- engine: `{answer['engine']}` (generation {answer['generation']})",
        "",
        "## Excluded",
    ]
    excluded = [
        f"- `{one['route'] or DEFAULT}`: {one['outcome']}: {one['reason']}" for one in answer["excluded"]
    ]
    lines += excluded or ["none"]
    lines += ["", "## Reproduce", *(f"    {line}" for line in answer["reproduce"])]
    return "\n".join(lines)


def _number(value: float | None) -> float | str | None:
    return None if value is None else number(value)
