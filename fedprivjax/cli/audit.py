"""`fedprivjax audit`: attacks on claimed guarantees."""

from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from fedprivjax.cli.console import Change, Json, Stopped, app, leave_out, load, out, progress, write_json


@app.command()
def audit(
    spec: Annotated[str, typer.Argument(help="an experiment, a protocol's name, or all")],
    change: Change = None,
    epsilon: Annotated[float | None, typer.Option(help="target ε (default: the experiment's, or 2)")] = None,
    delta: Annotated[float | None, typer.Option(help="δ (default: the experiment's, or 1e-5)")] = None,
    runs: Annotated[int, typer.Option(help="scored runs on each of the two neighbouring datasets")] = 20_000,
    rounds: Annotated[int, typer.Option(help="rounds of a run")] = 12,
    seed: Annotated[int, typer.Option(help="seed of all runs")] = 0,
    only: Annotated[list[str] | None, typer.Option("--protocol", help="label of a protocol; repeatable")] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="folder of the plot, and of runs to resume from")] = None,
    json_file: Json = None,
    participation: Annotated[list[str] | None, typer.Option(help="fixed, varying, dropouts or secret")] = None,
    loss: Annotated[str | None, typer.Option(help="linear (default for fixed cohorts) or quadratic")] = None,
    clipping: Annotated[str | None, typer.Option(help="clipped gradients by auto, ghost or rows")] = None,
    each: Annotated[int | None, typer.Option("--one-run", help="audit one run, with these canaries a machine")] = None,
) -> None:
    """Attack every protocol with a worst-case canary, and compare lower bounds on ε with its claim.

    Exit status 1 if a claim is refuted, else 2 if a method with a guarantee could not be audited, or none was. A method
    that allows none of the kinds named by --participation could not be audited. Runs are scaled down to a few machines
    and 16 dimensions, with a fixed cohort. The audit is repeated with a varying cohort and with dropouts, with 2/5 of
    the runs and a third of the rounds. With --one-run, an experiment runs once at full size, with canaries.
    """
    from fedprivjax.auditing import of_experiment as audits
    from fedprivjax.auditing import tables as shown
    from fedprivjax.auditing.canary_search import NothingClaimed
    from fedprivjax.auditing.small_audits import audit_label
    from fedprivjax.layout.drawing import save

    chosen = audits.chosen(spec, lambda: load(spec, change), epsilon, delta, only)
    small = {"participation": participation, "loss": loss, "clipping": clipping}
    if each is None:
        attack = audits.scaled_down_audits(chosen, runs=runs, rounds=rounds, seed=seed, folder=folder, **small)
    else:
        leave_out("one-run", small)
        attack = audits.one_run_audits(chosen, each=each, seed=seed)
    for line in audits.audited_at(chosen, epsilon, sizes=each is not None):
        out.say_wrapped(line)
    try:
        finished, skipped = audits.run_all(chosen, attack, progress)
    except KeyboardInterrupt:
        kept = folder is not None and each is None
        raise Stopped(f"stopped: finished runs are saved in {folder}, the same command resumes" * kept) from None
    for line in shown.audit_verdict(finished):
        out.say_wrapped(line)
    if finished:
        out.print(shown.audit_table(finished))
    for label, why in skipped.items():
        out.say_wrapped(f"not audited: {label}: {why}")
    for label, kind in product([each for each in chosen.protocols if each not in skipped], participation or ()):
        if audit_label(label, kind) not in finished:
            out.say_wrapped(f"not audited: {label}: it does not allow participation {kind!r}")
    if folder is not None and finished:
        (picture,) = save({"audit": shown.plot(finished)}, folder)
        out.say(f"written to {picture}")
    write_json({label: one.as_mapping() for label, one in finished.items()}, json_file)
    refused = not finished or any(not isinstance(why, NothingClaimed) for why in skipped.values())
    raise typer.Exit(1 if any(one.refuted for one in finished.values()) else 2 if refused else 0)
