"""Commands `fedprivjax audit` (attacks), `bench` (timings), `plan` (comparison before a run) and `vectors`."""

from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from fedprivjax.checks.refusal import Refusal
from fedprivjax.checks.values import require_choice
from fedprivjax.cli.console import (
    Change,
    Json,
    Stopped,
    app,
    err,
    load,
    out,
    progress,
    require_folders,
    status_line,
    write_json,
)


@app.command()
def plan(
    spec: Annotated[str | None, typer.Argument(help="an experiment, for the options that are not given")] = None,
    machines: Annotated[int | None, typer.Option(help="number of machines, M")] = None,
    per_round: Annotated[int | None, typer.Option(help="machines per round, m")] = None,
    samples: Annotated[int | None, typer.Option(help="records per machine, n")] = None,
    dimension: Annotated[int | None, typer.Option(help="number of model parameters, d")] = None,
    epsilon: Annotated[list[float] | None, typer.Option(help="realised ε at which to compare; repeatable")] = None,
    delta: Annotated[float | None, typer.Option(help="δ (default: 1e-6)")] = None,
    trust: Annotated[str | None, typer.Option(help="none (default), server, shuffler or pan-private")] = None,
    unit: Annotated[str | None, typer.Option(help="protected unit: record (default) or machine")] = None,
    lipschitz: Annotated[
        float | None, typer.Option(help="Lipschitz constant G of a record's loss (default: 1)")
    ] = None,
    smoothness: Annotated[float | None, typer.Option(help="smoothness L of a record's loss (default: 1)")] = None,
    diameter: Annotated[float | None, typer.Option(help="diameter D of the ball of parameters (default: 1)")] = None,
    gap: Annotated[float | None, typer.Option(help="bound on the initial excess loss (default: G·D)")] = None,
    rounds: Annotated[int | None, typer.Option(help="number of rounds (default: chosen for each method)")] = None,
    batch: Annotated[int | None, typer.Option(help="records per message (default: chosen for each method)")] = None,
    seed: Annotated[int | None, typer.Option(help="seed of the sampled schedules")] = None,
    only: Annotated[list[str] | None, typer.Option("--protocol", help="name of a protocol; repeatable")] = None,
    method: Annotated[str | None, typer.Option(help="a method of the ranking, to show all that is known of it")] = None,
    every: Annotated[bool, typer.Option("--all", help="show all that is known of every method")] = False,
    pilot: Annotated[bool, typer.Option("--pilot", help="run the methods on synthetic data of these sizes")] = False,
    json_file: Json = None,
    card: Annotated[str | None, typer.Option(help="instead, predict memory and time on h100, a100 or h200")] = None,
) -> None:
    """Rank methods before a run, by proved bounds at a realised ε or by pilot runs on synthetic data.

    --method and --all show terms of bounds, noise, costs, theorems, guarantees, and why a method is not planned. An
    experiment is compiled for one GPU, which need not be there, with --card. Nothing is run.
    """
    options = locals()  # by the names of the parameters
    if card is not None:
        _leave_out("card", {name: options[name] for name in options if name not in ("spec", "card", "json_file")})
        _plan_card(spec, card, json_file)
        return
    from fedprivjax import planner
    from fedprivjax.experiment.planned import KEYS, plan_settings
    from fedprivjax.report.planned import plan_ranking, plan_report

    require_folders(json=json_file)
    settings, replaced = plan_settings(spec, {name: options[name] for name in KEYS if options[name] is not None})
    only = only if method is None else [method.partition(",")[0]]
    with progress("pilot") if pilot else nullcontext() as on_progress:
        found = planner.plan(**settings, protocols=only, pilot=pilot, progress=on_progress)
    if method is not None and "," in method:
        require_choice("method", method, found["protocol"].values.tolist())
        found = found.sel(protocol=[method])
    found = found.assign_attrs(replaced=replaced)
    whole = every or method is not None
    out.print((plan_report if whole else plan_ranking)(found, set(settings)))
    if not whole:
        out.say("next: --method NAME (noise, costs, theorem, guarantee, reason), or --all")
    write_json(planner.mapping(found), json_file)


def _plan_card(spec: str | None, card: str, json_file: Path | None) -> None:
    """Print the memory and predicted time of an experiment on a card."""
    from fedprivjax.bench import compiled

    compiled.require_cases(card)
    if spec is None:
        raise Refusal("--card must go with an experiment, got none. Name one")
    require_folders(json=json_file)
    experiment = load(spec, None)
    with status_line("reading") as say:
        found = compiled.plan_rows(experiment, card, say)
    out.print(compiled.plan_table(found, card))
    write_json(compiled.as_json(found, card), json_file)


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
    participation: Annotated[list[str] | None, typer.Option(help="fixed, varying or dropouts; repeatable")] = None,
    loss: Annotated[str | None, typer.Option(help="linear (default for fixed cohorts) or quadratic")] = None,
    clipping: Annotated[str | None, typer.Option(help="clipped gradients by auto, ghost or rows")] = None,
    each: Annotated[int | None, typer.Option("--one-run", help="audit one run, with these canaries a machine")] = None,
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
    small = {"participation": participation, "loss": loss, "clipping": clipping}
    if each is None:
        attack = audits.scaled_down_audits(chosen, runs=runs, rounds=rounds, seed=seed, folder=folder, **small)
    else:
        _leave_out("one-run", small)
        attack = audits.one_run_audits(chosen, each=each, seed=seed)
    for line in audits.audited_at(chosen, epsilon, sizes=each is not None):
        out.say(line)
    try:
        finished, skipped = audits.run_all(chosen, attack, progress)
    except KeyboardInterrupt:
        kept = folder is not None and each is None
        raise Stopped(f"stopped: finished runs are saved in {folder}, the same command resumes" * kept) from None
    for line in shown.audit_verdict(finished):
        out.say(line)
    if finished:
        out.print(shown.audit_table(finished))
    for label, why in skipped.items():
        out.say(f"not audited: {label}: {why}")
    if folder is not None and finished:
        (picture,) = save({"audit": shown.plot(finished)}, folder)
        out.say(f"written to {picture}")
    write_json({label: one.as_mapping() for label, one in finished.items()}, json_file)
    refused = any(not isinstance(why, NothingClaimed) for why in skipped.values())
    raise typer.Exit(1 if any(one.refuted for one in finished.values()) else 2 if refused else 0)


@app.command()
def bench(
    json_file: Json = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="a group of measurements; repeatable")] = None,
    plot: Annotated[Path | None, typer.Option(help="plot an accelerator's throughput to this PNG file")] = None,
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


def _compile_for(card: str, cards: int, json_file: Path | None, only: list[str] | None, others: dict[str, Any]) -> None:
    """Print a table of every method, or of those in `only`, compiled for cards."""
    from fedprivjax.bench import compiled

    _leave_out("compile-for", others)
    compiled.require_cases(card, cards, only)
    require_folders(json=json_file)
    with status_line("compiling") as say:
        found = list(compiled.rows(card, cards, only, say=say))
    out.print(compiled.table(found, card, cards))
    write_json(compiled.as_json(found, card, cards), json_file)


def _leave_out(option: str, others: dict[str, Any]) -> None:
    """Raise Refusal if another option was given."""
    for other, given in others.items():
        if given:
            raise Refusal(f"--{other.replace('_', '-')} must be left out with --{option}, got {given}. Leave it out")


def _check_device(json_file: Path | None, only: list[str] | None, plot: Path | None) -> None:
    """Print the device and a table of its differences from the CPU. Exit status 1 if one is above its limit."""
    from fedprivjax.bench import accelerator as check

    _leave_out("check-device", {"only": only, "plot": plot})
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
