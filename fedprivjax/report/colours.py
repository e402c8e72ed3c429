"""Colours, markers and styles of plots. A protocol has the same ones in every plot of a set of results."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from fedprivjax.checks.values import require_choice

MARKERS = "os^vDxP*<>"
CYCLE = 10  # colours of matplotlib's default cycle
NAMED_CLASSES = 20  # largest number of classes with distinct colours; more classes share one continuous scale
CONSTANT = "0.4"
ALONE = ("0.2", "0.6")


@dataclass(frozen=True)
class Style:
    """Style of plots.

    Attributes:
        colours: colours of protocols, in order.
        dashes, symbols: line styles and markers of protocols, in order; empty for those of the plot.
        widths: width in inches of a figure with one panel and with several panels in a row, or None for the plot's.
        height: height in inches of a row of panels, if `widths` are given.
        letter: mean width in inches of a letter in a legend, at a font size of 10 points.
        settings: matplotlib's settings for drawing and for saving.
    """

    colours: tuple[str, ...]
    dashes: tuple[Any, ...] = ()
    symbols: str = ""
    widths: tuple[float, float] | None = None
    height: float = 0.0
    letter: float = 0.08
    settings: dict[Any, Any] = field(default_factory=dict)


SCREEN = Style(colours=tuple(f"C{index}" for index in range(CYCLE)))
PAPER = Style(
    # lightness of 21, 75, 50, 33, 62 and 0 of 100; also distinct for protanopia, deuteranopia and tritanopia
    colours=("#2B1F8A", "#E3B23C", "#0B7FB5", "#8C2D04", "#E0719A", "#000000"),
    dashes=("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (5, 1.5, 1.5, 1.5)), (0, (8, 2)), (0, (5, 1, 1.5, 1, 1.5, 1))),
    symbols="os^vDxP",
    widths=(3.35, 6.9),
    height=2.3,
    letter=0.065,
    settings={
        "font.family": "STIXGeneral",
        "mathtext.fontset": "stix",
        "font.size": 8,
        "axes.labelsize": 8,
        "axes.titlesize": 8,
        "xtick.labelsize": 7,
        "ytick.labelsize": 7,
        "axes.linewidth": 0.6,
        "lines.linewidth": 1.2,
        "legend.frameon": False,
        "legend.handlelength": 2.6,
        "figure.dpi": 200,
        "savefig.format": "pdf",
        "pdf.fonttype": 42,  # TrueType: publishers refuse Type 3
        "ps.fonttype": 42,
    },
)
STYLES = {"screen": SCREEN, "paper": PAPER}
_current: ContextVar[Style] = ContextVar("style", default=SCREEN)


@contextmanager
def using(name: str) -> Iterator[None]:
    """Draw the figures of a block in a style, "screen" or "paper".

    Raises:
        Refusal: if there is no such style.

    >>> with using("paper"):
    ...     colour(0), colour(6)
    ('#2B1F8A', '#2B1F8A')
    """
    require_choice("style", name, STYLES)
    token = _current.set(STYLES[name])
    try:
        with matplotlib.rc_context(STYLES[name].settings):
            yield
    finally:
        _current.reset(token)


class StyledFigure(Figure):
    """Figure that is saved with the settings of the style in which it was drawn."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._style = _current.get()

    def savefig(self, fname: Any, **options: Any) -> None:
        """Write the figure as in matplotlib. In the style "paper" a name without an ending gets ".pdf"."""
        with matplotlib.rc_context(self._style.settings):
            super().savefig(fname, **options)

    def _repr_png_(self) -> bytes:
        """Return the figure as PNG. A notebook shows it, also without `%matplotlib inline`."""
        written = BytesIO()
        self.savefig(written, format="png")
        return written.getvalue()


def new_figure(width: float, height: float, across: int, rows: int) -> Figure:
    """Return an empty figure for `rows` rows of `across` panels of this size in inches, or of the style's size."""
    style = _current.get()
    size = (width * across, height * rows)
    if style.widths is not None:
        size = (style.widths[across > 1], style.height * rows)
    return StyledFigure(figsize=size, layout="constrained")


def letter_width() -> float:
    """Return the style's mean width in inches of a letter in a legend, at a font size of 10 points."""
    return _current.get().letter


def colour(index: int) -> str:
    """Return the colour of the protocol at a position in the results.

    >>> colour(0), colour(11)
    ('C0', 'C1')
    """
    colours = _current.get().colours
    return colours[index % len(colours)]


def dashes(index: int, usual: str = "-") -> Any:
    """Return the line style of the protocol at a position in the results, or `usual` if the style has none."""
    own = _current.get().dashes
    return own[index % len(own)] if own else usual


def symbol(index: int, usual: str = "o") -> str:
    """Return the marker of the protocol at a position in the results, or `usual` if the style has none."""
    own = _current.get().symbols
    return own[index % len(own)] if own else usual


def marker(index: int) -> str:
    """Return the marker of the protocol at a position in the results."""
    return MARKERS[index % len(MARKERS)]


def class_colour(label: int, classes: int) -> Any:
    """Return the colour of one of `classes` classes."""
    name = "tab10" if classes <= 10 else "tab20" if classes <= NAMED_CLASSES else "viridis"
    colours = matplotlib.colormaps[name]
    return colours(label) if classes <= NAMED_CLASSES else colours(label / (classes - 1))
