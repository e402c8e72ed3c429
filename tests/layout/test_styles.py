"""Styles of plots: colours differ for every reader, and a paper's figure has a column's width."""

from itertools import combinations

import numpy as np
import pytest
import xarray as xr
from IPython.core.formatters import DisplayFormatter
from matplotlib.colors import to_rgb

from fedprivjax import Refusal, mean_interval
from fedprivjax.layout.colours import DARK, LIGHT, PAGE, WIDTHS, looks, new_figure, themed_svg, using
from fedprivjax.report import plots
from fedprivjax.report.summary import Summary

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
SIGHT = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1.0, 1.089])
# by theme: colours, and backgrounds of the page and of the site
THEMES = {"light": (LIGHT, ["#ffffff"]), "dark": (DARK, [PAGE[1], "#131416"])}


def linear(colour):
    values = np.array(to_rgb(colour))
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(light):
    """CIE L*a*b* of linear RGB."""
    part = TO_XYZ @ light / WHITE
    x, y, z = np.where(part > 216 / 24389, np.cbrt(part), (24389 / 27 * part + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def difference(one, other):
    """CIEDE2000 of two colours in L*a*b* (Sharma, Wu and Dalal 2005)."""
    lightness, chroma = np.array([one[0], other[0]]), np.array([np.hypot(*one[1:]), np.hypot(*other[1:])])
    stretch = 1.5 - 0.5 * np.sqrt(chroma.mean() ** 7 / (chroma.mean() ** 7 + 25.0**7))
    a, b = np.array([one[1], other[1]]) * stretch, np.array([one[2], other[2]])
    chroma, hue = np.hypot(a, b), np.degrees(np.arctan2(b, a)) % 360
    apart = (hue[1] - hue[0] + 180) % 360 - 180 if chroma.prod() else 0.0
    middle = hue[0] + apart / 2 if chroma.prod() else hue.sum()
    wave = 1 - 0.17 * cosine(middle - 30) + 0.24 * cosine(2 * middle)
    wave += 0.32 * cosine(3 * middle + 6) - 0.2 * cosine(4 * middle - 63)
    square = (lightness.mean() - 50) ** 2
    parts = np.array(
        [
            np.diff(lightness)[0] / (1 + 0.015 * square / np.sqrt(20 + square)),
            np.diff(chroma)[0] / (1 + 0.045 * chroma.mean()),
            2 * np.sqrt(chroma.prod()) * np.sin(np.radians(apart / 2)) / (1 + 0.015 * chroma.mean() * wave),
        ]
    )
    turned = np.sin(np.radians(60 * np.exp(-((((middle - 275 + 180) % 360 - 180) / 25) ** 2))))
    turned *= -2 * np.sqrt(chroma.mean() ** 7 / (chroma.mean() ** 7 + 25.0**7))
    return np.sqrt((parts**2).sum() + turned * parts[1] * parts[2])


def cosine(degrees):
    return np.cos(np.radians(degrees))


def test_the_difference_of_colours_is_the_standards():
    # Sharma, Wu and Dalal 2005, table 1, pairs 1, 7, 17 and 25
    pairs = [
        ([50, 2.6772, -79.7751], [50, 0, -82.7485], 2.0425),
        ([50, 0, 0], [50, -1, 2], 2.3669),
        ([50, 2.5, 0], [73, 25, -18], 27.1492),
        ([60.2574, -34.0099, 36.2677], [60.4626, -34.1751, 39.4387], 1.2644),
    ]
    for one, other, expected in pairs:
        assert difference(one, other) == pytest.approx(expected, abs=1e-4)


def test_a_notebook_shows_a_figure_without_the_inline_backend():
    figure = plots.metric_against(Summary({"ours": dataset("step_scale")}), "step_scale", "test_accuracy")
    shown, _ = DisplayFormatter().format(figure)
    assert shown["image/png"].startswith(b"\x89PNG")
    assert "prefers-color-scheme: dark" in shown["image/svg+xml"]


def test_pictures_of_cells_are_swapped_in_the_dark_and_others_are_not():
    drawn = {name: new_figure(1.0, 1.0, 1, 1) for name in ("cells", "curve")}
    drawn["cells"].subplots().imshow([[0.0, 1.0]])
    drawn["curve"].subplots().plot([0.0, 1.0])
    assert {name: "invert" in themed_svg(figure) for name, figure in drawn.items()} == {"cells": True, "curve": False}


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("sight", SIGHT)
def test_any_two_of_eight_colours_differ_for_every_reader(theme, sight):
    seen = [lab(np.clip(np.array(SIGHT[sight]) @ linear(colour), 0, 1)) for colour in THEMES[theme][0]]
    assert len(seen) == 8
    assert min(difference(one, other) for one, other in combinations(seen, 2)) >= 10


@pytest.mark.parametrize("theme", THEMES)
def test_the_first_four_colours_differ_in_greyscale(theme):
    greys = [lab(np.full(3, TO_XYZ[1] @ linear(colour))) for colour in THEMES[theme][0][:4]]
    assert min(difference(one, other) for one, other in combinations(greys, 2)) >= 10


@pytest.mark.parametrize("theme", THEMES)
def test_colours_stand_out_from_the_background(theme):
    colours, backgrounds = THEMES[theme]
    for background in backgrounds:
        behind = TO_XYZ[1] @ linear(background) + 0.05
        light = np.array([TO_XYZ[1] @ linear(colour) + 0.05 for colour in colours])
        assert (np.maximum(light, behind) / np.minimum(light, behind)).min() >= 3


def test_a_method_has_the_same_look_in_every_figure():
    alone, both = looks({"a": named("FedAvg")}), looks({"b": named("NoisySGD"), "a": named("FedAvg")})
    assert alone["a"] == both["a"] != both["b"]


def test_series_of_one_method_have_looks_of_their_own():
    found = looks({str(index): named("FedAvg") for index in range(20)})
    assert len({(look["color"], str(look["ls"])) for look in found.values()}) == 20


def named(protocol):
    return xr.Dataset(attrs={"protocol": protocol})


def test_a_figure_on_a_page_follows_its_theme():
    with using("screen"):
        figure = plots.metric_against_epsilon(Summary({"ours": dataset("mu")}))
    drawn = themed_svg(figure)
    assert LIGHT[0].lower() not in drawn.split("</style>", 1)[1].lower()
    light, dark = drawn.split("@media (prefers-color-scheme: dark)")[0], drawn.split("prefers-color-scheme: dark)")[1]
    assert f"--c0:{LIGHT[0]}" in light
    assert f"--c0:{DARK[0]}" in dark.split("</style>")[0]
    assert "#000000" not in drawn.split("</style>", 1)[1]


def test_each_protocol_has_its_own_line_style_and_marker():
    best = {f"method {index}": dataset("mu") for index in range(8)}
    with using("paper"):
        figure = plots.metric_against_epsilon(Summary(best))
    lines = figure.axes[0].lines
    assert len(lines) == len(figure.axes[0].collections) == 8
    assert len({line.get_color() for line in lines}) == 8
    assert len({line.get_marker() for line in lines}) == 8
    assert len({str(line._unscaled_dash_pattern) for line in lines}) == 8


@pytest.mark.parametrize("against", ["epsilon", "step_scale"])
def test_bands_are_the_intervals(against):
    data = dataset("mu" if against == "epsilon" else "step_scale", metric="excess_risk")
    if against == "epsilon":
        figure = plots.metric_against_epsilon(Summary({"ours": data}), "excess_risk")
    else:
        figure = plots.metric_against(Summary({"ours": data}), against, "excess_risk")
    (axis,) = figure.axes
    mean, half = mean_interval(data["excess_risk"].isel(round=-1))
    np.testing.assert_allclose(axis.lines[0].get_ydata(), mean)
    (band,) = axis.collections
    corners = band.get_paths()[0].vertices[:, 1]
    for value in (mean + half).values:
        assert np.isclose(corners, value).any()


@pytest.mark.slow
def test_a_papers_figure_is_a_pdf_of_the_width_of_a_column(tmp_path):
    with using("paper"):
        figure = plots.metric_against_epsilon(Summary({"ours": dataset("mu"), "other": dataset("mu")}))
        wide = plots.metric_against_epsilon(Summary({"ours": dataset("per_round", "mu")}))
    with using("paper wide"):
        single = plots.metric_against_epsilon(Summary({"ours": dataset("mu"), "other": dataset("mu")}))
    single.savefig(tmp_path / "single")
    assert f"/MediaBox [ 0 0 {72 * WIDTHS[1]:g} ".encode() in (tmp_path / "single.pdf").read_bytes()
    assert single.axes[0].yaxis.label.get_size() == 8
    assert figure.get_size_inches()[0] == WIDTHS[0]
    assert wide.get_size_inches()[0] == WIDTHS[1]
    figure.savefig(tmp_path / "accuracy")
    written = (tmp_path / "accuracy.pdf").read_bytes()
    assert written.startswith(b"%PDF")
    assert b"/Type3" not in written
    assert f"/MediaBox [ 0 0 {72 * WIDTHS[0]:g} ".encode() in written


def test_the_style_ends_with_the_block():
    with using("paper"):
        pass
    figure = plots.metric_against_epsilon(Summary({"ours": dataset("mu")}))
    assert figure.axes[0].lines[0].get_color() == LIGHT[0]
    assert figure.get_size_inches()[0] == 6.0
    with pytest.raises(Refusal, match=r"unknown style 'papper', did you mean 'paper'\?"), using("papper"):
        pass


@pytest.mark.parametrize("style", ["paper", pytest.param("screen", marks=pytest.mark.slow)])
@pytest.mark.parametrize("methods", [pytest.param(1, marks=pytest.mark.slow), 7])
def test_names_beyond_the_width_of_a_figure_are_broken(style, methods):
    many = " and so on" * (4 if style == "paper" else 7)
    best = {f"method {index} with batches of 32 records{many}": dataset("mu") for index in range(methods)}
    with using(style):
        figure = plots.metric_against_epsilon(Summary(best))
        short = plots.metric_against_epsilon(Summary({name[:8]: data for name, data in best.items()}))
        heights = []
        for drawn in (figure, short):
            drawn.draw_without_rendering()
            boxes = [legend.get_window_extent() for legend in drawn.legends] or [
                drawn.axes[0].title.get_window_extent()
            ]
            assert boxes[0].x0 >= 0
            assert boxes[0].x1 <= drawn.bbox.x1
            if methods > 1:
                assert boxes[0].y1 <= drawn.axes[0].get_tightbbox().y0
            heights.append(drawn.axes[0].get_window_extent().height)
    assert heights[0] > 0.75 * heights[1]  # the panel keeps most of its height
