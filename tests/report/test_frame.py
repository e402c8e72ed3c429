"""`frame`: means and half-widths as numbers, and a LaTeX table."""

import re
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import fedprivjax as fpj
from fedprivjax.report.frame import Frame
from fedprivjax.report.remarks import NAIVE_NOTE
from fedprivjax.sweeps.schema import metric_words

ACCURACY = "test_accuracy"


def with_values(grid, means, spread=0.0, *, private=True):
    """The sweep with these final accuracies at its levels of μ, over three seeds, `spread` apart."""
    values = np.add.outer(np.array(means), [-spread, 0.0, spread])
    made = grid.assign({ACCURACY: (("mu", "seed", "round"), values[..., None])})
    if private:
        return made
    return made.assign(realised_epsilon=np.inf * made.realised_epsilon, realised_mu=np.inf * made.realised_mu)


@pytest.fixture(scope="module")
def grid():
    """A sweep over two levels of μ and three seeds, with one evaluation."""
    rng = np.random.default_rng(0)
    problem = fpj.linear_problem(rng.normal(size=(20, 2)), rng.normal(size=20), fpj.Squared(), constraint=fpj.Ball(1.0))
    return fpj.sweep(fpj.NoisySGD(clip=1.0), problem, fpj.Full(4), over={"mu": [1.0, 2.0]}, seeds=3, rounds=2)[
        ["diverged", "realised_epsilon", "realised_mu", "target_epsilon", "guarantee"]
    ].assign_coords(round=[2])


def cells(text):
    return [
        [cell.strip() for cell in line.removesuffix(r" \\").split("&")] for line in text.splitlines() if "&" in line
    ]


def test_numbers_are_those_of_mean_interval(grid):
    ours = with_values(grid, [0.8, 0.9], 0.01)
    found = fpj.frame({"ours": ours, "other": with_values(grid, [0.5, 0.6])}, ACCURACY)
    assert found.index.tolist() == [(1.0, "ours"), (1.0, "other"), (2.0, "ours"), (2.0, "other")]
    mean, half = fpj.mean_interval(fpj.final(ours, ACCURACY))
    np.testing.assert_array_equal(found.xs("ours", level="protocol")["mean"], mean)
    np.testing.assert_array_equal(found.xs("ours", level="protocol")["half_width"], half)
    np.testing.assert_array_equal(
        found.xs("ours", level="protocol")["realised_epsilon"], grid.realised_epsilon.max("seed")
    )


def test_the_best_and_those_in_its_interval_are_bold(grid):
    half = float(fpj.mean_interval(fpj.final(with_values(grid, [0.8, 0.8], 0.01), ACCURACY))[1][0])
    best = with_values(grid, [0.8, 0.8], 0.01)
    rivals = {"near": with_values(grid, [0.8 - 0.99 * half] * 2), "far": with_values(grid, [0.8 - 1.01 * half] * 2)}
    free = with_values(grid, [0.99, 0.99], private=False)
    found = fpj.frame({"best": best, **rivals, "free": free}, ACCURACY)
    written = found.to_latex(protocols="columns")
    assert "\n% bold: mean within the interval of the best, among private methods if there are any\n" in written
    assert "% bold" not in fpj.frame(best, ACCURACY).to_latex()
    header, first, second = cells(written)
    assert header == [r"$\mu$", "best", "near", "far", "free"]
    assert (first[0], second[0]) == ("1", "2")
    assert first[1:] == second[1:]
    assert first[1] == rf"$\mathbf{{80.0}} \pm {100 * half:.1f}$"
    assert [r"\mathbf" in cell for cell in first[1:]] == [True, True, False, False]


def test_more_protocols_than_points_are_rows(grid):
    results = {
        "a": with_values(grid, [0.8, 0.5]),
        "b": with_values(grid, [0.7, 0.6]),
        "c": with_values(grid, [0.1, 0.2]),
    }
    found = fpj.frame(results, ACCURACY)
    text = found.to_latex()
    best, rest = r"$\mathbf{{{}}} \pm 0.0$", r"${} \pm 0.0$"
    assert cells(text) == [
        ["", r"$\mu$ = 1", r"$\mu$ = 2"],
        ["a", best.format("80.0"), rest.format("50.0")],
        ["b", rest.format("70.0"), best.format("60.0")],
        ["c", rest.format("10.0"), rest.format("20.0")],
    ]
    assert r"\begin{tabular}{lrr}" in text
    assert text == found.to_latex(protocols="rows")
    by_column = cells(found.to_latex(protocols="columns"))
    assert [row[1:] for row in by_column[1:]] == [list(column) for column in zip(*cells(text)[1:], strict=True)][1:]
    assert fpj.frame({"a": results["a"], "b": results["b"]}, ACCURACY).to_latex().count("{rrr}") == 1


def test_rows_of_protocols_have_columns_of_points(grid):
    steps = [with_values(grid, means) for means in ([0.8, 0.5], [0.7, 0.6])]
    both = xr.concat(steps, pd.Index([4, 8], name="step_scale")).assign_attrs(grid.attrs)
    header, row = cells(fpj.frame({"ours": both}, ACCURACY).to_latex(protocols="rows"))
    means = {(4, 1): "80.0", (4, 2): "50.0", (8, 1): "70.0", (8, 2): "60.0"}
    assert dict(zip(header[1:], row[1:], strict=True)) == {
        rf"step\_scale = {step}, $\mu$ = {mu}": rf"${mean} \pm 0.0$" for (step, mu), mean in means.items()
    }
    one = {label: with_values(grid, [mean] * 2).isel(mu=0) for label, mean in (("a", 0.5), ("b", 0.6))}
    text = fpj.frame(one, ACCURACY).to_latex()
    assert cells(text) == [["", r"test accuracy \%"], ["a", r"$50.0 \pm 0.0$"], ["b", r"$\mathbf{60.0} \pm 0.0$"]]


def test_protocols_are_rows_or_columns(grid):
    found = fpj.frame(with_values(grid, [0.8, 0.9]), ACCURACY)
    with pytest.raises(fpj.Refusal, match="unknown protocols 'row', did you mean 'rows'"):
        found.to_latex(protocols="row")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_eight_protocols_at_five_points_fit_six_inches(grid, tmp_path):
    at = dict.fromkeys(["mu"], np.array([1.0, 2.0, 4.0, 8.0, 16.0]))
    wide = xr.concat([with_values(grid, [0.8, 0.9], 0.01).isel(mu=[0])] * 5, "mu", join="override").assign_coords(at)
    labels = ["minibatch SGD, full batches", "DP-μ²-FL, K = 7, Toeplitz", *(f"noisy SGD, K = {k}" for k in range(6))]
    table = fpj.frame({label: wide.assign_attrs(grid.attrs) for label in labels}, ACCURACY).to_latex()
    start = r"\documentclass{article}\usepackage{booktabs}\textwidth=6in\begin{document}\noindent "
    page = f"{start}{table}\\end{{document}}"
    (tmp_path / "page.tex").write_text(page, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, errors="replace")
    assert done.returncode == 0, done.stdout
    assert "Overfull" not in done.stdout


def test_for_a_loss_the_smallest_is_bold(grid):
    losses = {"high": with_values(grid, [0.9, 0.2]), "low": with_values(grid, [0.1, 0.3])}
    losses = {label: data.rename({ACCURACY: "test_loss"}) for label, data in losses.items()}
    _, first, second = cells(fpj.frame(losses, "test_loss").to_latex())
    assert [r"\mathbf" in cell for cell in (*first[1:], *second[1:])] == [False, True, True, False]


def test_a_diverged_run_has_no_number_and_is_not_bold(grid):
    lost = with_values(grid, [0.9, 0.9]).assign(diverged=grid.diverged | (grid.seed == 0))
    found = fpj.frame({"lost": lost, "kept": with_values(grid, [0.2, 0.2])}, ACCURACY)
    assert np.isnan(found.loc[(1.0, "lost"), ["mean", "half_width"]]).all()
    _, first, _ = cells(found.to_latex())
    assert first[1:] == ["--", r"$\mathbf{20.0} \pm 0.0$"]


def test_the_table_is_valid_latex_with_its_conditions_as_comments(grid, tmp_path):
    ours = with_values(grid, [0.8, 0.9], 0.01)
    made = fpj.frame({"dp_mu2 & 5%": ours}, ACCURACY)
    text = made.to_latex()
    comments = [line for line in text.splitlines() if line.startswith("% ")]
    assert "δ = 1e-05" in comments[0]
    assert any("not for deployment" in line for line in comments)
    assert r"dp\_mu2 \& 5\%" in text
    assert re.findall(r"\\(\w+rule)", text) == ["toprule", "midrule", "bottomrule"]
    assert r"\mathbf" not in text  # nothing to compare with
    assert made.to_latex(tmp_path / "a.tex", caption="A") is None
    assert r"\caption{A}" in (tmp_path / "a.tex").read_text(encoding="utf-8")


def test_one_point_has_a_row_without_settings(grid):
    found = fpj.frame(with_values(grid, [0.8, 0.9]).isel(mu=0), ACCURACY)
    assert isinstance(found, Frame)
    assert found.index.tolist() == [("NoisySGD",)]
    assert found.to_latex().count(r"\\") == 2


def test_a_metric_that_was_not_recorded_is_refused(grid):
    with pytest.raises(fpj.Refusal, match="'test_loss' must be recorded"):
        fpj.frame(with_values(grid, [0.8, 0.9]), "test_loss")


def test_a_footnote_of_two_seeds_says_that_intervals_need_three(grid):
    ours = with_values(grid, [0.8, 0.9], 0.01)
    seeds = {count: fpj.table(ours.isel(seed=range(count)), ACCURACY) for count in (1, 2, 3)}
    said = "95% intervals need at least 3 seeds, or trials: no ± is shown"
    assert [said in shown.notes for shown in seeds.values()] == [False, True, False]
    assert ["±" in str(shown.sheets[0].frame) for shown in seeds.values()] == [False, False, True]
    two = fpj.frame(ours.isel(seed=[0, 1]), ACCURACY)
    assert r"\pm" in (text := two.to_latex())
    assert said not in text


def test_a_choice_by_results_is_marked(grid):
    several = xr.concat(
        [with_values(grid, [0.2, 0.9]), with_values(grid, [0.7, 0.3])], pd.Index([0.5, 1.0], name="clip")
    )
    chosen = fpj.select(several.assign_attrs(grid.attrs), over="clip")
    found = fpj.frame({"ours": chosen, "other": with_values(grid, [0.5, 0.6])}, ACCURACY)
    np.testing.assert_allclose(found["mean"], [0.7, 0.5, 0.9, 0.6])
    assert found.index.get_level_values("protocol").tolist() == ["ours", "other"] * 2
    text = found.to_latex()
    assert found["best_clip"].fillna(-1).tolist() == [1.0, -1, 0.5, -1]
    header, *_ = cells(text)
    assert header == [r"$\mu$", r"ours$^\ddagger$", "other"]
    assert any(r"ours$^\ddagger$" in row[0] for row in cells(found.to_latex(protocols="rows")))
    assert text.count(r"$^\ddagger$ chosen by results, not covered by the guarantee") == 1
    sheet = fpj.table({"ours": chosen, "other": with_values(grid, [0.5, 0.6])}, ACCURACY)
    assert sheet.sheets[0].frame.columns.tolist()[2:4] == ["ours ‡", "other"]
    assert sheet.sheets[-1].title == "settings chosen by the best mean test_accuracy, not covered by the guarantee"
    assert sheet.sheets[-1].frame["ours: clip"].tolist() == ["1", "0.5"]
    assert "‡ chosen by results, not covered by the guarantee" in sheet.notes
    assert NAIVE_NOTE in sheet.notes  # the same runs choose and measure
    tuned = chosen.assign_attrs(grid_points=2)
    assert NAIVE_NOTE not in fpj.table(tuned, ACCURACY).notes


def test_a_mean_below_the_constant_predictor_is_marked(grid):
    below = with_values(grid, [0.4, 0.9])
    below[ACCURACY].attrs["constant_predictor"] = 0.52
    text = fpj.frame(below, ACCURACY).to_latex()
    assert [row[1] for row in cells(text)[1:]] == [r"$40.0 \pm 0.0^\dagger$", r"$90.0 \pm 0.0$"]
    assert text.count(r"$^\dagger$ worse than the constant predictor's 52.0") == 1
    unmarked = fpj.frame(below.isel(mu=[1]), ACCURACY).to_latex()
    assert "% constant predictor: " in text
    assert "constant predictor" not in unmarked  # which shows none
    assert "dagger" not in unmarked
    other = with_values(grid, [0.3, 0.8])
    other[ACCURACY].attrs["constant_predictor"] = 0.52
    _, first, second = cells(fpj.frame({"ours": below, "other": other}, ACCURACY).to_latex())
    assert first[1:] == [r"$40.0 \pm 0.0^\dagger$", r"$30.0 \pm 0.0^\dagger$"]  # the best of those worse is not bold
    assert second[1:] == [r"$\mathbf{90.0} \pm 0.0$", r"$80.0 \pm 0.0$"]


def test_a_custom_metric_named_by_text_has_its_own_direction(grid):
    own = fpj.Metric("hits", lambda problem, snapshot: 0.0, better="higher", digits=1)
    both = {"low": with_values(grid, [1.0, 1.0]), "high": with_values(grid, [2.0, 2.0])}
    both = {label: data.rename({ACCURACY: "hits"}) for label, data in both.items()}
    for data in both.values():
        data["hits"].attrs |= metric_words([own], None)["hits"]
    _, first, _ = cells(fpj.frame(both, "hits").to_latex())
    assert first[1:] == [r"$1.0 \pm 0.0$", r"$\mathbf{2.0} \pm 0.0$"]
