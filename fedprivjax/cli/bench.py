"""`fedprivjax bench`."""

from pathlib import Path
from typing import Annotated

import typer

from fedprivjax.checks.refusal import Refusal
from fedprivjax.cli.console import app, err, out, progress, require_folders, write_json


@app.command()
def bench(
    json_file: Annotated[Path | None, typer.Option("--json", help="also write the results to this JSON file")] = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="a group of measurements; repeatable")] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="also plot the throughput of sweeps to this PNG file (accelerator only)"),
    ] = None,
    check_device: Annotated[
        bool, typer.Option("--check-device", help="compare results on this device with the CPU, instead of measuring")
    ] = False,
) -> None:
    """Measure speed on this machine, as ratios of times measured in turn. Takes minutes. Run nothing else meanwhile.

    With --check-device, exit status 1 if a result differs.
    """
    if check_device:
        _check_device(json_file, only, plot)
        return
    from fedprivjax import bench
    from fedprivjax.checks.values import require_choice

    for group in only or ():
        require_choice("group", group, bench.GROUPS)
    require_folders(json=json_file, plot=plot)
    if plot is not None:
        bench.require_throughput(only)
    lines = []
    for line in bench.measure(only):
        err.print(f"{line.name}: {line.value:.3g} {line.unit}")
        lines.append(line)
    out.print(bench.table(lines, bench.machine()))
    write_json(bench.as_json(lines), json_file)
    if plot is not None:
        bench.save_throughput(lines, plot)


def _check_device(json_file: Path | None, only: list[str] | None, plot: Path | None) -> None:
    """Print the device and a table of its differences from the CPU. Exit status 1 if one is above its limit."""
    from fedprivjax.bench import check_device as check

    for option, given in {"only": only, "plot": plot}.items():
        if given:
            raise Refusal(f"--{option} must be left out with --check-device, got {given}. Leave it out")
    require_folders(json=json_file)
    described = check.description()
    out.print(", ".join(f"{name} {value}" for name, value in described.items()), highlight=False)
    if described["backend"] == "cpu":
        err.print(f"warning: {check.ONLY_CPU}", soft_wrap=True)
    found = []
    with progress("checking the device", "comparisons") as on_progress:
        for finding, total in check.findings():
            found.append(finding)
            on_progress(len(found), total)
            if not finding.met:
                reason = finding.error or f"differs by {finding.value:.2g}, more than {finding.limit:g}"
                err.say(f"{finding.label}, {finding.kind}: {reason}")
    out.print(check.table(found))
    write_json(check.as_json(found, described), json_file)
    raise typer.Exit(0 if all(one.met for one in found) else 1)
