"""`fedprivjax list`."""

from rich.table import Table

from fedprivjax.cli.console import app, out


@app.command("list")
def list_() -> None:
    """Protocols, losses, models, constraint sets, participation, partitions, datasets, feature maps, metrics and
    experiments, with a line of help each."""
    from fedprivjax import experiment
    from fedprivjax.datasets import DATASETS
    from fedprivjax.datasets.partition import KINDS
    from fedprivjax.engine.metrics import METRICS
    from fedprivjax.experiment.features import FEATURES
    from fedprivjax.protocols import PROTOCOLS

    _print("protocols", {name: text for name, (_, text) in PROTOCOLS.items()})
    _print("losses", experiment.LOSSES)
    _print("models", {"linear": "linear predictor, where no model is named", **experiment.MODELS})
    _print("constraint sets", experiment.CONSTRAINTS)
    _print("participation", experiment.PARTICIPATIONS)
    _print("partitions", KINDS)
    _print("datasets", {name: info.help for name, info in DATASETS.items()})
    _print("feature maps", FEATURES)
    _print("metrics", dict.fromkeys(METRICS, ""))
    _print("experiments", experiment.titles())


def _print(title: str, entries: dict[str, str]) -> None:
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for name, text in entries.items():
        table.add_row(name, text)
    out.print(table)
    out.print()
