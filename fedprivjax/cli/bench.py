"""`fedprivjax bench`: timings, as ratios, and the check of a device."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.cli.console import Json, app, err, in_folder, leave_out, out, progress, status_line, write_json


@app.command()
def bench(
    json_file: Json = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="a group of measurements; repeatable")] = None,
    plot: Annotated[
        Path | None, typer.Option(callback=in_folder, help="plot an accelerator's throughput to this PNG file")
    ] = None,
    check_device: Annotated[
        bool, typer.Option("--check-device", help="instead, compare this device with a CPU")
    ] = False,
    compile_for: Annotated[
        str | None, typer.Option(help="instead, compile for h100, a100 or h200, on any device")
    ] = None,
    cards: Annotated[int, typer.Option(help="number of cards of --compile-for")] = 1,
) -> None:
    """Measure speed on this machine, as ratios of times measured in turn. Takes minutes. Run nothing else meanwhile.

    With --check-device, exit status 1 if a result differs. With --compile-for, nothing is run: a table of kernels,
    bytes, memory and predicted times. --only then names methods or networks (2NN, CNN).
    """
    if compile_for is not None:
        _compile_for(compile_for, cards, json_file, only, {"check-device": check_device, "plot": plot})
        return
    if cards != 1:
        raise Refusal(f"--cards must go with --compile-for, got {cards}. Leave it out")
    if check_device:
        _check_device(json_file, only, plot)
        return
    from fedprivjax import bench

    for group in only or ():
        require_choice("group", group, bench.GROUPS)
    if plot is not None:
        bench.require_throughput(only)
    lines = []
    for group in only or bench.GROUPS:
        err.say(f"measuring {group} … (the table follows after all measurements)")
        for line in bench.measure([group]):
            target = "" if line.target is None else f" (target {line.target})"
            err.say(f"{line.name}: {line.value:.3g} {line.unit}{target}")
            lines.append(line)
    out.print(bench.table(lines, bench.machine()))
    write_json(bench.as_json(lines), json_file)
    if plot is not None:
        bench.save_throughput(lines, plot)


def _compile_for(card: str, cards: int, json_file: Path | None, only: list[str] | None, others: dict[str, Any]) -> None:
    """Print a table of every method, or of those in `only`, compiled for cards."""
    from fedprivjax.bench import compiled

    leave_out("compile-for", others)
    compiled.require_cases(card, cards, only)
    with status_line("compiling") as say:
        found = list(compiled.rows(card, cards, only, say=say))
    out.print(compiled.table(found, card, cards))
    write_json(compiled.as_json(found, card, cards), json_file)


def _check_device(json_file: Path | None, only: list[str] | None, plot: Path | None) -> None:
    """Print the device and a table of its differences from the CPU. Exit status 1 if one is above its limit."""
    from fedprivjax.bench import accelerator as check

    leave_out("check-device", {"only": only, "plot": plot})
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
