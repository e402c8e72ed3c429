"""A plan's bounds against ε, as a figure."""

import xarray as xr
from matplotlib.figure import Figure

from fedprivjax.planner.bounds import EXPLICIT, GRADIENT, TRAINING
from fedprivjax.report.drawing import MARKERS, epsilon_axis


def bound_against_epsilon(found: xr.Dataset) -> Figure:
    """The bounds of a plan (`planner.plan`) against ε, a panel for each kind of bound, a line for each method.

    Above the dotted line, G·D for an excess loss and G for a gradient, a bound says nothing. Those of the training loss
    are dashed.
    """
    kinds = [kind for kind in (EXPLICIT, GRADIENT) if (found["bound_kind"] == kind).any()] or [EXPLICIT]
    figure = Figure(figsize=(6.4 * len(kinds), 6.0), layout="constrained")
    for axis, kind in zip(figure.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        _draw_bounds(axis, found, kind)
        name, most = ("G·D", "trivial") if kind == EXPLICIT else ("G", "lipschitz")
        axis.axhline(found.attrs[most], color="black", ls=":", lw=1, label=f"{name}: vacuous from here on")
        title = "excess loss, explicit constants" if kind == EXPLICIT else "norm of the gradient"
        axis.set(xscale="log", yscale="log", xlabel=f"actual ε  (δ = {found.attrs['delta']:g}, replace-one)")
        axis.set(ylabel="bound", title=title)
        epsilon_axis(axis)
        axis.grid(alpha=0.3, which="both")
        axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
    s = found.attrs
    figure.suptitle(
        f"{s['machines']} machines, {s['per_round']} a round, {s['samples']} records each, d = {s['dimension']}, "
        f"trust {s['trust']}",
        fontsize=10,
    )
    return figure


def _draw_bounds(axis, found: xr.Dataset, kind: str) -> None:
    """A line for each method with a bound of this kind."""
    chosen = found["bound"].where(found["bound_kind"] == kind)
    for index, label in enumerate(found["protocol"].values[chosen.notnull().any("epsilon").values]):
        training = (found["bound_of"].sel(protocol=label) == TRAINING).any()
        words = f"{label} (training loss)" if training else str(label)
        style = {"color": f"C{index % 10}", "ls": "--" if training else "-", "marker": MARKERS[index % len(MARKERS)]}
        axis.plot(found["epsilon"], chosen.sel(protocol=label), label=words, ms=5, mfc="none", **style)
