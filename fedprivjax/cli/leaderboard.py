"""`fedprivjax leaderboard`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from fedprivjax.checks.refusal import Refusal
from fedprivjax.cli.console import app, err, out, require_folders


@app.command()
def leaderboard(
    results: Annotated[
        list[Path] | None,
        typer.Argument(
            help="results folders, netCDF or frontier.json files; without any, the bundled leaderboard is shown"
        ),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(
            "--into", help="also join the rows to this JSON file, where they replace rows of the same methods"
        ),
    ] = None,
) -> None:
    """Show private methods ranked at equal ε, and join the rows of finished results to a leaderboard file.

    A row needs a realised ε, three or more seeds and no diverged run. A line on stderr names each refused row.
    """
    from fedprivjax.report import leaderboard as boards
    from fedprivjax.report.leaderboard import notes

    require_folders(into=into)
    known = boards.leaderboard(into) if into is not None and into.exists() else boards.Leaderboard()
    shown = boards.Leaderboard() if results else boards.leaderboard(into)
    for each in results or ():
        found, refused = boards.entries(each)
        for line in refused:
            err.print(f"{each}: refused: {line}", markup=False, highlight=False, soft_wrap=True)
        shown = shown.joined(found.rows)
    if not shown.rows:
        raise Refusal("results must have a row that can enter the leaderboard, got none")
    for table in shown.tables:
        out.print(table)
    for note in notes(shown.rows):
        out.print(Text(note))
    if into is not None and results:
        joined = known.joined(shown.rows)
        joined.save(into)
        out.print(f"{len(shown.rows)} rows joined to {into}: {len(joined.rows)} in all", markup=False, highlight=False)
