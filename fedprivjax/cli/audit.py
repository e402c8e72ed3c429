"""`fedprivjax audit`."""

from pathlib import Path
from typing import Annotated

import typer

from fedprivjax.cli.console import Change, app, load, out, progress, require_folders, write_json
from fedprivjax.cli.interrupts import Stopped


@app.command()
def audit(
    spec: Annotated[str, typer.Argument(help="an experiment, a protocol's name, or all")],
    change: Change = None,
    epsilon: Annotated[float | None, typer.Option(help="in place of the experiment's targets; 2 for a name")] = None,
    delta: Annotated[float | None, typer.Option(help="δ; the experiment's, or 1e-5")] = None,
    runs: Annotated[int, typer.Option(help="of each world, that are counted")] = 20_000,
    rounds: Annotated[int, typer.Option(help="of a run")] = 12,
    seed: Annotated[int, typer.Option(help="of all runs")] = 0,
    only: Annotated[list[str] | None, typer.Option("--protocol", help="its label; repeatable")] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="folder of the plot; a stopped audit goes on")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the audits here, too")] = None,
    participation: Annotated[
        list[str] | None, typer.Option(help="fixed, varying or dropouts; repeatable; all that a method allows")
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="linear or quadratic; else linear for fixed cohorts, quadratic for others")
    ] = None,
    each: Annotated[
        int | None, typer.Option("--one-run", help="instead, one run at full size with so many canaries a machine")
    ] = None,
) -> None:
    """Attack every protocol with a worst-case canary: what it gives away, beside what it claims; status 1 if more.

    Runs are in small: a few machines, 16 dimensions; with a fixed cohort; and, with 2/5 of the runs and a third of the
    rounds, with a varying cohort and with dropouts. With --one-run, an experiment runs once as it is, with canaries.
    """
    from fedprivjax.auditing.audit import NothingClaimed
    from fedprivjax.experiment import audit as audits
    from fedprivjax.report import audits as shown
    from fedprivjax.report.drawing import save

    require_folders(json=json_file)
    chosen = audits.chosen(spec, lambda: load(spec, change), epsilon, delta, only)
    if each is None:
        small = {"participation": participation, "loss": loss}
        attack = audits.in_two_worlds(chosen, runs=runs, rounds=rounds, seed=seed, folder=folder, **small)
    else:
        audits.require_in_small(participation, loss)
        attack = audits.in_one_run(chosen, each=each, seed=seed)
    for line in audits.audited_at(chosen, epsilon, sizes=each is not None):
        out.print(line, markup=False, highlight=False, soft_wrap=True)
    try:
        finished, skipped = audits.run_all(chosen, attack, progress)
    except KeyboardInterrupt:
        kept = folder is not None and each is None
        raise Stopped(f"stopped: finished runs are kept in {folder}, the same command goes on" * kept) from None
    out.print(shown.audit_table(finished) if each is None else shown.one_run_table(finished))
    for line in shown.refutations(finished):
        out.print(line, soft_wrap=True)
    for label, why in skipped.items():
        out.print(f"not audited: {label}: {why}", markup=False, highlight=False, soft_wrap=True)
    if folder is not None:
        (picture,) = save({"audit": shown.plot(finished)}, folder)
        out.print(f"written to {picture}", soft_wrap=True, markup=False, highlight=False)
    write_json({label: one.as_mapping() for label, one in finished.items()}, json_file)
    refused = any(not isinstance(why, NothingClaimed) for why in skipped.values())
    raise typer.Exit(1 if any(one.refuted for one in finished.values()) else 2 if refused else 0)
