"""The experiments that a command names, one by one or a folder of them: read, checked, and where their results go."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from fedprivjax.checks.refusal import within
from fedprivjax.cli.console import load, members, name_of, saying


def loaded(specs: list[str], change: list[str] | None, *, tiny: bool = False) -> dict[str, Any]:
    """The experiments that are named, those of folders one by one, by name."""
    from fedprivjax.experiment.tiny import tiny as made_small

    names = [name for spec in specs for name in members(spec)]
    chosen = {}
    for name in names:
        with named(name, several=len(names) > 1):
            experiment = load(name, change)
            chosen[name] = made_small(experiment) if tiny else experiment
    return chosen


def folders(chosen: dict[str, Any], folder: Path | None, *, tiny: bool = False) -> dict[str, Path]:
    """Where each one's results go: `--out` itself where there is one only; of small runs apart from the real ones."""
    if folder is not None and len(chosen) == 1:
        return dict.fromkeys(chosen, folder)
    usual = Path("results", "tiny") if tiny else Path("results")
    return {name: (usual if folder is None else folder) / name_of(name) for name in chosen}


def resumed(into: dict[str, Path], *, resume: bool) -> dict[str, bool]:
    """Which of them go on: of several, those that have begun."""
    from fedprivjax.experiment import folder as results_folder

    return {name: resume and (len(into) == 1 or results_folder.begun(folder)) for name, folder in into.items()}


def check_all(chosen: dict[str, Any], into: dict[str, Path], again: dict[str, bool], *, judge: bool = False) -> None:
    """Refuse whatever is wrong with any of several, before the first runs; one seed and trial stand for all."""
    from fedprivjax.experiment import folder as results_folder
    from fedprivjax.experiment.ready import ready_experiment
    from fedprivjax.experiment.tiny import one_trial

    if len(chosen) == 1:
        return
    for name, experiment in chosen.items():
        with named(name), saying(f"reading {name}") as say:
            ready_experiment(one_trial(experiment), say, judge=judge)
    for name, experiment in chosen.items():
        with named(name):
            results_folder.claim(into[name], experiment, resume=again[name])


@contextmanager
def named(name: str, *, several: bool = True) -> Iterator[None]:
    """Put the experiment's name before the line of a Refusal, if there are several."""
    with within(name) if several else nullcontext():
        yield
