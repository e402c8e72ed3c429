"""The command line: `fedprivjax list | run | reproduce | privacy`."""

import json
import os
import sys
import tomllib
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import pooch
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from fedprivjax.checks.refusal import Refusal

TRACEBACK = "--traceback"
PLAIN_WIDTH = 120  # columns of output that goes to no terminal

app = typer.Typer(
    help="Differentially private federated optimisation, simulated.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
err = Console(stderr=True)

Spec = Annotated[str, typer.Argument(help="a TOML file, or the name of a bundled experiment")]
Change = Annotated[list[str] | None, typer.Option("--set", help="section.key=value, in TOML syntax; repeatable")]
Resume = Annotated[bool, typer.Option("--resume", help="go on with a run that was stopped")]
Out = Annotated[Path | None, typer.Option("--out", help="results folder (default: results/<name>)")]


def main() -> None:
    """Run the command line; a refusal is one line on stderr and exit status 2, with --traceback its whole traceback."""
    _keep_compiled()
    words = sys.argv[1:]
    try:
        app([word for word in words if word != TRACEBACK])  # before the command or after it
    except KeyboardInterrupt:
        err.print("stopped: finished chunks are kept, --resume goes on with them")
        raise SystemExit(130) from None
    except (Refusal, OSError) as error:  # any other exception is a bug, and shows its traceback
        if TRACEBACK in words:
            traceback.print_exc()
        else:
            kind = "ValueError" if isinstance(error, Refusal) else type(error).__name__
            err.print(f"{kind}: {error}", markup=False, highlight=False, soft_wrap=True)
        raise SystemExit(2) from None


def _keep_compiled() -> None:
    """Let jax keep compiled programs between starts; it reads the environment when it is imported, later than this."""
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(pooch.os_cache("fedprivjax")) / "compiled"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # a program read back reports tuning hints as missing features


@app.callback()
def everywhere(
    traceback: Annotated[
        bool, typer.Option(TRACEBACK, help="show the traceback of a refusal, with any command")
    ] = False,
) -> None:
    """Differentially private federated optimisation, simulated."""


@app.command("list")
def list_() -> None:
    """Protocols, losses, models, datasets, metrics and experiments, with a line of help each."""
    from fedprivjax import experiment
    from fedprivjax.datasets import DATASETS
    from fedprivjax.engine.metrics import METRICS
    from fedprivjax.protocols import PROTOCOLS

    _print_list("protocols", {name: text for name, (_, text) in PROTOCOLS.items()})
    _print_list("losses", experiment.LOSSES)
    _print_list("models", {"linear": "linear predictor, where no model is named", **experiment.MODELS})
    _print_list("datasets", {name: info.help for name, info in DATASETS.items()})
    _print_list("metrics", dict.fromkeys(METRICS, ""))
    _print_list("experiments", {name: experiment.load(name).title for name in experiment.bundled()})


@app.command()
def run(
    spec: Spec,
    change: Change = None,
    folder: Out = None,
    tiny: Annotated[bool, typer.Option("--tiny", help="two seeds and ten rounds, to see that it works")] = False,
    resume: Resume = False,
) -> None:
    """Run an experiment: tables on the screen, and a results folder with the dataset and plots."""
    from fedprivjax.experiment import run as runner

    experiment = _load(spec, change)
    experiment = runner.tiny(experiment) if tiny else experiment
    _run(experiment, folder or Path("results") / _name(spec), {}, resume=resume)


@app.command()
def reproduce(
    specs: Annotated[list[str], typer.Argument(help="experiments, or a folder of them such as reshef-levy-2024")],
    change: Change = None,
    folder: Out = None,
    resume: Resume = False,
) -> None:
    """Run experiments and set our numbers beside the expected ones; exit status 1 if a judged cell misses."""
    from fedprivjax.experiment import verdict
    from fedprivjax.report import tables

    chosen = {name: _load(name, change) for spec in specs for name in _members(spec)}
    for name, experiment in chosen.items():
        if not experiment.expected:
            raise Refusal(f"experiment {name!r} must have [[expected]] numbers to compare with")
        verdict.check_cells(experiment)
    done: dict[str, Any] = {}
    good = True
    for name, experiment in chosen.items():
        into = Path("results") if folder is None else folder
        into = into if folder is not None and len(chosen) == 1 else into / _name(name)
        again = resume and (into / "spec.toml").is_file()
        judged = verdict.verdicts(experiment, _run(experiment, into, done, resume=again, judge=True))
        line, holds = tables.verdict_line(judged)
        for table in tables.verdict_tables(judged):
            out.print(table)
        out.print(f"{name}: {line}")
        good = good and holds
    raise typer.Exit(0 if good else 1)


@app.command()
def privacy(spec: Spec, change: Change = None) -> None:
    """The guarantee of every protocol of an experiment, without running it."""
    from fedprivjax.experiment import run as runner
    from fedprivjax.report import tables

    experiment = runner.one_trial(_load(spec, change))
    jobs = runner.jobs(experiment)
    for table in tables.guarantee_tables(jobs, experiment.record.delta):
        out.print(table)
    firsts: dict[str, Any] = {}
    for job in jobs:
        firsts.setdefault(job.label, job)
    for label, job in firsts.items():
        guarantee = job.prepare().members.events[0][0].guarantee(experiment.record.delta)
        out.print(f"[bold]{label}[/bold], first row of its part of the table:")
        out.print(str(guarantee), markup=False, highlight=False)


@app.command()
def bench(
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures here, too")] = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="a group of figures; repeatable")] = None,
) -> None:
    """Speed on this machine, as ratios measured side by side; minutes. Let nothing else run meanwhile."""
    from fedprivjax import bench
    from fedprivjax.checks.values import require_choice

    for group in only or ():
        require_choice("group", group, bench.GROUPS)
    if json_file is not None and not json_file.parent.is_dir():
        raise Refusal(f"--json must be in a folder that exists, got {json_file}")
    lines = []
    for line in bench.measure(only):
        err.print(f"{line.name}: {line.value:.3g} {line.unit}")
        lines.append(line)
    out.print(bench.table(lines, bench.machine()))
    if json_file is not None:
        json_file.write_text(json.dumps(bench.as_json(lines), indent=1, ensure_ascii=False), encoding="utf-8")


def _run(experiment, folder: Path, done: dict[str, Any], *, resume: bool, judge: bool = False):
    from fedprivjax.engine.iterates import OUTPUT
    from fedprivjax.experiment import folder as results_folder
    from fedprivjax.experiment import run as runner
    from fedprivjax.experiment import verdict
    from fedprivjax.report import plots, tables

    todo = runner.jobs(experiment)
    if judge or experiment.record.iterate != OUTPUT:
        judged = experiment if judge else experiment.model_copy(update={"expected": []})
        verdict.check_recorded(judged, runner.recorded(todo), runner.records(todo))
    results_folder.claim(folder, experiment, resume=resume)
    if resume and (folder / "results.nc").is_file():
        results = results_folder.load(folder)
    else:
        with _progress(experiment.title) as progress:
            results = runner.run(experiment, progress, done, todo, folder / results_folder.CHUNKS)
        results_folder.save(results, folder)
    best = runner.selected(experiment, results)
    for table in tables.results_tables(experiment, best):
        out.print(table)
    out.print(tables.footnotes(experiment, best))
    record = experiment.record
    pictures = plots.save_all(best, folder, record.bars, record.averaged, record.iterate)
    out.print(f"written to {folder}: results.nc" + "".join(f", {path.name}" for path in pictures), soft_wrap=True)
    return best


def _load(spec: str, change: list[str] | None):
    from fedprivjax import experiment

    return experiment.load(spec, dict(_parse_change(text) for text in change or ()))


def _parse_change(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise Refusal(f"--set must be section.key=value, got {text!r}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value  # a bare word is a string


def _members(spec: str) -> list[str]:
    """A spec itself, or the bundled experiments of a folder."""
    from fedprivjax import experiment

    inside = [name for name in experiment.bundled() if name.startswith(spec.rstrip("/") + "/")]
    return inside or [spec]


def _name(spec: str) -> str:
    return Path(spec).stem if spec.endswith(".toml") else spec


def _print_list(title: str, entries: dict[str, str]) -> None:
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for name, text in entries.items():
        table.add_row(name, text)
    out.print(table)
    out.print()


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.3g}/s")


@contextmanager
def _progress(title: str):
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("runs"), _Rate())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=err, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda finished, total: bar.update(task, completed=finished, total=total)
