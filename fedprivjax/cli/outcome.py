"""Output of a finished run: tables, verdict, and the by-products in its folder."""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedprivjax.atomic_write import write_atomically
from fedprivjax.checks.refusal import Refusal
from fedprivjax.cli.console import out

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from fedprivjax.experiment.verdict import Verdict

MOST_SHOWN = 2000  # largest number of machines in the plot of the data partition


class Outcome(NamedTuple):
    """Results that were shown.

    Attributes:
        best: datasets by label, each protocol's grid reduced to its best point.
        failures: exceptions of by-products that could not be written. The results themselves are saved.
    """

    best: "Mapping[str, xr.Dataset]"
    failures: tuple[Exception, ...] = ()


def show(experiment, results, folder: Path, *, partition: bool = True) -> Outcome:
    """Print the tables, and write the plots, the page and the rows of the leaderboard.

    Args:
        partition: True to print lines on the data and to draw their partition, unless a guarantee hides their sizes.
    """
    from fedprivjax.experiment.tuning import selected
    from fedprivjax.report.display import experiment_summary, tables
    from fedprivjax.report.drawing import save
    from fedprivjax.report.page import PAGE, write_page
    from fedprivjax.report.plots import all_plots

    failures: list[Exception] = []
    written: list[Path] = []
    plots: dict[str, Figure] = {}
    this = experiment_summary(experiment, selected(experiment, results), results.choices)
    if partition:
        with by_product(folder, failures):
            this = replace(this, partition=None if this.hides_sizes else _partition_plot(experiment))
    with by_product(folder, failures):
        out.print(tables(this))
    with by_product(folder, failures):
        plots = all_plots(this)
        written += save(plots, folder)
    with by_product(folder, failures):
        written.append(write_page(this, results, plots))
    with by_product(folder, failures):
        written += _write_rows(results, folder)
    names = ", ".join(["results.nc", *(file.name for file in written)])
    with by_product(folder, failures):
        out.say(f"written to {folder}: {names}")
        if (folder / PAGE) in written:
            out.say(f"Open {folder / PAGE}")
    return Outcome(this.best, tuple(failures))


@contextmanager
def by_product(folder: Path, failures: list[Exception]) -> Iterator[None]:
    """Append an exception to `failures` instead of raising it. An error of writing becomes a Refusal with a remedy.

    An error that names no file is one of printing.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and not isinstance(error, Refusal):
            got = f"{error.filename or 'stdout'} must be writable, got {error.strerror or error}"
            error = Refusal(f"{got}. The results are saved. Finish with fedprivjax report {shlex.quote(str(folder))}")
        failures.append(error)


def judged(name: str, experiment, best: "Mapping[str, xr.Dataset]") -> "list[Verdict]":
    """Print the comparison with an experiment's expected numbers, and return it cell by cell."""
    from fedprivjax.experiment.verdict import verdicts
    from fedprivjax.report.audits import verdict_line, verdict_tables

    found = verdicts(experiment, best)
    for table in verdict_tables(found):
        out.print(table)
    out.say(f"{name}: {verdict_line(found)[0]}")
    return found


def finish(failures: Iterable[Exception]) -> None:
    """Raise the first exception of a by-product, if any. Called after all tables and verdicts are printed."""
    for failure in failures:
        raise failure


def _write_rows(results, folder: Path) -> list[Path]:
    """Write the rows that can enter the leaderboard, and return the path of their file, or [] without rows."""
    from fedprivjax.report.leaderboard import FRONTIER, entries

    if not results.provenance.get("command"):
        return []
    board, _ = entries(results)
    if not board.rows:
        return []
    write_atomically(folder / FRONTIER, board.to_json())
    return [folder / FRONTIER]


def _partition_plot(experiment) -> "Figure | None":
    """Print a line on the data, and return the plot of the partition, or None if no partition is fixed or readable."""
    from fedprivjax.datasets import Dataset
    from fedprivjax.experiment.build import machines_of, make_data
    from fedprivjax.report.partition_plot import data_lines, plot_partition

    shape = experiment.shapes[0]
    if "trial" in shape:
        return None
    try:
        machines = machines_of(experiment.participation, shape)
        data, table = make_data(experiment.problem, machines, records=shape.get("records"))
    except (Refusal, OSError) as error:
        out.say(f"data partition is not drawn: {error}")
        return None
    if not isinstance(data, Dataset):
        return None
    for line in data_lines(data):
        out.say(line)
    if table is None or len(table) > MOST_SHOWN or data.labels.ndim > 1:  # labels of tokens are not drawn
        return None
    names = {"class_names": data.class_names, "machine_names": data.machine_names}
    return plot_partition(data.labels, table, classes=data.classes, **names)
