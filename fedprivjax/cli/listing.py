"""`fedprivjax list`."""

from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from fedprivjax.checks.values import require_choice
from fedprivjax.cli.console import app, out

Entries = dict[str, tuple[str, Any]]  # by name: a line of help, and the class or function with the settings, or None


@app.command("list")
def list_(
    name: Annotated[
        str | None, typer.Argument(help="an entry, or a section such as sweep, to show its settings and their defaults")
    ] = None,
) -> None:
    """List everything that experiment files can name, with a line of help each, or the settings of one entry.

    The groups are sections of the file, protocols, algorithms, privacy objects, losses, models, constraint sets,
    participation, partitions, datasets, feature maps, samplers, metrics and experiments.
    """
    from fedprivjax import experiment
    from fedprivjax.experiment.section import summary

    headings = {heading.strip("[]"): thing for heading, thing in sections().items()}
    found = {
        "sections": {entry: (summary(thing).removesuffix("."), thing) for entry, thing in headings.items()},
        **groups(),
    }
    name = None if name is None else name.strip("[]")
    if name is None:
        for title, entries in found.items():
            _print(title, {entry: text for entry, (text, _) in entries.items()})
        _print("experiments", experiment.titles())
        return
    require_choice("name", name, dict.fromkeys(entry for entries in found.values() for entry in entries))
    for title, entries in found.items():
        if name in entries:
            _print_settings(f"{name} ({title}): {entries[name][0]}".removesuffix(": "), entries[name][1])


def groups() -> dict[str, Entries]:
    """Return everything that experiment files can name, by the title of its group."""
    from fedprivjax import datasets
    from fedprivjax.datasets.partition import KINDS
    from fedprivjax.engine.metrics import METRICS
    from fedprivjax.experiment.pairs import KINDS as PRIVACY
    from fedprivjax.experiment.participation import ParticipationSettings
    from fedprivjax.experiment.problem_objects import ConstraintSettings, LossSettings, ModelSettings
    from fedprivjax.experiment.section import kinds, summary
    from fedprivjax.experiment.settings import PartitionSettings
    from fedprivjax.features import MAPS
    from fedprivjax.plan.samplers import SAMPLERS
    from fedprivjax.protocols import ALGORITHMS, PROTOCOLS

    sections = {
        "losses": LossSettings,
        "models": ModelSettings,
        "constraint sets": ConstraintSettings,
        "participation": ParticipationSettings,
    }
    named = {"protocols": PROTOCOLS, "algorithms": ALGORITHMS}
    found: dict[str, Entries] = {
        title: {entry: (text, one) for entry, (one, text) in known.items()} for title, known in named.items()
    }
    found["privacy objects"] = {entry: (summary(kind), kind) for entry, kind in PRIVACY.items()}
    for title, union in sections.items():
        found[title] = {entry: (summary(model), model) for entry, model in kinds(union).items()}
    found["models"] = {"linear": ("linear predictor, if no model is given", None), **found["models"]}
    found["partitions"] = {entry: (text, PartitionSettings) for entry, text in KINDS.items()}
    found["datasets"] = {entry: (info.help, info.loader) for entry, info in datasets.DATASETS.items()}
    found["feature maps"] = {entry: (summary(kind), kind) for entry, kind in MAPS.items()}
    found["samplers"] = {entry: (sampler.description, sampler) for entry, sampler in SAMPLERS.items()}
    found["metrics"] = dict.fromkeys(METRICS, ("", None))
    return found


def sections() -> dict[str, Any]:
    """Return the sections of an experiment file that have no `kind` key, by heading."""
    from fedprivjax.datasets.preparation import Preparation
    from fedprivjax.experiment import expected, settings
    from fedprivjax.method.planning.setting import Setting

    return {
        "file": settings.Experiment,
        "[problem]": settings.ProblemSettings,
        "[problem.partition]": settings.PartitionSettings,
        "[problem.options]": Preparation,
        "[[protocol]]": settings.ProtocolSettings,
        "[sweep]": settings.SweepSettings,
        "[evaluation]": settings.EvaluationSettings,
        "[tuning]": settings.TuningSettings,
        "[[expected]]": expected.Expected,
        "[[expected.cells]]": expected.Cell,
        "[plan]": Setting,
    }


def _print(title: str, entries: dict[str, str]) -> None:
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for name, text in entries.items():
        table.add_row(escape(name), escape(text))
    out.print(table)
    out.print()


def _print_settings(title: str, thing: Any) -> None:
    """Print the settings of a class or function, or "no settings"."""
    from fedprivjax.cli.settings_help import settings_of

    settings = [] if thing is None else settings_of(thing)
    out.print(title, markup=False, highlight=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for heading in ("setting", "type", "default", "help"):
        table.add_column(heading, no_wrap=heading == "setting", style="bold" if heading == "setting" else None)
    for setting in settings:
        table.add_row(*map(escape, setting))
    out.print(table if settings else "no settings")
    out.print()
