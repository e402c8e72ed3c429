"""Experiments named on the command line, singly or by folder: loading, validation and results folders."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from fedprivjax.checks.refusal import within
from fedprivjax.cli.console import load, members, name_of, status_line


def loaded(specs: list[str], change: list[str] | None, *, tiny: bool = False) -> dict[str, Any]:
    """Return the named experiments, with folders expanded, by name."""
    from fedprivjax.experiment.tiny import tiny as made_small

    names = [name for spec in specs for name in members(spec)]
    chosen = {}
    for name in names:
        with named(name, several=len(names) > 1):
            experiment = load(name, change)
            chosen[name] = made_small(experiment) if tiny else experiment
    return chosen


def folders(chosen: dict[str, Any], folder: Path | None, *, tiny: bool = False) -> dict[str, Path]:
    """Return the results folder of each experiment: `--out` itself for a single one, else a subfolder.

    Without `--out` the parent is results, or results/tiny for scaled-down runs.
    """
    if folder is not None and len(chosen) == 1:
        return dict.fromkeys(chosen, folder)
    usual = Path("results", "tiny") if tiny else Path("results")
    return {name: (usual if folder is None else folder) / name_of(name) for name in chosen}


def resumed(into: dict[str, Path], *, resume: bool) -> dict[str, bool]:
    """Return whether each experiment resumes. Of several, only those with a started run do."""
    from fedprivjax.experiment import folder as results_folder

    return {name: resume and (len(into) == 1 or results_folder.begun(folder)) for name, folder in into.items()}


def check_all(chosen: dict[str, Any], into: dict[str, Path], again: dict[str, bool], *, judge: bool = False) -> None:
    """Raise Refusal if any of several experiments is invalid, before the first runs.

    Each is prepared with one seed and trial. A single experiment is validated by its run.
    """
    from fedprivjax.experiment import folder as results_folder
    from fedprivjax.experiment.ready import ready_experiment
    from fedprivjax.experiment.tiny import one_trial

    if len(chosen) == 1:
        return
    for name, experiment in chosen.items():
        with named(name), status_line(f"reading {name}") as say:
            ready_experiment(one_trial(experiment), say, judge=judge)
    for name, experiment in chosen.items():
        with named(name):
            results_folder.claim(into[name], experiment, resume=again[name])


@contextmanager
def named(name: str, *, several: bool = True) -> Iterator[None]:
    """Put the experiment's name before a Refusal's message, if there are several experiments."""
    with within(name) if several else nullcontext():
        yield
