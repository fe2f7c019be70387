"""Stage: publish the winner's engine, with a manifest that says what it is and what it rests on."""

from __future__ import annotations

import shlex
from functools import partial
from importlib.metadata import version
from typing import Any

from routetune.tasks.bench import Bench
from routetune.tasks.canonical import number
from routetune.tasks.doubts import warnings_about
from routetune.tasks.report.summary import device_remarks, devices_of, trial_summary
from routetune.tasks.report.timing import measured_times, run_remarks
from routetune.tasks.select import CONTROL, Selection
from routetune.tasks.stage import stage
from routetune.tasks.store.manifests import Publication
from routetune.tasks.store.signing import open_signer
from routetune.tasks.targets.changes import compare
from routetune.tasks.targets.environment import conditions
from routetune.tasks.trial import Trial


@stage("publish", of="winner")
def publish_winner(bench: Bench, selection: Selection) -> Publication:
    """Make the winner's engine the current one of the target in this environment.

    The bytes are those that were checked and timed: the blob of the trial, never a new build. What is
    published already, and stays, is left alone; it is only signed, where there is a key to sign with.
    """
    target = bench.subject.target
    signer = open_signer(target.publish.sign_key, bench.store.root)
    if selection.kept is not None:
        if signer is not None:
            bench.store.publications.sign(selection.kept, signer)
        return selection.kept
    engine = selection.winner.engine
    assert engine is not None
    publication: Publication = bench.store.publications.publish(
        target.name,
        bench.subject.key,
        engine["digest"],
        manifest(bench, selection),
        keep=target.publish.keep,
        signer=signer,
        yields=partial(_has_done_the_same, bench),
    )
    return publication


def _has_done_the_same(bench: Bench, theirs: Publication) -> bool:
    """Whether another host has published for exactly our subject since the winner met what was current.

    Then that stays, as where another process had tuned the same while this one waited for the device.
    """
    met = theirs.reference.generation == bench.met
    return not met and not compare(theirs.manifest["bound_to"], bench.subject.bound_to)


def manifest(bench: Bench, selection: Selection) -> dict[str, Any]:
    """What a reader of the publication needs to load, judge and reproduce it; plain JSON."""
    subject, winner, decision = bench.subject, selection.winner, selection.decision
    assert winner.engine is not None
    timing = subject.target.timing
    trials = list(bench.trials.values())
    return {
        "routetune": version("routetune"),
        "run": bench.run.id,
        "backend": subject.backend,
        "device": subject.device,
        "bound_to": subject.bound_to,
        "environment_label": subject.environment.label,
        "conditions": conditions(subject.devices[0]),
        "route": str(winner.route),
        "options": winner.engine["options"],
        "identity": winner.engine["identity"],
        "accuracy": _accuracy_of(bench, winner),
        "speed": speed_of(selection),
        "decision": {
            "kind": decision.kind,
            "reason": decision.reason,
            "tie": list(decision.tie),
            "explanations": decision.explanations | selection.dropped,
        },
        "objective": {"of": timing.objective, "streams": timing.streams},
        "times": measured_times(selection.loads, winner, CONTROL, trials),
        "remarks": [*run_remarks(selection.loads, trials), *device_remarks(devices_of(bench))],
        "duel": selection.loads,
        "control": None if bench.control is None else str(bench.control.route),
        "trials": len(trials),
        "excluded": [trial_summary(trial) for trial in trials if trial.abandoned or not trial.eligible],
        "aliases": sum(trial.alias_of is not None for trial in trials),
        "reproduce": reproduce(bench, winner.route.as_dict()),
    }


def _accuracy_of(bench: Bench, winner: Trial) -> dict[str, Any]:
    accuracy = bench.subject.target.accuracy
    return {
        "metric": accuracy.metric,
        "tolerance": number(accuracy.tolerance),
        "loss": number(winner.loss if winner.loss is not None else float("nan")),
        "verdict": winner.verdict,
        "losses": winner.losses,
        "warnings": warnings_about(bench, winner),
    }


def speed_of(selection: Selection) -> dict[str, Any]:
    """Speed against the control with its interval, as plain JSON."""
    estimate = selection.decision.estimate
    if estimate is None:  # the default won: it is its own control
        return {
            "ratio": 1.0,
            "low": 1.0,
            "high": 1.0,
            "loads": sum(not load["dropped"] for load in selection.loads),
        }
    return {
        "ratio": number(estimate.ratio),
        "low": number(estimate.low),
        "high": number(estimate.high),
        "loads": estimate.n,
    }


def reproduce(bench: Bench, route: dict[str, str]) -> list[str]:
    """Command lines that show the same again."""
    path = shlex.quote(str(bench.subject.target.path))
    expression = " ".join(f"{name}={value}" for name, value in route.items())
    lines = [f"routetune tune {path} --force"]
    if any(name.startswith("@") for name in route):
        lines.append(f"routetune knobs {path} --family qdq")
    elif expression:
        lines.append(f"routetune expand -- {shlex.quote(expression)}")
    if bench.subject.backend == "tensorrt":
        lines += trtexec_lines(bench, route)
    return lines


def trtexec_lines(bench: Bench, route: dict[str, str]) -> list[str]:
    """trtexec's command for a route of TensorRT's; then what it has no flag for, as a comment."""
    from routetune.tasks.engines.tensorrt.trtexec import command, untranslated

    subject = bench.subject
    words = command(
        str(subject.model.path),
        route,
        [profile.as_order() for profile in subject.model.profiles],
        [name for name, tensor in subject.model.inputs.items() if tensor.dynamic],
        subject.target.engine.as_settings(),
    )
    left_out = untranslated(route)
    comment = [f"# trtexec has no flag for {' '.join(left_out)}"] if left_out else []
    return [shlex.join(words), *comment]
