"""`fedprivjax plan`: compares methods before a run."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from fedprivjax.checks.refusal import Refusal
from fedprivjax.cli.console import Json, app, leave_out, load, out, progress, status_line, write_json


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
    every: Annotated[bool, typer.Option("--all", help="show all that is known of the methods")] = False,
    pilot: Annotated[bool, typer.Option("--pilot", help="run the methods on synthetic data of these sizes")] = False,
    json_file: Json = None,
    card: Annotated[str | None, typer.Option(help="instead, predict memory and time on h100, a100 or h200")] = None,
) -> None:
    """Rank methods before a run, by proved bounds at a realised ε or by pilot runs on synthetic data.

    --all shows terms of bounds, noise, costs, theorems, guarantees, and why a method is not planned. An experiment is
    compiled for one GPU, which need not be there, with --card. Nothing is run.
    """
    options = locals()  # by the names of the parameters
    if card is not None:
        leave_out("card", {name: options[name] for name in options if name not in ("spec", "card", "json_file")})
        _plan_card(spec, card, json_file)
        return
    from fedprivjax import planner
    from fedprivjax.planner.options import KEYS, plan_settings
    from fedprivjax.planner.text import plan_ranking, plan_report

    settings, replaced = plan_settings(spec, {name: options[name] for name in KEYS if options[name] is not None})
    with progress("pilot") if pilot else nullcontext() as on_progress:
        found = planner.plan(**settings, protocols=only, pilot=pilot, progress=on_progress)
    found = found.assign_attrs(replaced=replaced)
    out.print((plan_report if every else plan_ranking)(found, set(settings)))
    if not every:
        out.say("next: --all (noise, costs, theorem, guarantee, reason), also with --protocol NAME")
    write_json(planner.mapping(found), json_file)


def _plan_card(spec: str | None, card: str, json_file: Path | None) -> None:
    """Print the memory and predicted time of an experiment on a card."""
    from fedprivjax.bench import compiled

    compiled.require_cases(card)
    if spec is None:
        raise Refusal("--card must go with an experiment, got none. Name one")
    experiment = load(spec, None)
    with status_line("reading") as say:
        found = compiled.plan_rows(experiment, card, say)
    out.print(compiled.plan_table(found, card))
    write_json(compiled.as_json(found, card), json_file)
