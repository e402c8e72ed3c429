"""The papers' figures that the README quotes beside ours are those of the experiment files."""

import re
from pathlib import Path

import pytest

from fedprivjax import experiment

README = Path(__file__).parents[1].joinpath("README.md").read_text()


def quoted(row: str) -> list[float]:
    """The numbers in brackets of the only row that begins so."""
    (line,) = [line for line in README.splitlines() if line.startswith(f"| {row} |")]
    return [float(number) for number in re.findall(r"\(([\d.]+)\)", line)]


def expected(spec: str, protocol: str, metric: str, *cells: dict[str, float]) -> list[float]:
    """What the file expects in these cells, in per cent."""
    entries = [
        e for e in experiment.load(spec).expected if e.protocol == protocol and e.metric == metric and e.rule != "above"
    ]
    values = [[cell.value for cell in entries[0].cells if cell.at == at] for at in cells]
    return [round(100 * value, 1) for (value,) in values if value is not None]


@pytest.mark.parametrize("mu", [4, 8, 16])
def test_the_tables_of_2024(mu):
    untrusted = [{"machines": m, "mu": mu} for m in (1, 10, 100)]
    trusted = [{"machines": m, "mu": mu} for m in (10, 100)]
    assert quoted(f"ρ = {mu}") == [
        *expected("reshef-levy-2024/table1", "DP-μ²-FL, untrusted", "test_accuracy", *untrusted),
        *expected("reshef-levy-2024/table2", "DP-μ²-FL, trusted", "test_accuracy", *trusted),
    ]


def test_the_tables_of_2025():
    half = [{"per_round": 50, "mu": mu} for mu in (4, 8, 12)]
    others = [{"per_round": m, "mu": 8} for m in (20, 80)]
    assert quoted("noise cancellation") == [
        *expected("reshef-levy-2025/table1", "noise cancellation", "test_accuracy", *half),
        *expected("reshef-levy-2025/table2", "noise cancellation", "test_accuracy", *others),
    ]


@pytest.mark.parametrize("per_round", [25, 12])
@pytest.mark.parametrize(("row", "label"), [("minibatch SGD", "MB-SGD"), ("local SGD", "local SGD")])
def test_figure_3(row, label, per_round):
    spec, at = "lowy-razaviyayn-2023/figure3/as-run", {"per_round": per_round}
    private = [{**at, "epsilon": epsilon} for epsilon in (0.75, 1.5, 3, 6, 12, 18)]
    assert quoted(f"{row}, M = {per_round}") == [
        *expected(spec, f"noisy {label}", "test_error", *private),
        *expected(spec, label, "test_error", at),
    ]
