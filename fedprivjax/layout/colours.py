"""Colours, markers and styles of plots. A method has the same ones in every figure, as far as eight colours allow."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.style
import xarray as xr
from matplotlib.figure import Figure

from fedprivjax.checks.values import require_choice
from fedprivjax.protocols.registry import ALGORITHM_CLASSES, METHODS

# tests/layout/test_styles.py states how far apart the colours are, also for colour-blind readers and in greyscale
LIGHT = ("#1A4DA3", "#DB7918", "#0F815D", "#530B46", "#D84B9E", "#706B75", "#8A5A00", "#299DC8")
DARK = ("#4A6ADE", "#DC7930", "#2DD594", "#F4F799", "#DE7CC4", "#9A9A9A", "#B85D41", "#8FE1F2")
DASHES = (
    "-",
    (0, (5, 1.5)),
    (0, (1.5, 1)),
    (0, (5, 1.5, 1.5, 1.5)),
    (0, (8, 2)),
    (0, (5, 1, 1.5, 1, 1.5, 1)),
    (0, (3, 1)),
    (0, (1, 2)),
)
MARKERS = "os^vDxP*"
PLACES = {  # of methods, by class and by name in files
    name: place
    for place, (key, one) in enumerate((METHODS | ALGORITHM_CLASSES).items())
    for name in (key, one.__name__)
}
INK, PAGE, LINES = ("#000000", "#e4e8ec"), ("#ffffff", "#15191d"), ("#b0b0b0", "#4a545e")  # light and dark
CONSTANT = "#666666"
ALONE = ("#333333", "#999999")
IN_THE_DARK = dict(zip((*LIGHT, *ALONE, CONSTANT), (*DARK, "#cccccc", "#777777", "#999999"), strict=True)) | dict(
    [INK, PAGE, LINES]
)


WIDTHS, HEIGHT = (3.25, 6.75), 2.3  # inches of a paper's figure: one panel (a column), several; a row
# mean width in inches of a letter of 10 points, by style
LETTER = {"screen": 0.08, "dark": 0.08, "paper": 0.065, "paper wide": 0.065}
_current: ContextVar[str] = ContextVar("style", default="screen")


@contextmanager
def using(name: str) -> Iterator[None]:
    """Draw the figures of a block in a style: "screen", "dark", "paper" or "paper wide".

    Raises:
        Refusal: if there is no such style.

    >>> with using("dark"):
    ...     colour(0), colour(8)
    ('#4A6ADE', '#4A6ADE')
    """
    require_choice("style", name, LETTER)
    token = _current.set(name)
    try:
        with _settings(name):
            yield
    finally:
        _current.reset(token)


def _settings(name: str) -> AbstractContextManager[None]:
    """Return the context of a style's settings: those of its style sheet, if it has one."""
    sheet = Path(__file__).with_name(f"{name.removesuffix(' wide')}.mplstyle")
    return matplotlib.style.context([sheet] if sheet.exists() else [])


class StyledFigure(Figure):
    """Figure that is saved with the settings of the style in which it was drawn."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._style = _current.get()

    def savefig(self, fname: Any, **options: Any) -> None:
        """Write the figure as in matplotlib. In the styles for papers, a name without an ending gets ".pdf"."""
        with _settings(self._style):
            super().savefig(fname, **options)

    def _repr_png_(self) -> bytes:
        """Return the figure as PNG. A notebook shows it, also without `%matplotlib inline`."""
        written = BytesIO()
        self.savefig(written, format="png")
        return written.getvalue()

    def _repr_svg_(self) -> str:
        """Return the figure as SVG, which a page of a notebook shows in its own theme, light or dark."""
        return themed_svg(self)


def themed_svg(figure: Figure) -> str:
    """Return a figure as SVG whose colours follow the page that shows it, light or dark.

    >>> "prefers-color-scheme: dark" in themed_svg(new_figure(1.0, 1.0, 1, 1))
    True
    """
    written = StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "fedprivjax"}):
        figure.savefig(written, format="svg", metadata={"Date": None})
    place = {light.lower(): f"--c{index}" for index, light in enumerate(IN_THE_DARK)}
    known = re.compile("|".join(place), re.IGNORECASE)
    drawn = known.sub(lambda found: f"var({place[found[0].lower()]})", written.getvalue())
    light, dark = (
        ";".join(f"--c{index}:{value}" for index, value in enumerate(theme))
        for theme in (IN_THE_DARK, IN_THE_DARK.values())
    )
    swapped = "image {filter:invert(1) hue-rotate(180deg)}" * any(axis.images for axis in figure.axes)
    style = (  # glyphs inherit the fill
        f"<style>svg {{{light};fill:var({place[INK[0]]})}} "
        f"@media (prefers-color-scheme: dark) {{svg {{{dark}}} {swapped}}}</style>"
    )
    return re.sub(r"(<svg\b[^>]*>)", rf"\1{style}", drawn, count=1)


def new_figure(width: float, height: float, across: int, rows: int) -> Figure:
    """Return an empty figure for `rows` rows of `across` panels of this size in inches, or of the style's size."""
    style = _current.get()
    paper, wide = style.startswith("paper"), across > 1 or style == "paper wide"
    size = (WIDTHS[wide], HEIGHT * rows) if paper else (width * across, height * rows)
    return StyledFigure(figsize=size, layout="constrained")


def letter_width() -> float:
    """Return the style's mean width in inches of a letter in a legend, at a font size of 10 points."""
    return LETTER[_current.get()]


def colour(slot: int) -> str:
    """Return one of the style's colours.

    >>> colour(0), colour(8)
    ('#1A4DA3', '#1A4DA3')
    """
    colours = DARK if _current.get() == "dark" else LIGHT
    return colours[slot % len(colours)]


def look(slot: int) -> dict[str, Any]:
    """Return colour, line style and marker of a slot, as matplotlib's settings of a line.

    The line styles of slots with one colour differ.

    >>> look(1)
    {'color': '#DB7918', 'ls': (0, (5, 1.5)), 'marker': 's'}
    """
    turn = slot + slot // len(LIGHT)
    return {"color": colour(slot), "ls": DASHES[turn % len(DASHES)], "marker": MARKERS[turn % len(MARKERS)]}


def slots(methods: Iterable[str]) -> list[int]:
    """Return the slots of a figure's series, by texts that begin with their methods: the class, or the name in files.

    The first series of a method has the method's own slot, or the next free one if another method has it. Further ones
    follow.

    >>> slots(["DPMu2", "DPMu2 with clip = 1", "noisy_sgd, one pass", "mine"])
    [0, 3, 1, 2]
    """
    taken: dict[int, int] = {}
    listed = [re.split(r"\W", text, maxsplit=1)[0] for text in methods]
    order = sorted(range(len(listed)), key=lambda index: (listed[index] in listed[:index], listed[index] not in PLACES))
    free = range(-(-len(listed) // len(LIGHT)) * len(LIGHT))
    for index in order:
        wanted = PLACES.get(listed[index], 0) % len(LIGHT)
        first = [*free[wanted:], *free[:wanted]]
        taken[index] = next(slot for slot in first if slot not in taken.values())
    return [taken[index] for index in range(len(listed))]


def looks(best: Mapping[str, xr.Dataset]) -> dict[str, dict[str, Any]]:
    """Return the look of each dataset of a sweep, by label. `slots` says which method has which one."""
    methods = [str(data.attrs.get("protocol", label)) for label, data in best.items()]
    return {label: look(slot) for label, slot in zip(best, slots(methods), strict=True)}


def class_colour(label: int, classes: int) -> Any:
    """Return the colour of one of `classes` classes: one of the style's, or of a continuous scale if there are more."""
    return colour(label) if classes <= len(LIGHT) else matplotlib.colormaps["viridis"](label / (classes - 1))
