"""Leaderboard of private methods: rows of finished results, joined in one JSON file, as tables and plots."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from fedprivjax.atomic_write import write_atomically
from fedprivjax.bounded_read import json_from
from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.engine.metrics import known
from fedprivjax.experiment import bundle
from fedprivjax.experiment.results import Results, load
from fedprivjax.layout.colours import look, new_figure, slots
from fedprivjax.layout.drawing import draw_curve, epsilon_axis
from fedprivjax.layout.text_table import Sheet
from fedprivjax.layout.wording import CHOSEN, count_text, epsilon_text, grouped, number_text, power_text
from fedprivjax.leaderboards.rows import FIELDS, Row, faults, leaderboard_rows
from fedprivjax.privacy.rounding import up
from fedprivjax.report.display import Tables

PANEL = ("experiment", "federation", "metric", "delta", "unit", "relation", "setting")  # equal within a panel
PANEL_SIZE = 5.6, 5.2  # width and height in inches, with the legend
BELOW = 0.5  # inches from a panel's horizontal axis to its legend: the axis's numbers and label
FORMAT = 1
FRONTIER = "frontier.json"


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
    level = f"ε = {up(first['epsilon'], 4)} given by the noise" if target is None else f"ε = {up(target, 3)}"
    subject = f"{level} at δ = {first['delta']:g} for {first['unit']} ({first['relation']}), trust: {first['trust']}"
    setting += f" (federation {first['federation']})" * named
    table = Sheet(f"{first['experiment']}{setting}: {metric.title}, mean ± 95% interval; {subject}")
    table.add_columns("method", justify="left")
    table.add_columns(metric.title, "realised ε", "seeds", "rounds", "gradients a record", "bytes a machine sends")
    table.add_columns("commit", justify="left")
    for row in rows:
        table.add_row(
            row["method"] + CHOSEN * bool(row["not_covered"]),
            f"{metric.text(row['mean'])} ± {metric.text(row['half_width'])}",
            epsilon_text(row["epsilon"]) + (" (claimed)" if not row["proved"] else ""),
            str(row["seeds"]),
            f"{row['rounds']:.0f}",
            "–" if row["gradients_per_record"] is None else number_text(row["gradients_per_record"]),
            count_text(row["sent_bytes"]),
            _code(row),
        )
    return table


def best_tables(board: "Leaderboard") -> list[Sheet]:
    """Return a table for each metric, with a line for the best method of each experiment at the middle one of its ε.

    An experiment has several lines if its rows have several trust models, units or settings, for example. Its trust
    model is stated in parentheses, unless it is "none".
    """
    tables: dict[str, Sheet] = {}
    for rows in grouped((str([row[name] for name in (*PANEL, "trust")]), row) for row in board.rows).values():
        levels = sorted({_level(row) for row in rows})
        level = levels[(len(levels) - 1) // 2]
        best = ranked(row for row in rows if _level(row) == level)[0]
        metric = known(best["metric"])
        if metric.name not in tables:
            tables[metric.name] = Sheet(f"{metric.title}: best mean ± 95% interval at the middle one of the swept ε")
            tables[metric.name].add_columns("experiment", justify="left")
            tables[metric.name].add_columns("ε", "mean")
            tables[metric.name].add_columns("best method", justify="left")
        setting = "".join(f", {name} {value:g}" for name, value in best["setting"].items())
        tables[metric.name].add_row(
            best["experiment"] + setting + ("" if best["trust"] == "none" else f" ({best['trust']})"),
            up(level, 3),
            f"{metric.text(best['mean'])} ± {metric.text(best['half_width'])}",
            best["method"] + CHOSEN * bool(best["not_covered"]),
        )
    return list(tables.values())


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
    methods, levels = dict.fromkeys((row["method"], row["trust"]) for row in rows), {_level(row) for row in rows}
    trusts = {trust for _, trust in methods}
    protocol = {(row["method"], row["trust"]): row["protocol"] for row in rows}
    for slot, (method, trust) in zip(slots(map(protocol.__getitem__, methods)), methods, strict=True):
        own = sorted((row for row in rows if (row["method"], row["trust"]) == (method, trust)), key=_level)
        mean, half = (scale * np.array([row[name] for row in own]) for name in ("mean", "half_width"))
        label = method + CHOSEN * any(row["not_covered"] for row in own) + f" (trust: {trust})" * (len(trusts) > 1)
        along = [_level(row) for row in own] if len(levels) > 1 else [len(axis.lines)]
        draw_curve(axis, along, mean, half, ms=4, label=label, **look(slot))
    trust = "" if len(trusts) > 1 else f", trust: {first['trust']}"
    axis.set(
        xlabel=f"ε for {first['unit']} (δ = {power_text(first['delta'])}, {first['relation']}{trust})",
        ylabel=known(first["metric"]).title,
        title=", ".join([first["experiment"], *(f"{name} {value:g}" for name, value in first["setting"].items())]),
    )
    if len(levels) > 1:
        epsilon_axis(axis, levels)
    else:  # methods side by side
        axis.set_xticks([(len(methods) - 1) / 2], [f"{level:.3g}" for level in levels])
    below = axis.transAxes + ScaledTranslation(0, -BELOW, axis.figure.dpi_scale_trans)
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, 0), bbox_transform=below, ncols=2, fontsize="small")


def _level(row: Row) -> float:
    return row["epsilon"] if row["target_epsilon"] is None else row["target_epsilon"]


def _code(row: Row) -> str:
    """Return the shortened commit, with "+" if files had changed, or the version."""
    commit = row["commit"]
    return row["version"] if commit is None else commit[:7] + "+" * commit.endswith("+")


@dataclass(frozen=True)
class Leaderboard:
    """Results of private methods in comparable settings, one row per method.

    A row has the mean of a metric, its confidence interval, the realised ε, the number of seeds, and the costs of a
    run.

    Each comparison has its own table. Its rows have the same experiment, swept settings, federation, metric, δ, target
    ε, protected unit, neighbouring relation and trust model. Rows without a target ε must have the same realised ε.

    Attributes:
        rows: dictionaries with the keys `FIELDS`, sorted by comparison and method.

    >>> Leaderboard().experiments
    []
    """

    rows: tuple[Row, ...] = ()

    @cached_property
    def experiments(self) -> list[str]:
        """Names of the experiments, in alphabetical order."""
        return sorted({row["experiment"] for row in self.rows})

    @cached_property
    def frame(self) -> pd.DataFrame:
        """Rows as a pandas frame, with a column for each field."""
        return pd.DataFrame(list(self.rows), columns=FIELDS)

    @cached_property
    def tables(self) -> list[Sheet]:
        """One table for each comparison, best mean first."""
        federations = {name: {row["federation"] for row in self.of(name).rows} for name in self.experiments}
        return [row_table(rows, named=len(federations[rows[0]["experiment"]]) > 1) for rows in self._groups()]

    def of(self, experiment: str) -> "Leaderboard":
        """Return a leaderboard with only the rows of one experiment.

        Args:
            experiment: name of the experiment, one of `experiments`.

        Raises:
            Refusal: if there is no such experiment.
        """
        require_choice("experiment", experiment, self.experiments)
        return Leaderboard(tuple(row for row in self.rows if row["experiment"] == experiment))

    def named(self, name: str) -> "Leaderboard":
        """Return a leaderboard with only the rows of one experiment, or of those in one folder, such as "frontier".

        Raises:
            Refusal: if there is no such experiment or folder.
        """
        inside = name.rstrip("/") + "/"
        rows = tuple(row for row in self.rows if row["experiment"].startswith(inside))
        return Leaderboard(rows) if rows else self.of(name.rstrip("/"))

    def joined(self, rows: Iterable[Row]) -> "Leaderboard":
        """Return the leaderboard with rows added.

        A new row replaces the row of the same method in the same comparison.

        Raises:
            Refusal: if a row is invalid. The message has a line for each fault.
        """
        found = {_key(row): row for row in self.rows} | {_key(row): row for row in _checked(rows, "rows")}
        return Leaderboard(tuple(found[key] for key in sorted(found)))

    def plot(self) -> Figure:
        """Return a plot of the metric's means and 95% intervals against the target ε.

        If a row has no target ε, the plot uses its realised ε.

        Rows share a panel if they have the same experiment, swept settings except ε, federation, metric, δ, protected
        unit and neighbouring relation. A panel has a line for each method and trust model.

        Raises:
            Refusal: if there are no rows.
        """
        if not self.rows:
            raise Refusal("leaderboard must have a row to be drawn, got none")
        panels = grouped((str([row[name] for name in PANEL]), row) for row in self.rows)
        figure = new_figure(*PANEL_SIZE, 1, len(panels))
        axes = figure.subplots(len(panels), squeeze=False).ravel().tolist()
        for axis, panel in zip(axes, panels.values(), strict=True):
            _draw(axis, panel)
        return figure

    def to_json(self) -> str:
        """Return the leaderboard as JSON text, in the format of the files that `save` writes."""
        return json.dumps({"format": FORMAT, "rows": list(self.rows)}, indent=1, ensure_ascii=False) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the leaderboard to a JSON file, which the function `leaderboard` can read.

        Args:
            path: path of the file. An existing file is replaced.
        """
        write_atomically(Path(path), self.to_json(), follow=True)

    def _groups(self) -> list[list[Row]]:
        return [ranked(rows) for rows in grouped((_group(row), row) for row in self.rows).values()]

    @property
    def shown(self) -> Tables:
        """The leaderboard as tables with footnotes, one table for each comparison of methods."""
        return Tables(self.tables, notes(self.rows))

    def __str__(self) -> str:
        return str(self.shown)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.shown._repr_html_()


def leaderboard(path: str | Path | None = None) -> Leaderboard:
    """Return the leaderboard of a JSON file.

    Args:
        path: path of a file that `Leaderboard.save` wrote. None is the file that the package contains.

    Raises:
        Refusal: if the file is missing or damaged, or a row is invalid. The message has a line for each fault.
    """
    file = bundle() / "frontier" / FRONTIER if path is None else Path(path)
    if not file.is_file():
        raise Refusal(f"leaderboard file must exist, got {file}. Write it with fedprivjax leaderboard RESULTS --into")
    try:
        stored = json_from(file)
    except (OSError, ValueError) as error:
        raise Refusal(f"{file} must be a JSON file, and cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(stored, dict) or not isinstance(stored.get("rows"), list):
        raise Refusal(f"{file} must be an object with a list of rows. Write it with fedprivjax leaderboard --into")
    if stored.get("format") != FORMAT:
        raise Refusal(f"{file} must be a leaderboard in format {FORMAT}, got format {stored.get('format')!r}")
    rows = _checked(stored["rows"], str(file))
    for same in grouped((_key(row), row["method"]) for row in rows).values():
        if len(same) > 1:
            raise Refusal(f"{file} must have one row for each method and ε, got several of {same[0]!r}")
    return Leaderboard().joined(rows)


def entries(results: str | Path | Results) -> tuple[Leaderboard, list[str]]:
    """Return the leaderboard of finished results, and a line for each method and point that cannot enter.

    Args:
        results: a results folder of `fedprivjax run`, its netCDF file, a `frontier.json`, or loaded results.

    Raises:
        Refusal: if they cannot be read, or do not state the command that made them.
    """
    if not isinstance(results, Results):
        if Path(results).suffix == ".json":
            return leaderboard(results), []
        results = load(results)
    rows, refused = leaderboard_rows(results)
    return Leaderboard().joined(rows), refused


def _checked(rows: Iterable[Any], place: str) -> list[Row]:
    """Return rows with their fields in the order of `FIELDS`, or raise Refusal with a line for each fault."""
    listed, lines = list(rows), []
    for number, row in enumerate(listed):
        name = f" ({row['method']})" if isinstance(row, dict) and "method" in row else ""
        lines += [f"{place}: row {number}{name}: {fault}" for fault in faults(row)]
    if lines:
        raise Refusal("\n".join(lines))
    return [{name: row[name] for name in FIELDS} for row in listed]


def _group(row: Row) -> tuple:
    """Return the values that rows of one comparison share. Without a target ε, they share the realised one."""
    setting, targeted = tuple(sorted(row["setting"].items())), row["target_epsilon"] is not None
    subject = [row[name] for name in ("federation", "unit", "relation", "trust")]
    return (row["experiment"], row["metric"], row["delta"], setting, *subject, not targeted, _level(row))


def _key(row: Row) -> tuple:
    """Return the values that identify a row."""
    return (*_group(row), row["method"])
