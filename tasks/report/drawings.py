"""The pictures of a run, by matplotlib: the frontier, latencies, effects of knobs, the course of trials."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from routetune.tasks.errors import BadInput, RoutetuneError
from routetune.tasks.report.scale import Scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from routetune.tasks.report.staircase import Staircase

#: What can be written to a file, by its suffix.
SUFFIXES = (".svg", ".png", ".pdf")
#: Inches; text of 9 points is then as large on a phone as the page's own.
SIZE = (4.9, 3.5)
#: Settings for text that stays text, is never taken for a formula, and for equal bytes of equal pictures.
_STYLE: dict[Any, Any] = {
    "font.size": 9.5,
    "svg.fonttype": "none",
    "text.parse_math": False,
    "svg.hashsalt": "routetune",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.02,
}


@dataclass(frozen=True, slots=True)
class Colours:
    """The colours of a picture, as matplotlib takes them."""

    ink: str = "#33383e"
    faint: str = "#d5d9de"
    control: str = "#6b7783"
    winner: str = "#0a7f5a"
    point: str = "#3b6fb5"
    bad: str = "#c2453b"


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure, and where things are in it.

    Attributes:
        places: names -> points of the picture in units of its viewBox, from the upper left.
    """

    figure: Figure
    places: Mapping[str, Any]

    def png(self) -> bytes:
        """The picture on white, as a small file."""
        raw = io.BytesIO()
        with _styled():
            self.figure.savefig(raw, format="png", dpi=110, facecolor="white")
        return raw.getvalue()

    def svg(self) -> str:
        """The picture as an `<svg>` element, without the header and the metadata of a file."""
        text = io.StringIO()
        with _styled():
            self.figure.savefig(text, format="svg", dpi=72, transparent=True, metadata={"Date": None})
        svg = text.getvalue()
        svg = svg[svg.index("<svg") :]
        start, end = svg.index("<metadata>"), svg.index("</metadata>") + len("</metadata>")
        return svg[:start] + svg[end:]


def draw_frontier(stairs: Staircase, file: Path) -> None:
    """Write the frontier into a picture file.

    Raises:
        BadInput: the suffix is not one of SUFFIXES.
        RoutetuneError: matplotlib is missing.
    """
    if file.suffix.lower() not in SUFFIXES:
        raise BadInput(f"plot {file}: its name must end in one of {', '.join(SUFFIXES)}")
    picture = frontier_picture(stairs, float(stairs.target.accuracy.tolerance), Colours())
    with _styled():
        picture.figure.savefig(file, dpi=160, facecolor="white", metadata=_undated(file))


def frontier_picture(stairs: Staircase, epsilon: float, colours: Colours) -> Picture:
    """Loss against speed with the staircase of the fastest; below it, how many routes are eligible.

    "steps" of its places has, for each step of the staircase, the x of its ε and the point of the fastest;
    "line" and "ring" tell where the lines "epsilon-0" and "epsilon-1" and the ring "winner" are drawn; the
    group "points" holds the routes in the order of "routes", their indices.
    """
    scale = Scale([least for least in stairs.thresholds if not math.isnan(least)])
    with _styled():
        figure, (upper, lower) = _figure(SIZE, rows=2, sharex=True, height_ratios=[3, 1])
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


def latency_picture(samples: Mapping[str, Sequence[int]], colours: Colours) -> Picture:
    """How long each call took: the share of calls that were done within a time.

    Args:
        samples: name -> nanoseconds of each call; the last one is the winner.
    """
    import numpy as np

    with _styled():
        figure, (axes,) = _figure((SIZE[0], 2.9))
        longest = 0.0
        for name, colour in zip(samples, (colours.control, colours.winner), strict=False):
            times = np.sort(np.asarray(samples[name], dtype=np.float64)) / 1e6
            share = np.arange(1, len(times) + 1) / len(times)
            kept = _thinned(len(times))
            axes.plot(times[kept], share[kept], color=colour, lw=1.8, label=name, drawstyle="steps-post")
            axes.axvline(float(np.median(times)), color=colour, lw=0.8, ls=":")
            longest = max(longest, float(np.quantile(times, 0.99)))
        axes.set_xlim(right=longest * 1.05)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("milliseconds for a call (up to p99)")
        axes.set_ylabel("share of calls done")
        axes.grid(color=colours.faint, lw=0.5)
        axes.legend(frameon=False, loc="lower right")
        return Picture(figure, {})


def effects_picture(effects: Sequence[Mapping[str, Any]], colours: Colours) -> Picture:
    """What each value of a knob does to the speed, with its interval; the strongest on top."""
    with _styled():
        figure, (axes,) = _figure((SIZE[0], 0.9 + 0.3 * len(effects)))
        for at, one in enumerate(effects):
            ratio, low, high = (float(one[name]) for name in ("ratio", "low", "high"))
            colour = colours.winner if low > 1 else colours.bad if high < 1 else colours.control
            axes.plot([low, high], [at, at], color=colour, lw=2, solid_capstyle="round")
            axes.plot(ratio, at, "o", color=colour, ms=5)
        axes.axvline(1, color=colours.ink, lw=0.8)
        axes.set_yticks(range(len(effects)), [_short(f"{one['knob']}={one['value']}") for one in effects])
        axes.tick_params(axis="y", length=0, labelsize=7.5)
        axes.invert_yaxis()
        axes.set_xlabel("speed with it / speed with the default")
        axes.grid(axis="x", color=colours.faint, lw=0.5)
        return Picture(figure, {})


def course_picture(lanes: Mapping[str, Sequence[tuple[float, float]]], colours: Colours) -> Picture:
    """When each trial was worked on, in lanes by what became of it.

    Args:
        lanes: name -> (start, length) of each trial, in seconds of work since the start.
    """
    shades = (colours.winner, colours.control, colours.point, colours.bad)
    with _styled():
        figure, (axes,) = _figure((SIZE[0], 0.8 + 0.32 * len(lanes)))
        for at, ((_, spans), colour) in enumerate(zip(lanes.items(), shades, strict=False)):
            axes.broken_barh(spans, (at - 0.3, 0.6), facecolors=colour, edgecolors="none", alpha=0.8)
            # What the store answered takes no time, and must be seen all the same.
            axes.plot([start for start, _ in spans], [at] * len(spans), "|", color=colour, ms=9, mew=1)
        axes.set_yticks(range(len(lanes)), [f"{name} ({len(spans)})" for name, spans in lanes.items()])
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.set_xlabel("seconds of work")
        axes.grid(axis="x", color=colours.faint, lw=0.5)
        return Picture(figure, {})


def _points(axes: Axes, stairs: Staircase, scale: Scale, colours: Colours) -> list[int]:
    """The timed routes; those that cannot win, since they were given up or are aliases, are hollow."""
    rows, least = stairs.rows, stairs.thresholds
    drawn = [at for at, loss in enumerate(least) if not math.isnan(loss) and rows[at]["speed"]]
    where = [(scale.place(least[at]), rows[at]["speed"]) for at in drawn]
    may_win = [rows[at]["alias_of"] is None and not rows[at]["abandoned"] for at in drawn]
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


def _thinned(count: int, most: int = 400) -> Any:
    """At most `most` indices, evenly over all: a curve of more points looks the same and weighs more."""
    import numpy as np

    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(int))


def _short(text: str, most: int = 34) -> str:
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[-most // 2 :]}"


def _figure(size: tuple[float, float], rows: int = 1, **more: Any) -> tuple[Figure, Sequence[Axes]]:
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=size, dpi=72)
    ratios = more.pop("height_ratios", None)
    axes = figure.subplots(rows, 1, squeeze=False, gridspec_kw={"height_ratios": ratios}, **more)
    return figure, axes[:, 0]


def _undated(file: Path) -> dict[str, Any]:
    """Metadata without the time of drawing."""
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(file.suffix.lower(), {})


@contextmanager
def _styled() -> Iterator[None]:
    try:
        from matplotlib import rc_context
    except ImportError:
        raise RoutetuneError(
            "pictures are drawn by matplotlib, which is not installed: run 'pip install routetune[report]'"
        ) from None
    with rc_context(_STYLE):
        yield
