"""Figures for monitoring, in the text format of Prometheus.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from routetune.tasks.canonical import to_float
from routetune.tasks.status import Freshness
from routetune.tasks.store import Store
from routetune.tasks.store.runs import FAILED, RunRecord

STATES = ("fresh", "reselect", "stale", "never tuned", "failed", "cannot tell", "refused")


def measured(states: Iterable[Freshness], store: Store) -> dict[str, Any]:
    """The figures as plain JSON: "states" (state -> targets) and "targets", one dict each.

    Of a target: "state", "path", "failures" (in a row, as it stands), "runs" (status -> how many ever),
    "trials" (outcome -> how many ever), "device_seconds" (of all runs); and of what is published, or null:
    "published_at" (seconds since 1970), "generation", "speed", "low".
    """
    runs = _by_target(store.runs.list())
    trials = _trials(store)
    targets = [_figures(state, runs.get(state.target, []), trials.get(state.target, {})) for state in states]
    counts = dict.fromkeys(STATES, 0)
    for one in targets:
        counts[one["state"]] += 1
    return {"states": counts, "targets": targets}


def exposition(found: dict[str, Any]) -> bytes:
    """The figures in Prometheus' text format."""
    from prometheus_client import CollectorRegistry, generate_latest

    class Collector:
        def collect(self) -> Iterator[Any]:
            return _families(found)

    registry = CollectorRegistry()
    registry.register(Collector())
    text: bytes = generate_latest(registry)
    return text


def _figures(state: Freshness, runs: list[RunRecord], trials: dict[str, int]) -> dict[str, Any]:
    manifest = state.publication and state.publication.manifest
    statuses: dict[str, int] = {}
    for run in runs:
        statuses[run.status] = statuses.get(run.status, 0) + 1
    return {
        "target": state.target,
        "path": state.path,
        "state": state.state,
        "failures": len(state.failures),
        "runs": statuses | {FAILED: statuses.get(FAILED, 0)},
        "trials": trials,
        "device_seconds": round(sum(run.device_seconds for run in runs), 3),
        "published_at": manifest and datetime.fromisoformat(manifest["published_at"]).timestamp(),
        "generation": manifest and manifest["generation"],
        "speed": manifest and to_float(manifest["speed"]["ratio"]),
        "low": manifest and to_float(manifest["speed"]["low"]),
    }


def _by_target(runs: Iterable[RunRecord]) -> dict[str, list[RunRecord]]:
    found: dict[str, list[RunRecord]] = {}
    for run in runs:
        found.setdefault(run.target, []).append(run)
    return found


def _trials(store: Store) -> dict[str, dict[str, int]]:
    """Target -> outcome -> trials ever."""
    table = store.records.read(columns=("target", "outcome"))
    found: dict[str, dict[str, int]] = {}
    for target, outcome in zip(table["target"].to_pylist(), table["outcome"].to_pylist(), strict=True):
        counts = found.setdefault(target, {})
        counts[outcome] = counts.get(outcome, 0) + 1
    return found


#: Name, help, and the field of a target that it is.
_GAUGES = (
    ("publication_timestamp_seconds", "When what is published was, since 1970.", "published_at"),
    ("publication_generation", "Number of the generation that is published.", "generation"),
    ("speed_ratio", "Speed of what is published against the default route.", "speed"),
    ("speed_ratio_low", "Lower confidence bound of routetune_speed_ratio.", "low"),
    ("failures_in_a_row", "Runs that failed in a row on the target as it stands.", "failures"),
)


def _families(found: dict[str, Any]) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    # Two series of one name would be refused as a whole; targets of one name share what is published.
    targets = list({one["target"]: one for one in found["targets"]}.values())
    by_state = GaugeMetricFamily("routetune_targets", "Targets by state.", labels=["state"])
    for state, count in found["states"].items():
        by_state.add_metric([state], count)
    yield by_state
    one_hot = GaugeMetricFamily(
        "routetune_target_state", "1 for the target's state.", labels=["target", "state"]
    )
    for one in targets:
        one_hot.add_metric([one["target"], one["state"]], 1)
    yield one_hot
    for name, told, field in _GAUGES:
        gauge = GaugeMetricFamily(f"routetune_{name}", told, labels=["target"])
        for one in targets:
            if one[field] is not None:
                gauge.add_metric([one["target"]], one[field])
        yield gauge
    seconds = CounterMetricFamily(
        "routetune_device_seconds", "Seconds that devices were held.", labels=["target"]
    )
    for one in targets:
        seconds.add_metric([one["target"]], one["device_seconds"])
    yield seconds
    for name, told, label in (
        ("runs", "Runs by how they ended.", "status"),
        ("trials", "Trials by outcome.", "outcome"),
    ):
        counter = CounterMetricFamily(f"routetune_{name}", told, labels=["target", label])
        for one in targets:
            for value, count in one[name].items():
                counter.add_metric([one["target"], value], count)
        yield counter
