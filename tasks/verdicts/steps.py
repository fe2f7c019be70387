"""What the worker does to time an engine beside the control, and to let the finalists duel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from routetune.tasks.arrays import Array, load_arrays
from routetune.tasks.engines.base import Runner
from routetune.tasks.engines.steps import RunError, engine_from, loaded
from routetune.tasks.verdicts.conditions import watch_for
from routetune.tasks.verdicts.duel import DuelSettings, duel_load, order_of
from routetune.tasks.verdicts.rounds import RoundSettings, measure
from routetune.tasks.verdicts.samplers import Sampler, Serial, Streams


def time(
    backend: str,
    candidate: Mapping[str, Any],
    candidate_path: str,
    control: Mapping[str, Any],
    control_path: str,
    device: str,
    settings: Mapping[str, Any],
    inputs: str,
    rounds: Mapping[str, Any],
    first: str = "candidate",
) -> dict[str, Any]:
    """Raw rounds of a candidate beside the control, as plain JSON.

    Args:
        rounds: the fields of RoundSettings.
        first: "candidate" or "control", whichever is loaded first; told again as "loaded_first".
    """
    arrays = load_arrays(Path(inputs))
    chosen = RoundSettings(**rounds)
    with ExitStack() as stack:

        def ready(engine: Mapping[str, Any], path: str) -> Sampler:
            load = partial(loaded, backend, engine_from(path, engine), device, settings)
            return sampler(stack, load, arrays, chosen.streams)

        engines = {"candidate": (candidate, candidate_path), "control": (control, control_path)}
        second = "control" if first == "candidate" else "candidate"
        sides = {side: ready(*engines[side]) for side in (first, second)}
        measured = measure(sides["candidate"], sides["control"], chosen, watch=watch_for(device))
        return measured.to_json() | {"loaded_first": first}


def duel(
    backend: str,
    engines: Mapping[str, tuple[Mapping[str, Any], str]],
    device: str,
    settings: Mapping[str, Any],
    inputs: str,
    load: int,
    duelling: Mapping[str, Any],
) -> dict[str, Any]:
    """One load of the duel: every engine loaded afresh, timed in turns; raw samples by name, as plain JSON.

    Args:
        engines: name -> (engine, path); the control is one of them.
        load: the number of this load, which decides the order of loading and timing.
    """
    arrays = load_arrays(Path(inputs))
    chosen = DuelSettings(**duelling)
    with ExitStack() as stack:
        samplers: dict[str, Sampler] = {}
        for name in order_of(list(engines), load):
            engine, path = engines[name]
            fresh = partial(loaded, backend, engine_from(path, engine), device, settings)
            samplers[name] = sampler(stack, fresh, arrays, chosen.streams)
        return duel_load(samplers, chosen, watch=watch_for(device)).to_json()


def sampler(
    stack: ExitStack,
    load: Callable[[], AbstractContextManager[Runner]],
    inputs: Mapping[str, Array],
    streams: int = 1,
) -> Sampler:
    """An engine loaded and ready to be timed, with so many inferences in flight; freed with `stack`.

    Streams share one runner where it says that its prepared calls may run at once (`Runner.concurrent`), and
    have one each elsewhere.
    """
    runner = stack.enter_context(load())
    calls = [_prepared(runner, inputs)]
    for _ in range(streams - 1):
        if not getattr(runner, "concurrent", False):
            runner = stack.enter_context(load())
        calls.append(_prepared(runner, inputs))
    return Serial(calls[0]) if streams == 1 else stack.enter_context(Streams(calls))


def _prepared(runner: Runner, inputs: Mapping[str, Array]) -> Callable[[], None]:
    call = runner.prepare(inputs)
    try:
        call()
    except MemoryError:
        raise
    except Exception as error:
        raise RunError(f"the engine does not run on the timing inputs: {error}") from error
    return call
