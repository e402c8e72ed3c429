"""Published values in the documentation equal those of the experiment files; the README's table equals the site's."""

import re
from pathlib import Path

import pytest

from fedprivjax import experiment

ROOT = Path(__file__).parents[1]


def row_of(page: str, label: str) -> str:
    """The only table row of a page that begins with this label."""
    (line,) = [line for line in ROOT.joinpath(page).read_text().splitlines() if line.startswith(f"| {label} |")]
    return line


def quoted(paper: str, label: str) -> list[float]:
    """Numbers in brackets in a row of a paper's page."""
    row = row_of(f"notebooks/papers/{paper}.md", label)
    return [float(number) for number in re.findall(r"\(([\d.]+)\)", row)]


def expected(spec: str, protocol: str, metric: str, *cells: dict[str, float]) -> list[float]:
    """What the file expects in these cells, in per cent."""
    entries = [e for e in experiment.load(spec).expected if e.protocol == protocol and e.metric == metric]
    listed = [cell for e in entries if e.rule.startswith("within") for cell in e.cells]
    values = [[cell.value for cell in listed if cell.at == at] for at in cells]
    return [round(100 * value, 1) for (value,) in values if value is not None]


@pytest.mark.parametrize("mu", [4, 8, 16])
def test_the_tables_of_2024(mu):
    untrusted = [{"machines": m, "mu": mu} for m in (1, 10, 100)]
    trusted = [{"machines": m, "mu": mu} for m in (10, 100)]
    assert quoted("reshef_levy_2024", f"ρ = {mu}") == [
        *expected("reshef-levy-2024/table1", "DP-μ²-FL, untrusted", "test_accuracy", *untrusted),
        *expected("reshef-levy-2024/table2", "DP-μ²-FL, trusted", "test_accuracy", *trusted),
    ]


def test_the_tables_of_2025():
    half = [{"per_round": 50, "mu": mu} for mu in (4, 8, 12)]
    others = [{"per_round": m, "mu": 8} for m in (20, 80)]
    assert quoted("reshef_levy_2025", "noise cancellation") == [
        *expected("reshef-levy-2025/table1", "noise cancellation", "test_accuracy", *half),
        *expected("reshef-levy-2025/table2", "noise cancellation", "test_accuracy", *others),
    ]


@pytest.mark.parametrize("per_round", [25, 12])
@pytest.mark.parametrize(("row", "label"), [("minibatch SGD", "MB-SGD"), ("local SGD", "local SGD")])
def test_figure_3(row, label, per_round):
    spec, at = "lowy-razaviyayn-2023/figure3/as-run", {"per_round": per_round}
    private = [{**at, "epsilon": epsilon} for epsilon in (0.75, 1.5, 3, 6, 12, 18)]
    assert quoted("lowy_razaviyayn_2023", f"{row}, M = {per_round}") == [
        *expected(spec, f"noisy {label}", "test_error", *private),
        *expected(spec, label, "test_error", at),
    ]


def test_the_readme_is_short_and_begins_with_a_picture():
    lines = ROOT.joinpath("README.md").read_text().splitlines()
    assert len(lines) <= 130
    (picture,) = re.findall(r"!\[.+\]\(([^)]+)\)", "\n".join(lines[:30]))
    assert ROOT.joinpath(picture).is_file()


METHODS = (
    "minibatch SGD, full batches",
    "accelerated, full batches",
    "DP-μ²-FL, K = 60, Toeplitz noise",
    "noisy SGD, K = 60",
    "local SGD, 20 steps, noise in each",
)


@pytest.mark.parametrize("label", METHODS)
def test_the_results_of_the_readme(label):
    of_readme, of_page = (row_of(page, label).split(" | ")[1:] for page in ("README.md", "notebooks/which_method.md"))
    epsilons = [row_of(page, "ε").split(" | ")[1:] for page in ("README.md", "notebooks/which_method.md")]
    columns = [epsilons[1].index(name.removesuffix(" |")) for name in epsilons[0]]
    assert [cell.removesuffix(" |") for cell in of_readme] == [of_page[column] for column in columns]
