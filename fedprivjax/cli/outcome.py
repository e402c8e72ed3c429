"""Output of a run: tables, verdict, the files in its folder, and how to go on after a stop or on a full disk."""

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedprivjax.checks.refusal import Refusal
from fedprivjax.cli.console import Stopped, out

MOST_SHOWN = 2000  # largest number of machines in the plot of the data partition


def show(
    experiment, results, folder: Path, *, judge: str | None = None, jobs: Sequence[Any] | None = None
) -> list[Any]:
    """Print the tables, then write the plots and the page.

    Args:
        jobs: prepared sweeps, whose first private run the page shows, or None to show the run of the page before.
        judge: name of an experiment whose verdict is printed below the tables, and returned, in place of the lines on
            the data and the plot of their partition. A guarantee that hides the sizes leaves these out, too.
    """
    from fedprivjax.layout.drawing import save
    from fedprivjax.report.display import experiment_summary, tables
    from fedprivjax.report.page import PAGE, write_page
    from fedprivjax.report.plots import all_plots
    from fedprivjax.report.run_plots import plots_of_first

    with saved(folder):
        this = experiment_summary(experiment, results)
        partition = None if judge is not None or this.hides_sizes else _partition_plot(experiment)
        out.print(tables(this))
        found = [] if judge is None else judged(judge, experiment, this.best)
        plots = ({} if partition is None else {"partition": partition}) | all_plots(this)
        of_run = None if jobs is None else plots_of_first(this, jobs)
        written = [*save(plots, folder), write_page(this, results, plots, of_run)]
        out.say(f"written to {folder}: {', '.join(['results.nc', *(file.name for file in written)])}")
        out.say(f"Open {folder / PAGE}")
    return found


@contextmanager
def saved(folder: Path) -> Iterator[None]:
    """Raise Refusal with a remedy if the results are saved, and text or a file made of them cannot be written.

    An error that names no file is one of printing.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, Refusal):
            raise
        got = f"{error.filename or 'stdout'} must be writable, got {error.strerror or error}"
        how = f"The results are saved. Finish with fedprivjax report {shlex.quote(str(folder))}"
        raise Refusal(f"{got}. {how}") from error


def judged(name: str, experiment, best: Mapping[str, Any]) -> list[Any]:
    """Print the comparison with an experiment's expected numbers, and return it cell by cell."""
    from fedprivjax.experiment.verdict import verdicts
    from fedprivjax.report.verdicts import verdict_line, verdict_tables

    found = verdicts(experiment, best)
    for table in verdict_tables(found):
        out.print(table)
    out.say(f"{name}: {verdict_line(found)[0]}")
    return found


def _partition_plot(experiment):
    """Print a line on the data, and return the plot of the partition, or None if no partition is fixed or readable."""
    from fedprivjax.datasets import Dataset
    from fedprivjax.datasets.user_table import description
    from fedprivjax.experiment.build import machines_of, make_data
    from fedprivjax.report.partition_plot import plot_partition

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
    if line := description(data):
        out.say(line)
    if table is None or len(table) > MOST_SHOWN or data.labels.ndim > 1:  # labels of tokens are not drawn
        return None
    names = {"class_names": data.class_names, "machine_names": data.machine_names}
    return plot_partition(data.labels, table, classes=data.classes, **names)


@contextmanager
def resumable(folder: Path, *, keep: bool = True) -> Iterator[list[int]]:
    """Turn a stop or a failed write into a message on how to resume. The value is set to (finished runs, all runs)."""
    runs = [0, 0]
    try:
        yield runs
    except KeyboardInterrupt:
        raise Stopped(f"stopped: {_how_to_go_on(folder, runs[0] if keep else 0, runs[1])}") from None
    except OSError as error:
        inside = error.filename is None or Path(error.filename).absolute().is_relative_to(folder.absolute())
        if isinstance(error, Refusal) or not inside:  # of data that cannot be read
            raise
        how = _how_to_go_on(folder, runs[0] if keep else 0, runs[1])
        raise Refusal(f"{error.filename or folder} must be writable, got {error.strerror or error}: {how}") from error


def _how_to_go_on(folder: Path, runs: int, total: int) -> str:
    """Return a line with the number of saved runs, and the command that resumes or restarts."""
    words = sys.argv[1:]
    if not runs:
        done = f"no chunk of {total} runs was finished" if total else "nothing ran yet"
        return f"{done}, so nothing is saved. Start again with fedprivjax {shlex.join(words)}"
    words = words if "--resume" in words else [*words, "--resume"]
    return f"{runs} of {total} runs are saved in {folder}. Resume with fedprivjax {shlex.join(words)}"
