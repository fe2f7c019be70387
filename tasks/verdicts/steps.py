"""What the worker does to time an engine beside the control, and to let the finalists duel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from routetune.tasks.arrays import Array, load_arrays
from routetune.tasks.engines.base import Runner
from routetune.tasks.engines.steps import RunError, engine_from, loaded
from routetune.tasks.verdicts.duel import DuelSettings, Load, duel_load
from routetune.tasks.verdicts.rounds import RoundSettings, measure


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
) -> dict[str, Any]:
    """Raw rounds of a candidate beside the control, as plain JSON; `rounds` holds RoundSettings' fields."""
    arrays = load_arrays(Path(inputs))
    with ExitStack() as stack:

        def ready(engine: Mapping[str, Any], path: str) -> Callable[[], None]:
            runner = loaded(backend, engine_from(path, engine), device, settings)
            return _prepared(stack.enter_context(runner), arrays)

        calls = ready(candidate, candidate_path), ready(control, control_path)
        return measure(calls[0], calls[1], RoundSettings(**rounds)).to_json()


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
    names = list(engines)
    turn = load % len(names)
    order = names[turn:] + names[:turn]
    with ExitStack() as stack:
        calls: dict[str, Callable[[], None]] = {}
        for name in order:
            engine, path = engines[name]
            runner = stack.enter_context(loaded(backend, engine_from(path, engine), device, settings))
            calls[name] = _prepared(runner, arrays)
        result: Load = duel_load(calls, DuelSettings(**duelling))
        return result.to_json()


def _prepared(runner: Runner, inputs: Mapping[str, Array]) -> Callable[[], None]:
    call = runner.prepare(inputs)
    try:
        call()
    except MemoryError:
        raise
    except Exception as error:
        raise RunError(f"the engine does not run on the timing inputs: {error}") from error
    return call
