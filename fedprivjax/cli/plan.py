"""`fedprivjax plan`."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from fedprivjax.checks.refusal import Refusal
from fedprivjax.cli.console import app, out, progress, require_folders, write_json


@app.command()
def plan(
    spec: Annotated[
        str | None, typer.Argument(help="a TOML file with a table 'plan' of these options, or an experiment's")
    ] = None,
    machines: Annotated[int | None, typer.Option(help="machines in all, M")] = None,
    per_round: Annotated[int | None, typer.Option(help="machines in a round, m")] = None,
    samples: Annotated[int | None, typer.Option(help="records of each machine, n")] = None,
    dimension: Annotated[int | None, typer.Option(help="parameters of the model, d")] = None,
    epsilon: Annotated[list[float] | None, typer.Option(help="the ε that is really given; repeatable")] = None,
    delta: Annotated[float | None, typer.Option(help="δ, 1e-6 by default")] = None,
    trust: Annotated[str | None, typer.Option(help="none (default), server, shuffler or pan-private")] = None,
    lipschitz: Annotated[float | None, typer.Option(help="G, of one record's loss, 1 by default")] = None,
    smoothness: Annotated[float | None, typer.Option(help="L, 1 by default")] = None,
    diameter: Annotated[float | None, typer.Option(help="D, of the ball of parameters, 1 by default")] = None,
    gap: Annotated[float | None, typer.Option(help="first loss above the least, at most; G·D by default")] = None,
    rounds: Annotated[int | None, typer.Option(help="instead of each method's own")] = None,
    batch: Annotated[int | None, typer.Option(help="records of a message, instead of each method's own")] = None,
    seed: Annotated[int | None, typer.Option(help="of the schedules that are drawn")] = None,
    only: Annotated[list[str] | None, typer.Option("--protocol", help="one of `list`; repeatable")] = None,
    pilot: Annotated[bool, typer.Option("--pilot", help="run the methods on synthetic data of these sizes")] = False,
    pilot_seeds: Annotated[int | None, typer.Option(help="runs of each method in a pilot, 3 by default")] = None,
    classes: Annotated[int | None, typer.Option(help="of a pilot's data, 10 by default where d allows it")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write all of it here, too")] = None,
    picture: Annotated[Path | None, typer.Option("--plot", help="draw the bounds against ε, as PNG")] = None,
) -> None:
    """Which method suits: every protocol's noise, guarantee, bound and cost at an actual ε, before anything runs; with
    --pilot also its accuracy on synthetic data."""
    given = {
        "machines": machines,
        "per_round": per_round,
        "samples": samples,
        "dimension": dimension,
        "epsilon": epsilon,
        "delta": delta,
        "trust": trust,
        "lipschitz": lipschitz,
        "smoothness": smoothness,
        "diameter": diameter,
        "gap": gap,
        "rounds": rounds,
        "batch": batch,
        "seed": seed,
    }
    from fedprivjax import planner
    from fedprivjax.experiment.planned import plan_settings
    from fedprivjax.report.bounds import bound_against_epsilon
    from fedprivjax.report.drawing import save_figure
    from fedprivjax.report.planned import plan_report

    require_folders(json=json_file, plot=picture)
    wanted = _pilot(pilot, {"seeds": pilot_seeds, "classes": classes})
    settings, replaced = plan_settings(spec, {name: value for name, value in given.items() if value is not None})
    with progress("pilot") if pilot else nullcontext() as told:
        found = planner.plan(**settings, protocols=only, pilot=wanted, progress=told).assign_attrs(replaced=replaced)
    out.print(plan_report(found, set(settings)))
    write_json(planner.mapping(found), json_file)
    if picture is not None:
        bounds = found
        if found.sizes["epsilon"] == 1:
            levels = planner.grid_around(found["epsilon"].item())
            bounds = planner.plan(**{**settings, "epsilon": levels}, protocols=only)
        save_figure(bound_against_epsilon(bounds, found), picture)


def _pilot(wanted: bool, given: dict[str, int | None]) -> Any:
    """The pilot that is asked for, or False."""
    from fedprivjax.planner import Pilot

    chosen = {name: value for name, value in given.items() if value is not None}
    if wanted:
        return Pilot(**chosen)
    if chosen:
        raise Refusal("--pilot-seeds and --classes must go with --pilot")
    return False
