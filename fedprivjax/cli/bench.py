"""`fedprivjax bench`."""

from pathlib import Path
from typing import Annotated

import typer

from fedprivjax.cli.console import app, err, out, require_folders, write_json


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
    require_folders(json=json_file)
    lines = []
    for line in bench.measure(only):
        err.print(f"{line.name}: {line.value:.3g} {line.unit}")
        lines.append(line)
    out.print(bench.table(lines, bench.machine()))
    write_json(bench.as_json(lines), json_file)
