"""Commands `fedprivjax audit` (attacks on methods) and `fedprivjax bench` (timings)."""

from pathlib import Path
from typing import Annotated

import typer

from fedprivjax.checks.refusal import Refusal
from fedprivjax.cli.console import Change, Stopped, app, err, load, out, progress, require_folders, write_json


@app.command()
def audit(
    spec: Annotated[str, typer.Argument(help="an experiment, a protocol's name, or all")],
    change: Change = None,
    epsilon: Annotated[
        float | None, typer.Option(help="target ε (default: the experiment's, or 2 for a protocol's name)")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="δ (default: the experiment's, or 1e-5)")] = None,
    runs: Annotated[int, typer.Option(help="scored runs on each of the two neighbouring datasets")] = 20_000,
    rounds: Annotated[int, typer.Option(help="rounds of a run")] = 12,
    seed: Annotated[int, typer.Option(help="seed of all runs")] = 0,
    only: Annotated[list[str] | None, typer.Option("--protocol", help="label of a protocol; repeatable")] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="folder of the plot and of finished runs, from which an audit resumes")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="also write the results to this JSON file")] = None,
    participation: Annotated[
        list[str] | None,
        typer.Option(help="fixed, varying or dropouts; repeatable (default: all that a method supports)"),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(help="linear or quadratic (default: linear for fixed cohorts, quadratic for others)"),
    ] = None,
    each: Annotated[
        int | None, typer.Option("--one-run", help="audit one full-size run, with this many canaries per machine")
    ] = None,
) -> None:
    """Attack every protocol with a worst-case canary, and compare lower bounds on ε with its claim.

    Exit status 1 if a claim is refuted. Runs are scaled down to a few machines and 16 dimensions, with a fixed cohort.
    The audit is repeated with a varying cohort and with dropouts, with 2/5 of the runs and a third of the rounds. With
    --one-run, an experiment runs once at full size, with canaries.
    """
    from fedprivjax.auditing.canary_search import NothingClaimed
    from fedprivjax.experiment import audit as audits
    from fedprivjax.report import audits as shown
    from fedprivjax.report.drawing import save

    require_folders(json=json_file)
    chosen = audits.chosen(spec, lambda: load(spec, change), epsilon, delta, only)
    if each is None:
        small = {"participation": participation, "loss": loss}
        attack = audits.scaled_down_audits(chosen, runs=runs, rounds=rounds, seed=seed, folder=folder, **small)
    else:
        audits.refuse_scaled_down(participation, loss)
        attack = audits.one_run_audits(chosen, each=each, seed=seed)
    for line in audits.audited_at(chosen, epsilon, sizes=each is not None):
        out.say(line)
    try:
        finished, skipped = audits.run_all(chosen, attack, progress)
    except KeyboardInterrupt:
        kept = folder is not None and each is None
        raise Stopped(f"stopped: finished runs are saved in {folder}, the same command resumes" * kept) from None
    out.print(shown.audit_table(finished) if each is None else shown.one_run_table(finished))
    for line in shown.refutations(finished):
        out.print(line, soft_wrap=True)
    for label, why in skipped.items():
        out.say(f"not audited: {label}: {why}")
    if folder is not None:
        (picture,) = save({"audit": shown.plot(finished)}, folder)
        out.say(f"written to {picture}")
    write_json({label: one.as_mapping() for label, one in finished.items()}, json_file)
    refused = any(not isinstance(why, NothingClaimed) for why in skipped.values())
    raise typer.Exit(1 if any(one.refuted for one in finished.values()) else 2 if refused else 0)


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
    from fedprivjax.bench import accelerator as check

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
