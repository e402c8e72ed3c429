"""Plot of the bounds of a method comparison against ε."""

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from fedprivjax.method.planning.bounds import EXPLICIT, GRADIENT, TRAINING
from fedprivjax.report.colours import colour, marker
from fedprivjax.report.drawing import epsilon_axis
from fedprivjax.report.relations import relations, terms_of


def bound_against_epsilon(found: xr.Dataset, pilot: xr.Dataset | None = None) -> Figure:
    """Plot the bounds of a plan (`planner.plan`) against ε, one panel per kind of bound, one line per method.

    A bound above the dotted line is vacuous. The line is G·D for an excess loss and G for a gradient. Bounds on the
    training loss are dashed. The accuracy of a pilot run, if there was one, has a separate panel.

    Args:
        pilot: plan with the pilot runs, if it is another one, for example at fewer ε. Default: `found`.
    """
    pilot = found if pilot is None else pilot
    kinds = [kind for kind in (EXPLICIT, GRADIENT) if (found["bound_kind"] == kind).any()] or [EXPLICIT]
    panels = len(kinds) + ("pilot" in pilot.attrs)
    figure = Figure(figsize=(6.4 * panels, 6.0), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    if "pilot" in pilot.attrs:
        _draw_pilot(axes[-1], pilot)
    for axis, kind in zip(axes, kinds, strict=False):
        _draw_bounds(axis, found, kind)
        name, most = ("G·D", "trivial") if kind == EXPLICIT else ("G", "lipschitz")
        axis.axhline(found.attrs[most], color="black", ls=":", lw=1, label=f"{name}: vacuous from here on")
        title = "excess loss, explicit constants" if kind == EXPLICIT else "norm of the gradient"
        axis.set(
            xscale="log", yscale="log", xlabel=f"actual ε  (δ = {found.attrs['delta']:g}, {relations(terms_of(found))})"
        )
        axis.set(ylabel="bound", title=title)
        _finish(axis)
    s = found.attrs
    figure.suptitle(
        f"{s['machines']} machines, {s['per_round']} a round, {s['samples']} records each, d = {s['dimension']}, "
        f"trust {s['trust']}",
        fontsize=10,
    )
    return figure


def _draw_bounds(axis, found: xr.Dataset, kind: str) -> None:
    """Draw a line for each method with a bound of this kind."""
    chosen = found["bound"].where(found["bound_kind"] == kind)
    for index, label in enumerate(found["protocol"].values[chosen.notnull().any("epsilon").values]):
        training = (found["bound_of"].sel(protocol=label) == TRAINING).any()
        words = f"{label} (training loss)" if training else str(label)
        style = {"color": colour(index), "ls": "--" if training else "-", "marker": marker(index)}
        axis.plot(found["epsilon"], chosen.sel(protocol=label), label=words, ms=5, mfc="none", **style)


def _draw_pilot(axis, found: xr.Dataset) -> None:
    """Draw accuracy on synthetic data against ε, one line for each method with a pilot run."""
    accuracy = 100 * found["pilot_accuracy"]
    for index, label in enumerate(found["protocol"].values[accuracy.notnull().any("epsilon").values]):
        style = {"color": colour(index), "marker": marker(index), "ms": 5, "mfc": "none"}
        half = 100 * np.nan_to_num(found["pilot_interval"].sel(protocol=label))
        axis.errorbar(found["epsilon"], accuracy.sel(protocol=label), half, label=str(label), capsize=2, **style)
    axis.set(xscale="log", xlabel="actual ε", ylabel="accuracy in %, synthetic data")
    axis.set_title(found.attrs["pilot"].replace("; ", "\n"), fontsize=9)
    _finish(axis)


def _finish(axis) -> None:
    """Add ticks, a grid and a legend below the axis."""
    epsilon_axis(axis)
    axis.grid(alpha=0.3, which="both")
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
