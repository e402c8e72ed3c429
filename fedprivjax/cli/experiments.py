"""`fedprivjax run | reproduce | report | privacy`: experiments, run or resumed, compared, shown, and accounted for."""

import os
import shlex
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.markup import escape

from fedprivjax.checks.refusal import Refusal, within
from fedprivjax.cli.console import Change, Out, Resume, Spec, app, each, join_job, load, out, progress, status_line
from fedprivjax.cli.outcome import resumable, saved, show


@app.command()
def run(
    spec: Annotated[
        str, typer.Argument(help="a TOML file, a bundled experiment, or a folder of them such as frontier")
    ],
    change: Change = None,
    folder: Out = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="smoke test of few rounds, written to results/tiny/")] = False,
    resume: Resume = False,
    part: Annotated[str | None, typer.Option(metavar="K/N", help="one of N processes that share the runs")] = None,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="one of the processes of a job, as of srun")
    ] = False,
) -> None:
    """Run an experiment, print tables, and write a results folder with the dataset, plots and a page.

    For a folder of experiments, each has a separate results folder. All are validated before the first runs.

    Processes with --part share a results folder and compute different runs. Slurm and Open MPI give each process its
    part. Processes with --distributed compute every run together, on the devices of all.
    """
    from fedprivjax.engine.hosts import from_first
    from fedprivjax.problem.program import compile_quickly
    from fedprivjax.sweeps.part import Part, part_of_scheduler

    if distributed and part:
        raise Refusal(f"--part must be left out with --distributed, got {part}. Parts compute without each other")
    own = None if distributed else Part.parse(part) if part else part_of_scheduler(os.environ)
    if tiny:
        compile_quickly()
    if distributed:
        join_job()
        chosen = _named_together(spec, change, folder, resume=resume, tiny=tiny)
    else:
        chosen = _named([spec], change, folder, resume=resume, tiny=tiny)
    from_first(lambda: _claim_each(chosen, shared=own is not None))
    done: dict[str, Any] = {}
    for name, one in chosen.items():
        if len(chosen) > 1:
            out.print(f"{name}: {one.experiment.title}", style="bold", markup=False, highlight=False)
        _run(one, done, keep=not tiny, part=None if tiny else own)


@app.command()
def reproduce(
    specs: Annotated[list[str], typer.Argument(help="experiments, or a folder of them such as reshef-levy-2024")],
    change: Change = None,
    folder: Out = None,
    resume: Resume = False,
) -> None:
    """Run experiments and compare results with the expected numbers. Exit status 1 if too few are within tolerance."""
    from fedprivjax.report.verdicts import verdict_line

    done: dict[str, Any] = {}
    chosen = _named(specs, change, folder, resume=resume, judge=True)
    _claim_each(chosen)
    found = [_run(one, done, judge=name) for name, one in chosen.items()]
    if len(chosen) > 1:
        line = f"{len(chosen)} experiments: {verdict_line([cell for each in found for cell in each])[0]}"
        with saved(next(iter(chosen.values())).folder):
            out.say(line)
    raise typer.Exit(0 if all(verdict_line(each)[1] for each in found) else 1)


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="a results folder")]) -> None:
    """Print the tables of finished results, and rewrite the plots and the page, from the saved dataset."""
    from fedprivjax.experiment import folder as results_folder
    from fedprivjax.experiment.results import load as load_results

    if results_folder.begun(folder) and not (folder / results_folder.RESULTS).is_file():
        command = f"fedprivjax run SPEC --out {shlex.quote(str(folder))} --resume"
        raise Refusal(f"results folder {folder} holds an unfinished run. Finish it with {command}")
    results = load_results(folder)
    show(results.spec, results, folder)


@app.command()
def privacy(spec: Spec, change: Change = None) -> None:
    """State the guarantee of every protocol of an experiment, by theorem and by accountant, without running it."""
    from fedprivjax.experiment import jobs as listed
    from fedprivjax.experiment.build import one_trial
    from fedprivjax.layout.wording import grouped
    from fedprivjax.report import guarantees

    experiment = one_trial(load(spec, change))
    delta = experiment.evaluation.delta
    with status_line("reading") as say:
        jobs = listed.jobs(experiment, say)
        stated = guarantees.guarantee_tables(each(jobs, "stating the guarantees of", say), delta)
        cross_check = guarantees.cross_check_table(each(jobs, "running the accountant for", say), delta)
    for table in [*stated, cross_check]:
        out.print(table)
    for label, (job, *_) in grouped((job.label, job) for job in jobs).items():
        guarantee = job.prepare().configurations.events[0][0].guarantee(delta)
        out.print(f"[bold]{escape(label)}[/bold]{escape(guarantees.first_point(job))}:", highlight=False)
        out.print(str(guarantee), markup=False, highlight=False)
        out.print(f"  {guarantee.paragraph()}", markup=False, highlight=False)


class Named(NamedTuple):
    """An experiment named on the command line, its results folder, whether its run resumes, and its command."""

    experiment: Any
    folder: Path
    resume: bool
    source: dict[str, str]


def _named(
    specs: list[str], change: Change, folder: Out, *, resume: bool, tiny: bool = False, judge: bool = False
) -> dict[str, Named]:
    """Return the experiments of the command line by name, with folders of them expanded, checked before the first runs.

    Each of several is prepared with one seed and trial. A single experiment is validated by its run.

    Args:
        folder: results folder of a single experiment, else the parent of their folders. The default parent is results,
            or results/tiny for scaled-down runs.
        resume: whether to resume. Of several experiments, only those with a started run do.
    """
    from fedprivjax import experiment as experiments
    from fedprivjax.experiment import folder as results_folder
    from fedprivjax.experiment import verdict
    from fedprivjax.experiment.build import one_trial
    from fedprivjax.experiment.jobs import ready_experiment
    from fedprivjax.testing import tiny as scaled_down

    bundled = experiments.bundled()
    inside = [[name for name in bundled if name.startswith(spec.rstrip("/") + "/")] or [spec] for spec in specs]
    names = list(dict.fromkeys(name for each in inside for name in each))
    several = len(names) > 1
    named = within if several else nullcontext
    parent = folder or (Path("results", "tiny") if tiny else Path("results"))
    found = {}
    for name in names:
        with named(name):
            experiment = load(name, change)
            made = scaled_down.tiny(experiment) if tiny else experiment
            if judge:
                verdict.check_cells(made)
        if judge and not made.expected:
            raise Refusal(f"experiment {name!r} must have [[expected]] numbers to compare with")
        into = folder if folder and not several else parent / (Path(name).stem if name.endswith(".toml") else name)
        again = resume and (not several or results_folder.begun(into))
        found[name] = Named(made, into, again, _source(name, change, tiny=tiny))
    for name, one in found.items() if several else ():
        with within(name), status_line(f"reading {name}") as say:
            ready_experiment(one_trial(one.experiment), say, judge=judge)
    return found


def _source(name: str, change: Change, *, tiny: bool) -> dict[str, str]:
    """Return the name of an experiment and the command that runs it, for the provenance."""
    words = ["fedprivjax", "run", name, *(word for text in change or () for word in ("--set", text))]
    return {"experiment": name, "command": shlex.join([*words, *["--tiny"] * tiny])}


def _named_together(spec: str, change: Change, folder: Out, *, resume: bool, tiny: bool) -> dict[str, Named]:
    """Return the experiments of `run`, equal in all processes of a job. Started runs resume."""
    from fedprivjax.disk_cache import digest
    from fedprivjax.engine.fingerprint import versions
    from fedprivjax.engine.hosts import from_first, on_all, require_equal
    from fedprivjax.experiment import folder as results_folder
    from fedprivjax.experiment import to_mapping

    require_equal(versions())
    chosen = on_all(lambda: _named([spec], change, folder, resume=resume, tiny=tiny))
    require_equal({"settings": digest(*[to_mapping(one.experiment) for one in chosen.values()])})

    def started() -> list[bool]:
        return [one.resume or (not tiny and results_folder.begun(one.folder)) for one in chosen.values()]

    return {
        name: one._replace(resume=again) for (name, one), again in zip(chosen.items(), from_first(started), strict=True)
    }


def _claim_each(chosen: dict[str, Named], *, shared: bool = False) -> None:
    """Create the results folders of several experiments. That of a single one is created by its run.

    The folder of a single one is checked before its runs are prepared.
    """
    from fedprivjax.experiment import folder as results_folder

    first, *others = chosen.values()
    if not others:
        results_folder.check_settings(first.folder, first.experiment, resume=first.resume, shared=shared)
        return
    for name, one in chosen.items():
        with within(name):
            results_folder.claim(one.folder, one.experiment, resume=one.resume)


def _run(
    one: Named, done: dict[str, Any], *, keep: bool = True, judge: str | None = None, part: Any = None
) -> list[Any]:
    """Run an experiment, or a part of it, into a folder, and show it if this process wrote the results.

    After a stop or on a full disk, the message says how to resume. Of several processes that run it together, the first
    shows it. A part that leaves chunks to others prints a line on them.

    Args:
        judge: as in `show`, whose verdicts are returned.
    """
    from fedprivjax.engine.hosts import is_first, on_all
    from fedprivjax.experiment import run as runner
    from fedprivjax.experiment.results import load as load_results

    title, folder = one.experiment.title, one.folder
    with resumable(folder, keep=keep) as runs:
        ready = on_all(lambda: _ready(one, judge=judge is not None))
        runs[1] = ready.runs
        with progress(title if part is None else f"{title}, part {part}") as on_progress:

            def noted(finished: int, total: int) -> None:
                runs[:] = finished, total
                on_progress(finished, total)

            if part is None:
                found = runner.run_ready(ready, folder, resume=one.resume, keep=keep, progress=noted, done=done)
            else:
                found = runner.run_part(ready, folder, part, progress=noted)
    if found is None:
        line = f"part {part} is finished. Other parts still compute, and the last of them writes the results to"
        out.say(f"{line} {folder}. If one was stopped, start it again")
    if found is None or not is_first():
        return []
    jobs = ready.jobs if ready.before is None else ready.tuned or None
    return show(one.experiment, load_results(folder), folder, judge=judge, jobs=jobs)


def _ready(one: Named, *, judge: bool):
    """Prepare an experiment, with a line on the step under way."""
    from fedprivjax.experiment.jobs import ready_experiment

    with status_line("reading") as say:
        return replace(ready_experiment(one.experiment, say, judge=judge), source=one.source)
