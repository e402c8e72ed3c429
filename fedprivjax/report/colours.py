"""Colours and markers of plots: the same for a protocol in every plot of one set of results."""

from typing import Any

import matplotlib

MARKERS = "os^vDxP*<>"
CYCLE = 10  # colours of matplotlib's default cycle
NAMED_CLASSES = 20  # classes with a colour of their own; more are shades of one scale
CONSTANT = "0.4"
ALONE = ("0.2", "0.6")


def colour(index: int) -> str:
    """Colour of the protocol at a position in the results.

    >>> colour(0), colour(11)
    ('C0', 'C1')
    """
    return f"C{index % CYCLE}"


def marker(index: int) -> str:
    """Marker of the protocol at a position in the results."""
    return MARKERS[index % len(MARKERS)]


def class_colour(label: int, classes: int) -> Any:
    """Colour of one class out of `classes`."""
    name = "tab10" if classes <= 10 else "tab20" if classes <= NAMED_CLASSES else "viridis"
    colours = matplotlib.colormaps[name]
    return colours(label) if classes <= NAMED_CLASSES else colours(label / (classes - 1))
