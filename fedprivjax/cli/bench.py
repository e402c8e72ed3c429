"""`fedprivjax bench`."""

from pathlib import Path
from typing import Annotated

import typer

from fedprivjax.cli.console import app, err, out, require_folders, write_json


@app.command()
def bench(
    json_file: Annotated[Path | None, typer.Option("--json", help="also write the results to this JSON file")] = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="a group of measurements; repeatable")] = None,
) -> None:
    """Measure speed on this machine, as ratios of times measured in turn. Takes minutes. Run nothing else meanwhile."""
    from fedprivjax import bench
    from fedprivjax.checks.values import require_choice

    for group in only or ():
        require_choice("group", group, bench.GROUPS)
    require_folders(json=json_file)
    lines = []
    for line in bench.measure(only):
        err.print(f"{line.name}: {line.value:.3g} {line.unit}")
        lines.append(line)
    out.print(bench.table(lines, bench.machine()))
    write_json(bench.as_json(lines), json_file)
