"""Colours and markers of plots. A protocol has the same ones in every plot of a set of results."""

from typing import Any

import matplotlib

MARKERS = "os^vDxP*<>"
CYCLE = 10  # colours of matplotlib's default cycle
NAMED_CLASSES = 20  # largest number of classes with distinct colours; more classes share one continuous scale
CONSTANT = "0.4"
ALONE = ("0.2", "0.6")


def colour(index: int) -> str:
    """Return the colour of the protocol at a position in the results.

    >>> colour(0), colour(11)
    ('C0', 'C1')
    """
    return f"C{index % CYCLE}"


def marker(index: int) -> str:
    """Return the marker of the protocol at a position in the results."""
    return MARKERS[index % len(MARKERS)]


def class_colour(label: int, classes: int) -> Any:
    """Return the colour of one of `classes` classes."""
    name = "tab10" if classes <= 10 else "tab20" if classes <= NAMED_CLASSES else "viridis"
    colours = matplotlib.colormaps[name]
    return colours(label) if classes <= NAMED_CLASSES else colours(label / (classes - 1))
