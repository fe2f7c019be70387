"""The pictures of a run, by matplotlib: latencies, effects of knobs, the course of trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from routetune.tasks.report.canvas import SIZE, Colours, Picture, new_figure, styled


def latency_picture(samples: Mapping[str, Sequence[int]], colours: Colours) -> Picture:
    """How long each call took: the share of calls that were done within a time.

    Args:
        samples: name -> nanoseconds of each call; the last one is the winner.
    """
    import numpy as np

    with styled():
        figure, (axes,) = new_figure((SIZE[0], 2.9))
        longest = 0.0
        for name, colour in zip(samples, (colours.control, colours.winner), strict=False):
            times = np.sort(np.asarray(samples[name], dtype=np.float64)) / 1e6
            share = np.arange(1, len(times) + 1) / len(times)
            kept = _thinned(len(times))
            axes.plot(
                times[kept], share[kept], color=colour, lw=1.8, label=_short(name, 50), drawstyle="steps-post"
            )
            axes.axvline(float(np.median(times)), color=colour, lw=0.8, ls=":")
            longest = max(longest, float(np.quantile(times, 0.99)))
        axes.set_xlim(right=longest * 1.05)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("milliseconds for a call (up to p99)")
        axes.set_ylabel("share of calls done")
        axes.grid(color=colours.faint, lw=0.5)
        figure.legend(frameon=False, loc="outside upper left")
        return Picture(figure, {})


def effects_picture(effects: Sequence[Mapping[str, Any]], colours: Colours) -> Picture:
    """What each value of a knob does to the speed, with its interval; the strongest on top."""
    with styled():
        figure, (axes,) = new_figure((SIZE[0], 0.9 + 0.3 * len(effects)))
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
    shades = {
        "built": colours.winner,
        "shared build": colours.winner,
        "from the store": colours.control,
        "alias": colours.point,
        "given up": colours.ink,
        "failed": colours.bad,
    }
    with styled():
        figure, (axes,) = new_figure((SIZE[0], 0.8 + 0.32 * len(lanes)))
        for at, (name, spans) in enumerate(lanes.items()):
            colour = shades[name]
            axes.broken_barh(spans, (at - 0.3, 0.6), facecolors=colour, edgecolors="none", alpha=0.8)
            # What the store answered takes no time, and must be seen all the same.
            axes.plot([start for start, _ in spans], [at] * len(spans), "|", color=colour, ms=9, mew=1)
        axes.set_yticks(range(len(lanes)), [f"{name} ({len(spans)})" for name, spans in lanes.items()])
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        right = max(axes.get_xlim()[1], 1.0)
        axes.set_xlim(-0.02 * right, right)
        axes.set_xlabel("seconds of work")
        axes.grid(axis="x", color=colours.faint, lw=0.5)
        return Picture(figure, {})


def _thinned(count: int, most: int = 400) -> Any:
    """At most `most` indices, evenly over all: a curve of more points looks the same and weighs more."""
    import numpy as np

    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(int))


def _short(text: str, most: int = 34) -> str:
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[-most // 2 :]}"
