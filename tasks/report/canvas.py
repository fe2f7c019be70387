"""What pictures are drawn on: their colours, their style, and a figure that becomes PNG or SVG."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from routetune.tasks.errors import RoutetuneError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
        with styled():
            self.figure.savefig(raw, format="png", dpi=110, facecolor="white")
        return raw.getvalue()

    def svg(self) -> str:
        """The picture as an `<svg>` element, without the header and the metadata of a file."""
        text = io.StringIO()
        with styled():
            self.figure.savefig(text, format="svg", dpi=72, transparent=True, metadata={"Date": None})
        svg = text.getvalue()
        svg = svg[svg.index("<svg") :]
        start, end = svg.index("<metadata>"), svg.index("</metadata>") + len("</metadata>")
        return svg[:start] + svg[end:]


def new_figure(size: tuple[float, float], rows: int = 1, **more: Any) -> tuple[Figure, Sequence[Axes]]:
    """A figure with `rows` axes, one below the other; `size` in inches, `more` for `subplots`."""
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=size, dpi=72)
    ratios = more.pop("height_ratios", None)
    axes = figure.subplots(rows, 1, squeeze=False, gridspec_kw={"height_ratios": ratios}, **more)
    return figure, axes[:, 0]


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the style of the pictures. Raises RoutetuneError: matplotlib is missing."""
    try:
        from matplotlib import rc_context
    except ImportError:
        raise RoutetuneError(
            "pictures are drawn by matplotlib, which is not installed: run 'pip install routetune[report]'"
        ) from None
    with rc_context(_STYLE):
        yield
