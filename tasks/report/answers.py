"""The answers of commands that only look: expand, show, verify. Plain JSON, made without Prefect."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from routetune.tasks.engines.base import default_device, open_backend
from routetune.tasks.errors import BadInput
from routetune.tasks.report.knobs import searched_knobs
from routetune.tasks.report.summary import published
from routetune.tasks.routes.difference import difference
from routetune.tasks.routes.expression import read_expression_file
from routetune.tasks.routes.knob import KnobDatabase
from routetune.tasks.routes.route import spell
from routetune.tasks.routes.space import open_space
from routetune.tasks.search import expand, open_search
from routetune.tasks.status import freshness
from routetune.tasks.store import Store
from routetune.tasks.store.signing import public_keys
from routetune.tasks.subject import open_subject
from routetune.tasks.targets.schema import load_target


def expansion(what: str, algorithm: str | None, limit: int, backend: str) -> dict[str, Any]:
    """The routes that a target file or an expression stands for, in the order in which they would be tried.

    The second phase of mixed depends on measurements, so only the first is listed.
    """
    is_expression = what.lstrip()[:1] in ("-", "+", "@")
    if not is_expression and not what.endswith(".toml"):
        what = read_expression_file(what)
        is_expression = True
    if not is_expression:
        target = load_target(Path(what))
        search = target.search
        space = open_space(search.routes, searched_knobs(target), search.exclude)
        algorithm, seed = algorithm or search.algorithm, search.seed
    else:
        space = open_space(what, open_backend(backend).knobs(default_device(backend)))
        algorithm, seed = algorithm or "mixed", 0
    strategy = open_search(algorithm, space, seed=seed)
    return {
        "algorithm": algorithm,
        "size": space.size,
        "planned": strategy.total,
        "routes": [spell(assignment) for assignment in islice(expand(algorithm, space, seed), limit)],
        "explanation": strategy.explain(),
    }


def knob_difference(backend: str, device: str | None, old: Path) -> dict[str, Any]:
    """What changed from a saved knob database to the installed library's; see `routes.difference`.

    Raises:
        BadInput: the file cannot be read, or is no knob database.
    """
    try:
        text = old.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"knob database {old} cannot be read: {error}") from error
    try:
        before = KnobDatabase.from_json(text)
    except BadInput as error:
        raise BadInput(f"{old}: {error}") from error
    now = open_backend(backend).knobs(device or default_device(backend))
    # What was saved without a family, by another tool or an older version, is not gone for that.
    families = {name[0] for name in before}
    kept = [knob for name, knob in now.items() if name[0] in families]
    return difference(before, KnobDatabase(now.version, kept))


def shown(path: Path, store: Store) -> dict[str, Any]:
    """What is published for a target today, and whether it is fresh; on a machine without its device too.

    Raises:
        BadInput: nothing is published, or the target is bad input.
    """
    state = freshness(path, store)
    if state.state == "refused":
        raise BadInput(state.detail)
    if state.publication is None:
        raise BadInput(
            f"target {state.target!r}: nothing is published in {store.name} ({state.state}); "
            f"run 'routetune tune {path}' first"
        )
    return published(state.publication) | {
        "state": state.state,
        "changes": state.to_json()["changes"],
        "detail": state.detail,
        "explanation": _explanation(store, state.publication.manifest["run"]),
    }


def _explanation(store: Store, run: str) -> dict[str, Any] | None:
    """What the run that published told of itself; None where it did not, or is gone."""
    try:
        return store.runs.get(run).summary.get("explanation")
    except BadInput:
        return None


def rolled_back(path: Path, store: Store) -> dict[str, Any]:
    """The publication that is current after going back by one generation.

    Raises:
        BadInput: there is no earlier generation that is whole.
    """
    subject = open_subject(path)
    publication = store.publications.rollback(subject.target.name, subject.key)
    return published(publication) | {"state": f"rolled back to generation {publication.reference.generation}"}


def verification(path: Path, store: Store, public: Sequence[Path] | None = None) -> dict[str, Any]:
    """Every difference between what is published for a target and its manifests; reads every byte.

    With `public`, files of public keys, each manifest must be signed by one of them. Neither the target's
    model nor its device is needed.
    """
    trusted = () if public is None else public_keys(public)
    name = load_target(path).name
    keys = store.publications.environments(name)
    if not keys:
        raise BadInput(f"nothing is published for target {name!r} in {store.name}")
    problems = {key: store.publications.verify(name, key, trusted) for key in keys}
    return {
        "target": name,
        "environments": keys,
        "problems": [problem for key in keys for problem in problems[key]],
    }
