"""Plot of how data are partitioned over machines."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedprivjax.layout.colours import class_colour, colour

NAMED_CLASSES = 20  # largest number of classes that are named
NAMED = 30  # largest number of machines that are named on the axis
ORDERED = 100  # number of machines above which they are sorted by class
LEVELS = (5, 25, 50, 75, 95)  # percentiles of a machine's numeric labels


def plot_partition(
    labels: Any,
    table: Any,
    *,
    class_names: Sequence[str] = (),
    machine_names: Sequence[str] = (),
    classes: int | None = None,
) -> Figure:
    """Plot the examples of every machine: stacked by class, or for numeric labels, sizes above label percentiles.

    More than `ORDERED` machines stand in the order of their most frequent class and size.

    Args:
        labels: label of every example, shape [examples].
        table: indices of each machine's examples: int, shape [machines, max_records], padded with −1, or a list of
            index arrays.
        class_names, machine_names: names to show instead of numbers.
        classes: number of classes, or None for numeric labels.

    >>> figure = plot_partition([0, 1, 1, 0], [[0, 1], [2, -1]], classes=2)
    >>> [patch.get_data().values.tolist() for patch in figure.axes[0].patches]  # tops of both classes
    [[1.0, 0.0], [2.0, 1.0]]
    """
    labels = np.asarray(labels)
    parts = [np.asarray(part, int)[np.asarray(part, int) >= 0] for part in table]
    figure = Figure(figsize=(min(4.0 + 0.22 * len(parts), 14.0), 3.8), layout="constrained")
    if classes is None:
        axis, below = figure.subplots(2, 1, sharex=True)
        _draw_steps(axis, np.zeros(len(parts)), np.array([part.size for part in parts], float), color=colour(0))
        _draw_percentiles(below, labels, parts)
    else:
        axis = below = figure.subplots()
        _draw_classes(axis, labels, parts, classes, class_names)
    axis.set_ylim(bottom=0)
    sizes = np.array([part.size for part in parts])
    spread = f"{sizes.min()}" if sizes.min() == sizes.max() else f"{sizes.min()} to {sizes.max()}"
    axis.set(ylabel="examples", title=f"{len(parts)} machines of {spread} examples, {sizes.sum()} in all")
    _name_machines(below, len(parts), machine_names)
    return figure


def _draw_classes(axis, labels: np.ndarray, parts: list[np.ndarray], classes: int, names: Sequence[str]) -> None:
    """Draw the classes of each machine above each other."""
    counts = np.array([np.bincount(labels[part], minlength=classes) for part in parts], float)
    if len(parts) > ORDERED:
        counts = counts[np.lexsort((-counts.sum(axis=1), counts.argmax(axis=1)))]
        axis.set_xlabel("machines by most frequent class and size")
    tops = np.hstack([np.zeros((len(parts), 1)), np.cumsum(counts, axis=1)])
    for label in range(classes):
        words = names[label] if names else str(label)
        _draw_steps(axis, tops[:, label], tops[:, label + 1], color=class_colour(label, classes), label=words)
    if classes <= NAMED_CLASSES:
        axis.figure.legend(*axis.get_legend_handles_labels(), loc="outside right upper", title="class", fontsize=8)


def _draw_steps(axis, low: np.ndarray, high: np.ndarray, **style: Any) -> None:
    """Draw an area between two values of each machine."""
    axis.stairs(high, np.arange(len(high) + 1) - 0.5, baseline=low, fill=True, **style)


def _draw_percentiles(axis, labels: np.ndarray, parts: list[np.ndarray]) -> None:
    """Draw the percentiles of each machine's labels: a line at the median, and areas around it."""
    none = np.full(len(LEVELS), np.nan)
    levels = np.array([np.percentile(labels[part], LEVELS) if part.size else none for part in parts]).T
    _draw_steps(axis, levels[0], levels[4], color=colour(0), alpha=0.3)
    _draw_steps(axis, levels[1], levels[3], color=colour(0), alpha=0.5)
    axis.stairs(levels[2], np.arange(len(parts) + 1) - 0.5, baseline=None, color="black")
    axis.set_ylabel("label (median,\n25–75%, 5–95%)")


def _name_machines(axis, machines: int, names: Sequence[str]) -> None:
    axis.set_xlim(-0.6, machines - 0.4)
    if machines <= NAMED:
        words = names or [str(machine) for machine in range(machines)]
        long = max(map(len, words)) > 3
        axis.set_xticks(range(machines), words, rotation=60 if long else 0, ha="right" if long else "center")
    if not axis.get_xlabel():
        axis.set_xlabel("machine")
