"""`fedprivjax leaderboard | list`: rows of results ranked and joined, and the names that experiment files can use."""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.cli.console import Json, app, err, in_folder, out, write_json
from fedprivjax.layout.text_table import Sheet

Entries = dict[str, tuple[str, Any]]  # by name: a line of help, and the class or function with the settings, or None


@app.command()
def leaderboard(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME|RESULTS]...", help="experiments or folders, or results folders, netCDF or json files"
        ),
    ] = None,
    into: Annotated[
        Path | None, typer.Option(callback=in_folder, help="also join the rows to this file, in place of equal ones")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="show all tables of several experiments")] = False,
) -> None:
    """Show private methods ranked at equal ε, and join the rows of finished results to a leaderboard file.

    Names such as frontier/digits are experiments of the bundled leaderboard, or of the file of --into. Without any, all
    are shown. Several experiments have one line each, with the best method, unless --all asks for their tables. A row
    of results needs a realised ε, three or more seeds and no diverged run. A line on stderr names each refused row.
    """
    from fedprivjax.leaderboards import leaderboard as boards

    new = bool(names) and into is not None and not into.exists()
    known = boards.Leaderboard() if new else boards.leaderboard(into)
    shown, found = boards.Leaderboard() if names else known, boards.Leaderboard()
    for name in names or ():
        if not _names_results(name, known):
            shown = shown.joined(known.named(name).rows)
            continue
        entered, refused = boards.entries(name)
        for line in refused:
            err.say(f"{name}: refused: {line}")
        found = found.joined(entered.rows)
    shown = shown.joined(found.rows)
    if not shown.rows:
        raise Refusal("results must have a row that can enter the leaderboard, got none")
    if every or len(shown.experiments) == 1:
        out.print(shown.shown)
    else:
        tables = boards.best_tables(shown)
        for table in tables:
            out.print(table)
        if any(cell.endswith("‡") for table in tables for cell in table.columns[-1].cells):
            out.say("‡ settings not covered by the guarantee. Its tables say why")
        out.say("trust: none, unless (server) or (shuffler) is named")
        file = "" if into is None else f" --into {shlex.quote(str(into))}"
        one = "" if found.rows else f"fedprivjax leaderboard {shown.experiments[0]}{file} (its tables), or "
        out.say(f"next: {one}--all")
    if into is not None and found.rows:
        joined = known.joined(found.rows)
        joined.save(into)
        out.print(f"{len(found.rows)} rows joined to {into}: {len(joined.rows)} in all", markup=False, highlight=False)


def _names_results(name: str, known: Any) -> bool:
    """Return True if a name is a path of results, and not an experiment or a folder of the known leaderboard."""
    from fedprivjax.experiment import folder

    path = Path(name)
    if path.is_file() or path.suffix in (".nc", ".json") or folder.begun(path) or (path / folder.RESULTS).is_file():
        return True
    inside = name.rstrip("/") + "/"
    return path.is_dir() and not any(one.startswith(inside) for one in known.experiments)


@app.command("list")
def list_(
    name: Annotated[str | None, typer.Argument(help="a group such as losses, an entry, or a section of files")] = None,
    every: Annotated[bool, typer.Option("--all", help="show all groups with a line of help on each entry")] = False,
    combinations: Annotated[
        bool, typer.Option("--combinations", help="which privacy settings all algorithms have, or the one called NAME")
    ] = False,
    json_file: Json = None,
) -> None:
    """List all names of experiment files, the entries of a group with a line of help each, or one entry's settings."""
    if combinations:
        _print_combinations(name, json_file)
        return
    if json_file is not None:
        raise Refusal(f"json must be given with --combinations, got {json_file} alone")
    from fedprivjax import experiment
    from fedprivjax.cli.settings_help import settings_of
    from fedprivjax.experiment.section import summary

    headings = {heading.strip("[]"): thing for heading, thing in sections().items()}
    found: dict[str, Entries] = {
        "sections": {entry: (summary(thing).removesuffix("."), thing) for entry, thing in headings.items()},
        **{title.replace(" ", "-"): entries for title, entries in groups().items()},
        "experiments": {entry: (text, None) for entry, text in experiment.titles().items()},
    }
    if name is None and not every:
        _print("", [(title, ", ".join(_folders(entries))) for title, entries in found.items()])
        out.say("next: fedprivjax list losses (one group), list huber (its settings), list --all")
        return
    name = (name or "").strip("[]").replace(" ", "-")
    name = {heading.rpartition(".")[2]: heading for heading in headings}.get(name, name)
    inside = {entry for title, entries in found.items() if title != "experiments" for entry in entries}
    if not every:
        require_choice("name", name, [*found, *sorted(inside)])
    for title, entries in found.items():
        if every or name == title:
            _print(title, [(entry, text) for entry, (text, _) in entries.items()])
        if name in inside and name in entries:
            text, thing = entries[name]
            settings = [] if thing is None else settings_of(thing)
            rows = [("setting", "type", "default", "help"), *settings] if settings else [["no settings"]]
            _print(f"{name} ({title}): {text}".removesuffix(": "), rows, headed=bool(settings))


def _folders(names: Iterable[str]) -> list[str]:
    """Return the names, with one for all that are in a folder, and their number.

    >>> _folders(["digits", "paper/table1", "paper/table2", "loss"])
    ['digits', 'paper/… (2)', 'loss']
    """
    folders = Counter(name.partition("/")[0] + "/" * ("/" in name) for name in names)
    return [f"{folder}… ({count})" if folder.endswith("/") else folder for folder, count in folders.items()]


def _print_combinations(name: str | None, json_file: Path | None) -> None:
    """Print a table of combinations for each privacy object, of one algorithm or of all."""
    from fedprivjax.layout.wording import grouped
    from fedprivjax.testing.combinations import algorithms, combinations, folded

    if name is not None:
        require_choice("algorithm", name, algorithms())
    found = combinations(None if name is None else [name])
    rows = []
    for kind, of_kind in grouped((cell.privacy, (cell, outcome)) for cell, outcome in found.items()).items():
        own = sorted(folded(dict(of_kind)), key=lambda row: (row.outcome != "defined", row.outcome))
        out.print(_combination_table(kind.__name__, own))
        rows += own
    write_json([{**row.values, "outcome": row.outcome} for row in rows], json_file)


def _combination_table(title: str, rows: list[Any]) -> Sheet:
    """Return a table of numbered outcomes. A column with all of its values in a row has "any" there."""
    every = {column: {value for row in rows for value in row.values[column]} for column in rows[0].values}
    del every["privacy"]
    table = Sheet(title, keys=2)  # in several parts, if the terminal is narrow
    table.add_columns("", "outcome", *every, justify="left")
    for number, row in enumerate(rows, start=1):
        own = {column: row.values[column] for column in every}
        cells = ("any" if 1 < len(one) == len(every[column]) else ", ".join(one) for column, one in own.items())
        table.add_row(str(number), row.outcome, *cells)
    return table


def groups() -> dict[str, Entries]:
    """Return everything that experiment files can name, by the title of its group."""
    from fedprivjax import datasets
    from fedprivjax.datasets.partition import KINDS
    from fedprivjax.engine.metrics import METRICS
    from fedprivjax.experiment.participation_section import ParticipationSettings
    from fedprivjax.experiment.problem_section import ConstraintSettings, LossSettings, ModelSettings
    from fedprivjax.experiment.section import kinds, summary
    from fedprivjax.experiment.settings import PartitionSettings
    from fedprivjax.features import MAPS
    from fedprivjax.method.encoders import ENCODERS
    from fedprivjax.method.pairing import PRIVACY_KINDS
    from fedprivjax.plan.samplers import SAMPLERS
    from fedprivjax.privacy.adversary_names import ADVERSARIES
    from fedprivjax.protocols import ALGORITHMS, PROTOCOLS

    def documented(known: Mapping[str, Any]) -> Entries:
        return {entry: (summary(thing), thing) for entry, thing in known.items()}

    linear: Entries = {"linear": ("linear predictor, if no model is given", None)}
    return {
        "protocols": {entry: (text, thing) for entry, (thing, text) in PROTOCOLS.items()},
        "algorithms": {entry: (text, thing) for entry, (thing, text) in ALGORITHMS.items()},
        "privacy objects": documented(PRIVACY_KINDS),
        "adversaries": documented(ADVERSARIES),
        "encoders": documented(ENCODERS),
        "losses": documented(kinds(LossSettings)),
        "models": linear | documented(kinds(ModelSettings)),
        "constraint sets": documented(kinds(ConstraintSettings)),
        "participation": documented(kinds(ParticipationSettings)),
        "partitions": {entry: (text, PartitionSettings) for entry, text in KINDS.items()},
        "datasets": {entry: (info.help, info.loader) for entry, info in datasets.DATASETS.items()},
        "feature maps": documented(MAPS),
        "samplers": {entry: (sampler.description, sampler) for entry, sampler in SAMPLERS.items()},
        "metrics": dict.fromkeys(METRICS, ("", None)),
    }


def sections() -> dict[str, Any]:
    """Return the sections of an experiment file that have no `kind` key, by heading."""
    from fedprivjax.datasets.preparation import Preparation
    from fedprivjax.experiment import expected, settings

    return {
        "file": settings.Experiment,
        "[problem]": settings.ProblemSettings,
        "[problem.partition]": settings.PartitionSettings,
        "[problem.options]": Preparation,
        "[[protocol]]": settings.ProtocolSettings,
        "[sweep]": settings.SweepSettings,
        "[evaluation]": settings.EvaluationSettings,
        "[tuning]": settings.TuningSettings,
        "[[expected]]": expected.Expected,
        "[[expected.cells]]": expected.Cell,
    }


def _print(title: str, rows: Sequence[Sequence[str]], *, headed: bool = False) -> None:
    """Print rows without lines between them, the first as headings if asked for."""
    table = Table(
        *[Column(Text(word), overflow="fold") for word in rows[0]], show_header=headed, box=None, pad_edge=False
    )
    table.columns[0].no_wrap, table.columns[0].style = True, "bold"
    for row in rows[headed:]:
        table.add_row(*map(Text, row))
    if title:
        out.say_wrapped(title)
    out.print(table)
    out.print()
