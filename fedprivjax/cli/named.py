"""The experiments that a command names, one by one or a folder of them: read, checked, and where their results go."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedprivjax.checks.refusal import Refusal
from fedprivjax.cli.console import load, members, name_of, saying


def loaded(specs: list[str], change: list[str] | None, *, tiny: bool = False) -> dict[str, Any]:
    """The experiments that are named, those of folders one by one, by name."""
    from fedprivjax.experiment.run import tiny as made_small

    names = [name for spec in specs for name in members(spec)]
    chosen = {}
    for name in names:
        with _named(name, several=len(names) > 1):
            experiment = load(name, change)
            chosen[name] = made_small(experiment) if tiny else experiment
    return chosen


def folders(chosen: dict[str, Any], folder: Path | None) -> dict[str, Path]:
    """Where each one's results go: `--out` itself where there is one only."""
    if folder is not None and len(chosen) == 1:
        return dict.fromkeys(chosen, folder)
    return {name: (Path("results") if folder is None else folder) / name_of(name) for name in chosen}


def claimed(folder: Path) -> bool:
    """Whether a run into the folder has begun."""
    from fedprivjax.experiment import folder as results_folder

    return (folder / results_folder.SPEC).is_file()


def check_all(chosen: dict[str, Any], into: dict[str, Path], again: dict[str, bool]) -> None:
    """Refuse whatever is wrong with any, before the first runs; one seed and trial stand for all."""
    from fedprivjax.experiment import folder as results_folder
    from fedprivjax.experiment import run as runner

    for name, experiment in chosen.items():
        with _named(name), saying(f"reading {name}") as say:
            to_run(runner.one_trial(experiment), say)
    for name, experiment in chosen.items():
        with _named(name):
            results_folder.claim(into[name], experiment, resume=again[name])


@contextmanager
def _named(name: str, *, several: bool = True) -> Iterator[None]:
    """A refusal's line with the experiment that it is of, where there are several."""
    try:
        yield
    except Refusal as refusal:
        if not several:
            raise
        raise Refusal(f"{name}: {refusal}") from refusal


def to_run(experiment, say, *, judge: bool = False) -> tuple[list[Any], list[Any] | None]:
    """What there is to run, and what before it on other data, where hyper-parameters are chosen there.

    Args:
        judge: whether the results are held against what is expected, which must be recorded for that.
    """
    from fedprivjax.engine.iterates import OUTPUT
    from fedprivjax.experiment import choosing, verdict
    from fedprivjax.experiment import run as runner

    todo = runner.jobs(experiment, say)
    if judge or experiment.record.iterate != OUTPUT:
        judged = experiment if judge else experiment.model_copy(update={"expected": []})
        verdict.check_recorded(judged, runner.recorded(todo), runner.records(todo))
    return todo, None if experiment.choose is None else runner.jobs(choosing(experiment), say)
