"""Stage: build an engine for each route."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

from routetune.tasks.bench import Answer, Bench, failure_from
from routetune.tasks.engines.settling import settled, shaping
from routetune.tasks.rewrite import Source, model_of, source_of
from routetune.tasks.routes.route import Route
from routetune.tasks.stage import stage
from routetune.tasks.store.keys import code_digest
from routetune.tasks.subject import check_unchanged
from routetune.tasks.trial import Trial


@stage("build engines")
def build_engines(bench: Bench, routes: list[Route]) -> list[Trial]:
    """One trial per route, with an engine, an alias of an earlier one, or the reason why not."""
    built = bench.fleet.deal(partial(_build_in_time, bench), routes)
    # One after the other: which of two routes with one engine is the alias must not depend on who was faster.
    return [_aliased(bench, trial) for trial in built if trial is not None]


def _build_in_time(bench: Bench, route: Route) -> Trial | None:
    """A route that is not begun in time is not told, and the search ends."""
    return None if bench.time_is_up and bench.trials else build(bench, route)


def build(bench: Bench, route: Route) -> Trial:
    """Build one engine in the worker, or take it from the store."""
    source = source_of(bench, route)
    if source.failure is not None:
        return trial_of(route, Answer({"failure": source.failure}, cached=False))
    answer = bench.answer(_key(bench, source), lambda: _make(bench, source))
    return _settled(bench, trial_of(route, answer), source)


def is_kept(bench: Bench, route: Route) -> bool:
    """Whether the store has what became of the build, with all its bytes; they are not read."""
    source = source_of(bench, route)
    if source.failure is not None:
        return True
    entry = bench.store.entries.get(_key(bench, source))
    return entry is not None and all(bench.store.blobs.has(blob) for blob in entry.blobs)


def kept_engine(bench: Bench, route: Route) -> dict[str, Any] | None:
    """The engine that the store holds for a route, every byte of it, or None; nothing is built."""
    source = source_of(bench, route)
    value = None if source.failure is not None else bench.known(_key(bench, source))
    engine = value and value.get("engine")
    return engine and settled(bench.subject.backend, engine, source.route)


def trial_of(route: Route, answer: Answer) -> Trial:
    return Trial(
        route,
        engine=answer.value.get("engine"),
        failure=failure_from(answer.value),
        seconds=answer.spent("build"),
        cached=("build",) if answer.cached else (),
        device=answer.value.get("device"),
    )


def _settled(bench: Bench, trial: Trial, source: Source) -> Trial:
    """The trial with its route's own engine; the build may be another's, which differs only at load."""
    if trial.engine is None:
        return trial
    return replace(trial, engine=settled(bench.subject.backend, trial.engine, source.route))


def _key(bench: Bench, source: Source) -> dict[str, Any]:
    bound = bench.subject.bound_to["target"]
    return bench.key(
        "build",
        code_digest("routetune.tasks.engines.steps"),
        model=source.digest,
        profiles=bound["profiles"],
        route=str(shaping(bench.subject.backend, source.route)),
    )


def _make(bench: Bench, source: Source) -> tuple[dict[str, Any], list[str]]:
    shape = shaping(bench.subject.backend, source.route)
    # Two devices may build at once, and routes of two placements may share their shape.
    output = bench.folder / f"{shape.id}-{source.digest[:16]}-{bench.fleet.number}.onnx"
    output.unlink(missing_ok=True)
    started = time.monotonic()
    order = build_order(bench, source) | {"route": shape.as_dict(), "output": str(output)}
    engine = bench.step(
        "routetune.tasks.engines.steps:build", {"backend": bench.subject.backend, "order": order}
    )
    seconds = round(time.monotonic() - started, 3)
    check_unchanged(bench.subject)
    blob = bench.store.blobs.put_file(output, move=True, told=engine["digest"])
    if blob != engine["digest"]:
        raise OSError(
            f"engine {output.name} changed between the worker and the store: {engine['digest']} -> {blob}"
        )
    log = bench.kept_log()
    value = {"engine": engine, "seconds": seconds, "log": log, "device": bench.fleet.did}
    return value, [blob, *([log] if log else [])]


def build_order(bench: Bench, source: Source) -> dict[str, Any]:
    """The fields of BuildOrder but the output, as plain JSON."""
    return {
        "model": str(model_of(bench, source)),
        "route": source.route.as_dict(),
        "profiles": [profile.as_order() for profile in bench.subject.model.profiles],
        "settings": bench.subject.target.engine.as_settings() | _room(bench),
        "device": bench.subject.device,
    }


def _room(bench: Bench) -> dict[str, Any]:
    """What a build may use that does not shape its result, so that it is in no key.

    A backend that can ends a build by itself a little before the worker would be killed. The timing cache
    is shared by all routes of the environment.
    """
    cache = bench.store.root / "timing-caches" / f"{bench.subject.key}.cache"
    return {"seconds": 0.95 * bench.subject.target.budget.trial_seconds, "timing_cache": str(cache)}


def _aliased(bench: Bench, trial: Trial) -> Trial:
    """Mark a trial whose engine an earlier route already has: it is measured once, under the first name."""
    identity = trial.engine and trial.engine["identity"]
    if not identity:
        return trial
    first = bench.engines.setdefault(identity, trial)
    if first.route == trial.route:
        return trial
    return replace(trial, alias_of=first.route.id, engine=first.engine)
