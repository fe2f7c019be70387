"""The picture of the frontier, by matplotlib: loss against speed, and how many routes are eligible."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from routetune.tasks.errors import BadInput
from routetune.tasks.report.canvas import SIZE, Colours, Picture, new_figure, styled
from routetune.tasks.report.scale import Scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from routetune.tasks.report.staircase import Staircase

#: What can be written to a file, by its suffix.
SUFFIXES = (".svg", ".png", ".pdf")


def draw_frontier(stairs: Staircase, file: Path) -> None:
    """Write the frontier into a picture file.

    Raises:
        BadInput: the suffix is not one of SUFFIXES.
        RoutetuneError: matplotlib is missing.
    """
    if file.suffix.lower() not in SUFFIXES:
        raise BadInput(f"plot {file}: its name must end in one of {', '.join(SUFFIXES)}")
    picture = frontier_picture(stairs, float(stairs.target.accuracy.tolerance), Colours())
    with styled():
        picture.figure.savefig(file, dpi=160, facecolor="white", metadata=_undated(file))


def frontier_picture(stairs: Staircase, epsilon: float, colours: Colours) -> Picture:
    """Loss against speed with the staircase of the fastest; below it, how many routes are eligible.

    "steps" of its places has, for each step of the staircase, the x of its ε and the point of the fastest;
    "line" and "ring" tell where the lines "epsilon-0" and "epsilon-1" and the ring "winner" are drawn; the
    group "points" holds the routes in the order of "routes", their indices.
    """
    scale = Scale([least for least in stairs.thresholds if not math.isnan(least)])
    with styled():
        figure, (upper, lower) = new_figure(SIZE, rows=2, sharex=True, height_ratios=[3, 1])
        routes = _points(upper, stairs, scale, colours)
        _staircase(upper, lower, stairs, scale, colours)
        at = _step_at(stairs, epsilon)
        for axes in (upper, lower):
            line: dict[str, Any] = {"color": colours.winner, "lw": 1, "ls": (0, (3, 2))}
            axes.axvline(scale.place(epsilon), gid=f"epsilon-{axes is upper:d}", **line)
        ring = _ring(upper, stairs, scale, at, colours)
        _log_speeds(upper, colours)
        upper.set_ylabel("speed, default = 1")
        lower.set_ylabel("eligible")
        lower.set_xlabel(f"ε, bound of {stairs.metric}")
        lower.set_ylim(0, None)
        lower.set_xlim(*scale.ends)
        for middle in scale.breaks:
            where: dict[str, Any] = {"transform": lower.get_xaxis_transform(), "ha": "center", "va": "center"}
            lower.text(middle, 0, "//", color=colours.ink, **where)
        lower.set_xticks([place for place, _ in scale.ticks], [text for _, text in scale.ticks])
        figure.draw_without_rendering()
        places = {
            "steps": _places(upper, stairs, scale),
            "routes": routes,
            "line": _dot(upper, scale.place(epsilon), 1.0)[0],
            "ring": ring and _dot(upper, *ring),
        }
        return Picture(figure, places)


def _points(axes: Axes, stairs: Staircase, scale: Scale, colours: Colours) -> list[int]:
    """The timed routes; those that cannot win, since they are aliases, are hollow."""
    rows, least = stairs.rows, stairs.thresholds
    drawn = [at for at, loss in enumerate(least) if not math.isnan(loss) and rows[at]["speed"]]
    where = [(scale.place(least[at]), rows[at]["speed"]) for at in drawn]
    may_win = [rows[at]["alias_of"] is None for at in drawn]
    axes.scatter(
        [x for x, _ in where],
        [y for _, y in where],
        s=16,
        facecolors=[colours.point if able else "none" for able in may_win],
        edgecolors=colours.point,
        linewidths=0.8,
        gid="points",
    )
    return drawn


def _staircase(upper: Axes, lower: Axes, stairs: Staircase, scale: Scale, colours: Colours) -> None:
    steps = stairs.steps[::-1]
    xs = [*(scale.place(step.epsilon) for step in steps), scale.ends[1]]
    if not steps:
        return
    speeds = [math.nan if s.fastest is None else stairs.rows[s.fastest]["speed"] for s in steps]
    counts = [step.eligible for step in steps]
    line: dict[str, Any] = {"drawstyle": "steps-post", "color": colours.ink, "lw": 1.2}
    upper.plot(xs, [*speeds, speeds[-1]], **line)
    lower.plot([scale.ends[0], *xs], [0, *counts, counts[-1]], **line)
    lower.fill_between(
        [scale.ends[0], *xs], [0, *counts, counts[-1]], step="post", color=colours.faint, alpha=0.6
    )


def _ring(
    axes: Axes, stairs: Staircase, scale: Scale, at: int | None, colours: Colours
) -> tuple[float, float] | None:
    """A ring around the fastest at a step, or around any other where that has none; where it was drawn."""
    index = None if at is None else stairs.steps[at].fastest
    if index is None:
        index = next((step.fastest for step in stairs.steps if step.fastest is not None), None)
    if index is None:
        return None
    point = scale.place(stairs.thresholds[index]), float(stairs.rows[index]["speed"])
    ring: dict[str, Any] = {"ms": 10, "mfc": "none", "mec": colours.winner, "mew": 2, "clip_on": False}
    axes.plot(*point, "o", gid="winner", zorder=5, **ring)
    return point


def _places(axes: Axes, stairs: Staircase, scale: Scale) -> list[dict[str, Any]]:
    """For each step, where its ε and its fastest are in the picture; None where there is no fastest."""
    places = []
    for step in stairs.steps:
        fastest = None
        if step.fastest is not None:
            least, speed = stairs.thresholds[step.fastest], stairs.rows[step.fastest]["speed"]
            fastest = _dot(axes, scale.place(least), speed)
        places.append({"x": _dot(axes, scale.place(step.epsilon), 1.0)[0], "fastest": fastest})
    return places


def _dot(axes: Axes, x: float, y: float) -> list[float]:
    """A point of the axes in units of the picture's viewBox, from the upper left."""
    height = axes.get_figure(root=True).get_size_inches()[1] * 72  # type: ignore[union-attr]
    across, up = axes.transData.transform((x, y))
    return [round(float(across), 2), round(float(height - up), 2)]


def _step_at(stairs: Staircase, epsilon: float) -> int | None:
    """The step that a tolerance falls on, or None below them all."""
    return next((at for at, step in enumerate(stairs.steps) if step.epsilon <= epsilon), None)


def _log_speeds(axes: Axes, colours: Colours) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    ticks = [tick for tick in _speeds() if low <= tick <= high]
    while len(ticks) > 7:
        ticks = ticks[::2]
    if len(ticks) >= 2:
        axes.set_yticks(ticks)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.axhline(1, color=colours.faint, lw=1, zorder=0)


def _speeds() -> Iterator[float]:
    yield from (base * 10.0**power for power in range(-3, 4) for base in (1, 1.2, 1.5, 2, 3, 5, 7))


def _undated(file: Path) -> dict[str, Any]:
    """Metadata without the time of drawing."""
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(file.suffix.lower(), {})
