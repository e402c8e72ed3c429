"""Results as a pandas frame of numbers, and as a LaTeX table."""

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd
import xarray as xr

from fedprivjax.atomic_write import write_atomically
from fedprivjax.checks.printable import printable
from fedprivjax.checks.values import require_choice
from fedprivjax.engine.metric import Metric
from fedprivjax.layout.wording import CHOSEN, CHOSEN_NOTE, Point, grouped, points_of
from fedprivjax.report.display import Showable, require_recorded_by, summarised, usual_metric
from fedprivjax.report.remarks import ABOVE, NO_INTERVAL, footnotes
from fedprivjax.report.summary import Cells, Summary, as_good, at, has_point
from fedprivjax.report.tables import (
    BEST,
    CONSTANT,
    WORSE,
    chosen_settings,
    realised_differs,
    realised_table,
    results_table,
)

PROTOCOL, MEAN, HALF, EPSILON = "protocol", "mean", "half_width", "realised_epsilon"
BOLD = "bold: mean within the interval of the best, among private methods if there are any"
DAGGER = r"^\dagger"  # mark of a mean that is worse than the constant predictor's value
SYMBOLS = {"mu": r"$\mu$", "epsilon": r"$\varepsilon$", "machines": "$M$", "per_round": "$m$", "rounds": "$T$"}
SPECIAL = {each: f"\\{each}" for each in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}"}
MATHS = {  # pdflatex stops at these characters in text
    **{"α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "varepsilon", "η": "eta", "κ": "kappa"},
    **{"λ": "lambda", "μ": "mu", "ρ": "rho", "σ": "sigma", "τ": "tau", "Δ": "Delta", "‡": "ddagger", "√": "surd"},
    **{"≤": "leq", "≥": "geq", "≈": "approx", "∞": "infty", "→": "to", "∇": "nabla", "±": "pm", "×": "times"},
}
LATEX = str.maketrans(
    SPECIAL
    | {character: rf"$\{name}$" for character, name in MATHS.items()}
    | {"^": r"\textasciicircum{}", "²": "$^2$", "₀": "$_0$", "−": "$-$", "‡": r"$^\ddagger$"}
)


class Frame(pd.DataFrame):
    """Result of `frame`: a pandas DataFrame of a metric's means and intervals, which can be written as LaTeX.

    Operations of pandas on it return ordinary DataFrames.

    Attributes:
        cells: means and intervals, with the metric's unit, decimals and direction of improvement. They include the
            metric's value for the best constant prediction. The LaTeX table marks means that are worse than this value.
        notes: title and footnotes of the table.
        chosen: labels of protocols whose settings were chosen by their own results. No guarantee covers this choice.
            The LaTeX table marks these protocols.
    """

    _metadata: ClassVar[list[str]] = ["cells", "notes", "chosen"]  # pyright: ignore[reportIncompatibleVariableOverride]
    cells: Cells
    notes: tuple[str, ...]
    chosen: frozenset[str]

    def to_latex(  # type: ignore[override]
        self,
        buf: Any = None,
        *,
        protocols: Literal["rows", "columns"] | None = None,
        **options: Any,
    ) -> str | None:
        r"""Return the means and intervals as a LaTeX table, which needs the package booktabs.

        There is a cell for each protocol and each combination of swept settings (point). The cell shows the mean over
        seeds $\pm$ the half-width of the 95% interval, in the metric's unit and decimals. Among the protocols at a
        point, the best mean is bold, and so is every mean within the best mean's interval. Non-private protocols are
        not compared with private ones. A dagger marks a mean that is worse than the metric's value for the best
        constant prediction. Such a mean is never bold, and a note below the table states this value. LaTeX comments
        above the table state δ, the guarantees and which means are bold. A double dagger marks a protocol whose
        settings were chosen by its own results, which no guarantee covers.

        Args:
            buf: path of the file to write, or None to return the text.
            protocols: "rows" for one row per protocol, "columns" for one column per protocol. Default: "rows" if there
                are more protocols than points, else "columns". A table of eight rows and five columns is 6 inches wide.
            options: further arguments of `DataFrame.to_latex` of pandas, such as `caption`, `label` and `position`.

        Raises:
            Refusal: if `protocols` is neither "rows" nor "columns".
        """
        axes, texts = self.index.names[:-1], self._texts()
        points, labels = dict.fromkeys(key[:-1] for key in texts), dict.fromkeys(key[-1] for key in texts)
        place = protocols or ("rows" if len(labels) > len(points) else "columns")
        require_choice("protocols", place, ("rows", "columns"))
        names = {label: latex(f"{label}{CHOSEN.strip() * (label in self.chosen)}") for label in labels}
        if place == "columns":
            heads = [*map(_symbol, axes), *names.values()]
            rows = [[*map("{:g}".format, point), *(texts[*point, label] for label in labels)] for point in points]
        else:
            title = latex(self.cells.metric.title)
            heads = ["", *(", ".join(map(_setting, axes, point)) or title for point in points)]
            rows = [[name, *(texts[*point, label] for point in points)] for label, name in names.items()]
        kind = "r" * len(heads) if place == "columns" else "l" + "r" * len(points)
        usual = {"escape": False, "index": False, "column_format": kind}
        text = pd.DataFrame(rows, columns=heads).to_latex(**{**usual, **options})
        notes = [note for note in self.notes if DAGGER in text or not note.startswith((CONSTANT, WORSE.strip()))]
        notes += [BOLD] * (r"\mathbf" in text)
        text = "".join(f"% {' '.join(note.split())}\n" for note in notes) + text
        below = [latex(note) for note in self.notes if note.startswith(ABOVE)]
        below += [latex(CHOSEN_NOTE)] if self.chosen else []
        if DAGGER in text and self.cells.floor is not None:
            below.append(f"${DAGGER}$ worse than the {CONSTANT}'s {self.cells.metric.text(self.cells.floor)}")
        foot = "".join(rf"\multicolumn{{{len(heads)}}}{{l}}{{\footnotesize {note}}} \\" + "\n" for note in below)
        text = text.replace("\\bottomrule\n", f"\\bottomrule\n{foot}")
        if buf is None:
            return text
        write_atomically(Path(buf), text, follow=True)
        return None

    def _texts(self) -> dict[Any, str]:
        """Return the text of each cell, by point and label. The best means of each point are bold."""
        points: dict[Any, list[Any]] = grouped((key[:-1], key) for key in self.index)
        bold = [key for keys in points.values() for key in self._best(self.loc[keys])]
        columns = zip(self.index, self[MEAN], self[HALF], strict=True)
        return {key: self._cell(mean, half, key in bold) for key, mean, half in columns}

    def _best(self, rows: Any) -> list[Any]:
        """Return the keys of the best mean and of those within its interval, among private protocols if any are."""
        private = np.isfinite(rows[EPSILON])
        compared = rows[private] if private.any() else rows
        if len(compared) < 2:
            return []
        means = compared[MEAN]
        best = means.idxmax() if self.cells.metric.better == "higher" else means.idxmin()
        return means.index[as_good(means, means[best], compared[HALF][best], self.cells.metric)].tolist()

    def _cell(self, mean: float, half: float, bold: bool) -> str:
        if np.isnan(mean):
            return "--"
        value, worse = self.cells.metric.text(mean), self.cells.worse(mean)
        value = rf"\mathbf{{{value}}}" if bold and not worse else value
        value = value if np.isnan(half) else rf"{value} \pm {self.cells.metric.text(half)}"
        return f"${value}{DAGGER}$" if worse else f"${value}$"


def frame(results: Showable, metric: str | Metric | None = None, *, iterate: str | None = None) -> Frame:
    """Return means and intervals of a metric as a pandas DataFrame.

    There is a row for each protocol at each combination of swept settings. The index holds the swept settings and the
    protocol's label. The columns are:

    * `mean`: mean over seeds, NaN if a run diverged.
    * `half_width`: half the width of the 95% confidence interval of the mean, NaN for a single seed or if a run
      diverged.
    * `realised_epsilon`: ε on the sampled schedule, the largest over seeds, infinite if non-private.
    * a column such as `best_clip` for each setting that was chosen by a protocol's own results: the chosen value. It is
      NaN for protocols without this choice. In an experiment with several trials, each trial samples the dataset again.
      If different values are chosen in different trials, the entry is NaN, too.

    Numbers are in the recorded unit: an accuracy of 93% is 0.93. `to_latex` returns a table for a paper.

    Labels of protocols are taken from the results as they are. `to_csv` does not escape control characters and
    spreadsheet formulas in labels, so be careful with results from others. `to_latex` and tables escape control
    characters.

    Args:
        results: a results folder, the result of `load`, the dataset of a sweep, or a dictionary with such a dataset for
            the label of each protocol.
        metric: the metric. Default: the first one that the command line draws.
        iterate: name of the iterate to show, such as "last". None is the one that the experiment file names, or the
            reported parameters.

    Raises:
        Refusal: if the folder cannot be read, the metric was not recorded, or private protocols have different δ.

    >>> from fedprivjax import Ball, DPMu2, Uniform, datasets, from_dataset, sweep
    >>> problem = from_dataset(datasets.load("digits"), constraint=Ball(8.0))
    >>> grid = sweep(DPMu2(clip=1.6), problem, Uniform(20, 10), over={"mu": [1.0, 2.0]}, seeds=3, rounds=2)
    >>> found = frame(grid, "test_loss")
    >>> found.index.names, found.columns.tolist()
    (FrozenList(['mu', 'protocol']), ['mean', 'half_width', 'realised_epsilon'])
    >>> bool(found.loc[(2.0, "DPMu2"), "half_width"] > 0)
    True
    """
    this = summarised(results, iterate)
    metric = metric or usual_metric(this)
    require_recorded_by(this, metric)
    cells = this.cells(metric)
    points = points_of(this.varied)
    columns = {label: (*interval, this.epsilon[label]) for label, interval in cells.intervals.items()}
    rows = [[_number(each, point) for each in column] for point in points for column in columns.values()]
    keys = [(*point.values(), label) for point in points for label in columns]
    index = pd.MultiIndex.from_tuples(keys, names=[*this.varied, PROTOCOL])
    made = Frame(rows, columns=[MEAN, HALF, EPSILON], index=index)
    chosen = {label: chosen_settings(this, this.best[label]) for label in columns}
    for name in dict.fromkeys(name for settings in chosen.values() for name in settings):
        made[f"{BEST}{name}"] = [
            _number(_common(*chosen[label][name]), point) if name in chosen[label] else np.nan
            for point in points
            for label in columns
        ]
    made.cells = cells
    notes = [note for note in footnotes(this) if note != NO_INTERVAL]  # which the frame has for two seeds, too
    made.notes = (results_table(this, metric).title, *_realised(this), *notes)
    made.chosen = frozenset(label for label in columns if this.labels[label] != label)
    return made


def _realised(this: Summary) -> list[str]:
    """Return the rows of the table of the realised ε, one line each, if the title and rows do not state it."""
    if not realised_differs(this):
        return []
    sheet = realised_table(this)
    rows = [zip(sheet.frame.columns, row, strict=True) for row in sheet.frame.itertuples(index=False, name=None)]
    return [f"{sheet.title}: {', '.join(f'{name} {text}' for name, text in row)}" for row in rows]


def _common(low: xr.DataArray, high: xr.DataArray) -> xr.DataArray:
    """Return the common value of trials, or NaN if they have different ones."""
    return low.where(low == high)


def _number(values: xr.DataArray, point: Point) -> float:
    """Return the number at a point, or NaN if there is none."""
    return float(at(values, point).squeeze()) if has_point(values, point) else np.nan


def latex(text: str) -> str:
    r"""Return text with LaTeX's special characters escaped, and control characters as in `printable`.

    >>> latex("dp_mu2, 5%")
    'dp\\_mu2, 5\\%'
    >>> latex("σ ≥ 2")
    '$\\sigma$ $\\geq$ 2'
    """
    return printable(text).translate(LATEX)


def _symbol(name: str) -> str:
    return SYMBOLS.get(name, latex(name))


def _setting(name: str, value: float) -> str:
    return f"{_symbol(name)} = {value:g}"
