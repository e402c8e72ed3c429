"""Commands `fedprivjax plan` (comparison before a run) and `fedprivjax vectors` (reference vectors)."""

from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from fedprivjax.checks.refusal import Refusal
from fedprivjax.cli.console import app, err, out, progress, require_folders, write_json


@app.command()
def plan(
    spec: Annotated[
        str | None, typer.Argument(help="a TOML file with these options in a table [plan], or an experiment")
    ] = None,
    machines: Annotated[int | None, typer.Option(help="number of machines, M")] = None,
    per_round: Annotated[int | None, typer.Option(help="machines per round, m")] = None,
    samples: Annotated[int | None, typer.Option(help="records per machine, n")] = None,
    dimension: Annotated[int | None, typer.Option(help="number of model parameters, d")] = None,
    epsilon: Annotated[list[float] | None, typer.Option(help="realised ε at which to compare; repeatable")] = None,
    delta: Annotated[float | None, typer.Option(help="δ (default: 1e-6)")] = None,
    trust: Annotated[str | None, typer.Option(help="none (default), server, shuffler or pan-private")] = None,
    lipschitz: Annotated[
        float | None, typer.Option(help="Lipschitz constant G of a record's loss (default: 1)")
    ] = None,
    smoothness: Annotated[float | None, typer.Option(help="smoothness L of a record's loss (default: 1)")] = None,
    diameter: Annotated[float | None, typer.Option(help="diameter D of the ball of parameters (default: 1)")] = None,
    gap: Annotated[
        float | None, typer.Option(help="upper bound on the initial loss minus the smallest (default: G·D)")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="number of rounds (default: chosen for each method)")] = None,
    batch: Annotated[int | None, typer.Option(help="records per message (default: chosen for each method)")] = None,
    seed: Annotated[int | None, typer.Option(help="seed of the sampled schedules")] = None,
    only: Annotated[
        list[str] | None, typer.Option("--protocol", help="name of a protocol, see `list`; repeatable")
    ] = None,
    pilot: Annotated[bool, typer.Option("--pilot", help="run the methods on synthetic data of these sizes")] = False,
    pilot_seeds: Annotated[int | None, typer.Option(help="pilot runs of each method (default: 3)")] = None,
    classes: Annotated[
        int | None, typer.Option(help="classes of the pilot's data (default: 10 if d allows it)")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="also write the results to this JSON file")] = None,
    picture: Annotated[Path | None, typer.Option("--plot", help="draw the bounds against ε to this PNG file")] = None,
) -> None:
    """Compare methods before a run: every protocol's noise, guarantee, bound and cost at a realised ε.

    With --pilot, also its accuracy on synthetic data.
    """
    options = locals()  # by the names of the parameters
    from fedprivjax import planner
    from fedprivjax.experiment.planned import KEYS, plan_settings
    from fedprivjax.report.drawing import save_figure
    from fedprivjax.report.planned import bound_against_epsilon, plan_report

    require_folders(json=json_file, plot=picture)
    of_pilot = {"seeds": pilot_seeds, "classes": classes}
    of_pilot = {name: value for name, value in of_pilot.items() if value is not None}
    if of_pilot and not pilot:
        raise Refusal("--pilot-seeds and --classes must go with --pilot")
    runs = planner.Pilot(**of_pilot) if pilot else False
    settings, replaced = plan_settings(spec, {name: options[name] for name in KEYS if options[name] is not None})
    with progress("pilot") if pilot else nullcontext() as on_progress:
        found = planner.plan(**settings, protocols=only, pilot=runs, progress=on_progress)
    found = found.assign_attrs(replaced=replaced)
    out.print(plan_report(found, set(settings)))
    write_json(planner.mapping(found), json_file)
    if picture is not None:
        bounds = found
        if found.sizes["epsilon"] == 1:
            levels = planner.grid_around(found["epsilon"].item())
            bounds = planner.plan(**{**settings, "epsilon": levels}, protocols=only)
        save_figure(bound_against_epsilon(bounds, found), picture)


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
