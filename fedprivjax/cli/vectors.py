"""`fedprivjax vectors`: writes or checks reference vectors."""

from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from fedprivjax.cli.console import app, err, out


@app.command()
def vectors(
    folder: Annotated[Path, typer.Option("--out", help="folder of the files")] = Path("experiments/vectors"),
    check: Annotated[bool, typer.Option("--check", help="compare the files with this version, write nothing")] = False,
) -> None:
    """Write reference vectors of every method and accountant, to test other implementations against.

    With --check, exit status 1 if an array differs by more than 1e-6 of its norm, or a bound on ε by 1e-4.
    """
    from fedprivjax import vectors

    if not check:
        for path in chain(vectors.write_vectors(folder), map(vectors.write_accountants, [folder])):
            out.print(f"{path}: {path.stat().st_size:,} bytes", highlight=False, soft_wrap=True)
        return
    wrong = False
    for path, lines in chain(vectors.check_vectors(folder), map(vectors.check_accountants, [folder])):
        out.print(f"{path}: {'equal' if not lines else f'{len(lines)} differ'}", highlight=False, soft_wrap=True)
        for line in lines:
            err.say(f"  {line}")
        wrong |= bool(lines)
    if wrong:
        raise typer.Exit(1)
