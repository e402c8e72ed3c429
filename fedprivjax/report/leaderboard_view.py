"""Tables and plots of leaderboard rows."""

from collections.abc import Iterable, Sequence
from math import nan

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedprivjax.engine.metrics import known
from fedprivjax.report.choices import CHOSEN
from fedprivjax.report.colours import colour, dashes, marker, new_figure, symbol
from fedprivjax.report.drawing import epsilon_axis
from fedprivjax.report.leaderboard_fields import Row
from fedprivjax.report.number_format import count_text, epsilon_text, number_text
from fedprivjax.report.text_table import Sheet

PANEL = ("experiment", "federation", "metric", "delta", "unit", "relation")  # equal within a panel, with the setting
PANEL_SIZE = 7.5, 3.8  # width and height in inches, with the legend


def ranked(rows: Iterable[Row]) -> list[Row]:
    """Return rows of one comparison, the best mean first.

    >>> ranked([{"mean": 0.1, "better": "higher"}, {"mean": 0.2, "better": "higher"}])[0]["mean"]
    0.2
    """
    return sorted(rows, key=lambda row: -row["mean"] if row["better"] == "higher" else row["mean"])


def row_table(rows: Sequence[Row], *, named: bool = False) -> Sheet:
    """Return a table of one comparison. The title states experiment, metric, ε, δ, unit, relation and trust model.

    Args:
        rows: rows of the comparison, in order.
        named: whether the title also has the digest of the federation, since its experiment was run with several.
    """
    first = rows[0]
    metric = known(first["metric"])
    setting = "".join(f", {name} {value:g}" for name, value in first["setting"].items())
    target = first["target_epsilon"]
    level = f"ε = {first['epsilon']:.4g} given by the noise" if target is None else f"ε = {target:.3g}"
    subject = f"{level} at δ = {first['delta']:g} for {first['unit']} ({first['relation']}), trust: {first['trust']}"
    setting += f" (federation {first['federation']})" * named
    table = Sheet(f"{first['experiment']}{setting}: {metric.title}, mean ± 95% interval; {subject}")
    table.add_columns("method", justify="left")
    table.add_columns(metric.title, "realised ε", "seeds", "rounds", "gradients a record", "bytes a machine sends")
    table.add_columns("commit", justify="left")
    for row in rows:
        gradients = nan if row["gradients_per_record"] is None else row["gradients_per_record"]
        table.add_row(
            row["method"] + CHOSEN * bool(row["not_covered"]),
            f"{metric.text(row['mean'])} ± {metric.text(row['half_width'])}",
            epsilon_text(row["epsilon"]) + (" (claimed)" if not row["proved"] else ""),
            str(row["seeds"]),
            f"{row['rounds']:.0f}",
            number_text(gradients, "–"),
            count_text(row["sent_bytes"]),
            _code(row),
        )
    return table


def row_plot(rows: Iterable[Row]) -> Figure:
    """Return a plot of means and 95% intervals against ε, a panel for each federation, a line for each method."""
    panels: dict[str, list[Row]] = {}
    for row in rows:
        panels.setdefault(str([row[name] for name in (*PANEL, "setting")]), []).append(row)
    figure = new_figure(*PANEL_SIZE, 1, len(panels))
    axes = figure.subplots(len(panels), squeeze=False).ravel().tolist()
    for axis, panel in zip(axes, panels.values(), strict=True):
        _draw(axis, panel)
    return figure


def notes(rows: Sequence[Row]) -> list[str]:
    """Return the footnotes of tables: marks, choices of settings that no guarantee covers, and the commands."""
    chosen = dict.fromkeys(f"{row['method']}: {row['not_covered']}" for row in rows if row["not_covered"])
    tuned = any(row["tuned"] for row in rows)
    return [
        *(f"‡ not covered by the guarantee. {text}" for text in chosen),
        "realised ε, relation and theorem are those of the worst run, also over trials with data of their own",
        *["settings tuned on other data are stated in the field `tuned`"] * tuned,
        *dict.fromkeys(f"{row['experiment']}: {row['command']}" for row in rows),
        "gradients and bytes are expected values where samples or participation are secret",
        "simulation randomness: not for deployment",
    ]


def _draw(axis: Axes, rows: Sequence[Row]) -> None:
    first, scale = rows[0], known(rows[0]["metric"]).scale
    methods = dict.fromkeys((row["method"], row["trust"]) for row in rows)
    trusts = {trust for _, trust in methods}
    for index, (method, trust) in enumerate(methods):
        own = sorted((row for row in rows if (row["method"], row["trust"]) == (method, trust)), key=_level)
        values = [[scale * row[name] for row in own] for name in ("mean", "half_width")]
        label = method + CHOSEN * any(row["not_covered"] for row in own) + f" (trust: {trust})" * (len(trusts) > 1)
        look = {"color": colour(index), "ls": dashes(index), "marker": symbol(index, marker(index))}
        axis.errorbar([_level(row) for row in own], values[0], values[1], capsize=2, ms=4, label=label, **look)
    trust = "" if len(trusts) > 1 else f", trust: {first['trust']}"
    axis.set(
        xlabel=f"ε for {first['unit']} (δ = {first['delta']:g}, {first['relation']}{trust})",
        ylabel=known(first["metric"]).title,
        title=", ".join([first["experiment"], *(f"{name} {value:g}" for name, value in first["setting"].items())]),
    )
    epsilon_axis(axis, {_level(row) for row in rows})
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="small")


def _level(row: Row) -> float:
    return row["epsilon"] if row["target_epsilon"] is None else row["target_epsilon"]


def _code(row: Row) -> str:
    """Return the shortened commit, with "+" if files had changed, or the version."""
    commit = row["commit"]
    return row["version"] if commit is None else commit[:7] + "+" * commit.endswith("+")
