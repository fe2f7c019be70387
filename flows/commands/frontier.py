"""ε as a dial: what each tolerance would give, help to choose one, and publishing by it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer
from routetune.flows.commands.common import Json, StoreOption, TargetArgument, answer, app
from routetune.tasks.errors import RoutetuneError


def _epsilon(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value >= 0:
        raise typer.BadParameter(f'{text!r} is not a number from 0 (bit-identical) up, or "inf" (off)')
    return value


Metric = Annotated[
    str | None, typer.Option(help="A metric instead of the target's; its losses must be in the records.")
]
RunOption = Annotated[
    str | None, typer.Option("--run", help="Which run. [default: the latest in this environment]")
]


@app.command()
def frontier(
    target: TargetArgument,
    metric: Metric = None,
    epsilon: Annotated[
        list[float] | None,
        typer.Option(parser=_epsilon, metavar="E", help="Answer for this ε too; may be given several times."),
    ] = None,
    run: RunOption = None,
    plot: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Draw the staircase into this file (.svg, .png or .pdf)."),
    ] = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Show for every ε how many routes are eligible and which is the fastest. Builds nothing."""
    from routetune.tasks.report.staircase import open_staircase, told
    from routetune.tasks.store import open_store

    stairs = open_staircase(target, open_store(store, write=False), metric, run)
    if plot is not None:
        from routetune.tasks.report.frontier_drawing import draw_frontier

        draw_frontier(stairs, plot)
    answer(told(stairs, epsilon or []), as_json, "dial:frontier")


@app.command()
def epsilon(
    target: TargetArgument,
    metric: Metric = None,
    run: RunOption = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Help to choose ε: losses to hold it against, and the task accuracy at each step. Builds nothing."""
    from routetune.tasks.report.epsilon import epsilon as weigh
    from routetune.tasks.store import open_store

    answer(weigh(target, open_store(store, write=False), metric, run), as_json, "dial:epsilon")


@app.command()
def publish(
    target: TargetArgument,
    epsilon: Annotated[float, typer.Option(parser=_epsilon, metavar="E", help="The tolerance to select by.")],
    metric: Metric = None,
    run: RunOption = None,
    store: StoreOption = None,
    as_json: Json = False,
) -> None:
    """Select among recorded trials by another ε, time the finalists again, and publish; builds nothing.

    Exit codes: 0 done, 1 failed or needs build, 2 bad input, 4 no eligible route.
    """
    from routetune.tasks.recorded import recorded
    from routetune.tasks.status import freshness_of
    from routetune.tasks.store import open_store
    from routetune.tasks.store.signing import open_signer
    from routetune.tasks.subject import check_inputs, judged_by, open_subject

    opened = open_store(store)
    subject = judged_by(open_subject(target), epsilon, metric)
    state = freshness_of(subject, opened)
    if state.state == "cannot tell":
        raise RoutetuneError(f"target {subject.target.name!r}: {state.detail}")
    check_inputs(subject)
    open_signer(subject.target.publish.sign_key, opened.root)
    recorded(subject, opened, run, columns=("route",))
    from routetune.flows.run import run_publish

    found = run_publish(target, opened.name, epsilon, metric, run, quiet=as_json)
    answer(found, as_json, "run_summary")
