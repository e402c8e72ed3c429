"""Styles of plots: a paper's figure has a column's width, and curves distinct in greyscale and for colour blindness."""

from itertools import combinations

import numpy as np
import pytest
import xarray as xr
from IPython.core.formatters import DisplayFormatter
from matplotlib.colors import to_rgb

from fedprivjax import Refusal, mean_interval
from fedprivjax.report import plots
from fedprivjax.report.colours import PAPER, using

AXES = {"per_round": [2, 3], "mu": [1.0, 2.0, 4.0], "step_scale": [0.1, 1.0, 10.0], "machines": [10, 100, 1000]}


def dataset(*dims, metric="test_accuracy"):
    """Random results of four seeds, with an ε of 2 μ, or without noise unless μ is swept."""
    sizes = [*(len(AXES[name]) for name in dims), 4]
    epsilon = 2.0 * np.array(AXES["mu"])[:, None] if "mu" in dims else np.inf
    variables = {
        metric: ([*dims, "seed", "round"], np.random.default_rng(0).uniform(size=[*sizes, 1])),
        "realised_epsilon": ([*dims, "seed"], np.broadcast_to(epsilon, sizes)),
        "diverged": ([*dims, "seed"], np.zeros(sizes, bool)),
    }
    return xr.Dataset(
        variables, {**{name: AXES[name] for name in dims}, "seed": range(4), "round": [5]}, {"delta": 1e-3}
    )


# Machado, Oliveira and Fernandes 2009, full severity; on linear RGB
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1.0, 1.089])


def linear(colour):
    values = np.array(to_rgb(colour))
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(light):
    """CIE L*a*b* of linear RGB."""
    part = TO_XYZ @ light / WHITE
    x, y, z = np.where(part > 0.008856, np.cbrt(part), 7.787 * part + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_a_notebook_shows_a_figure_without_the_inline_backend():
    figure = plots.metric_against({"ours": dataset("step_scale")}, "step_scale", "test_accuracy")
    shown, _ = DisplayFormatter().format(figure)
    assert shown["image/png"].startswith(b"\x89PNG")


def test_colours_differ_in_lightness():
    lightness = sorted(lab(linear(colour))[0] for colour in PAPER.colours)
    assert min(np.diff(lightness)) > 10
    assert max(lightness) < 80  # visible on white


@pytest.mark.parametrize("sight", BLINDNESS)
def test_colours_differ_for_colour_blind_readers(sight):
    seen = [lab(np.clip(np.array(BLINDNESS[sight]) @ linear(colour), 0, 1)) for colour in PAPER.colours]
    assert min(np.linalg.norm(one - other) for one, other in combinations(seen, 2)) > 20


def test_each_protocol_has_its_own_line_style_and_marker():
    best = {f"method {index}": dataset("mu") for index in range(6)}
    with using("paper"):
        figure = plots.metric_against_epsilon(best, bands=True, constant=False)
    lines = figure.axes[0].lines
    assert len(lines) == len(figure.axes[0].collections) == 6
    assert len({line.get_color() for line in lines}) == 6
    assert len({line.get_marker() for line in lines}) == 6
    assert len({str(line._unscaled_dash_pattern) for line in lines}) == 6


@pytest.mark.parametrize("against", ["epsilon", "step_scale"])
def test_bands_are_the_intervals(against):
    data = dataset("mu" if against == "epsilon" else "step_scale", metric="excess_risk")
    if against == "epsilon":
        figure = plots.metric_against_epsilon({"ours": data}, "excess_risk", bands=True)
    else:
        figure = plots.metric_against({"ours": data}, against, "excess_risk", bands=True)
    (axis,) = figure.axes
    assert not axis.containers
    mean, half = mean_interval(data["excess_risk"].isel(round=-1))
    np.testing.assert_allclose(axis.lines[0].get_ydata(), mean)
    (band,) = axis.collections
    corners = band.get_paths()[0].vertices[:, 1]
    for value in (mean + half).values:
        assert np.isclose(corners, value).any()


@pytest.mark.slow
def test_a_papers_figure_is_a_pdf_of_the_width_of_a_column(tmp_path):
    with using("paper"):
        figure = plots.metric_against_epsilon({"ours": dataset("mu"), "other": dataset("mu")})
        wide = plots.metric_against_epsilon({"ours": dataset("per_round", "mu")})
    assert figure.get_size_inches()[0] == PAPER.widths[0]
    assert wide.get_size_inches()[0] == PAPER.widths[1]
    figure.savefig(tmp_path / "accuracy")
    written = (tmp_path / "accuracy.pdf").read_bytes()
    assert written.startswith(b"%PDF")
    assert b"/Type3" not in written
    assert f"/MediaBox [ 0 0 {72 * PAPER.widths[0]:g} ".encode() in written


def test_the_style_ends_with_the_block():
    with using("paper"):
        pass
    figure = plots.metric_against_epsilon({"ours": dataset("mu")})
    assert figure.axes[0].containers[0].lines[0].get_color() == "C0"
    assert figure.get_size_inches()[0] == 6.0
    with pytest.raises(Refusal, match=r"unknown style 'papper', did you mean 'paper'\?"), using("papper"):
        pass
