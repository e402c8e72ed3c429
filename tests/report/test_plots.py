from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
import xarray as xr
from cases import sparing

from fedprivjax import Metric, Refusal, mean_interval
from fedprivjax.experiment.settings import EvaluationSettings
from fedprivjax.layout.colours import using
from fedprivjax.layout.drawing import save
from fedprivjax.layout.wording import CHOSEN_NOTE
from fedprivjax.privacy import gdp
from fedprivjax.privacy.rounding import up
from fedprivjax.report import display, plots
from fedprivjax.report.grid_plot import metric_over_grid
from fedprivjax.report.summary import Summary
from fedprivjax.sweeps.results import with_alone
from fedprivjax.sweeps.selection import select

DELTA = 1e-3
AXES = {"per_round": [2, 3], "mu": [1.0, 2.0, 4.0], "step_scale": [0.1, 1.0, 10.0], "machines": [10, 100, 1000]}
AXES |= {"rounds": [5, 10, 15], "records": [100, 200, 400]}
ROUNDS = [5, 10, 15]


def dataset(*dims, metrics=("test_accuracy", "test_loss"), seeds=4):
    sizes = [*(len(AXES[name]) for name in dims), seeds, len(ROUNDS)]
    rng = np.random.default_rng(len(dims))
    variables = {name: ([*dims, "seed", "round"], rng.uniform(size=sizes)) for name in metrics}
    along = [-1 if name == "mu" else 1 for name in (*dims, "seed")]
    levels = gdp.epsilon(np.array(AXES["mu"]), DELTA).reshape(along) if "mu" in dims else np.inf
    epsilon = np.broadcast_to(levels, sizes[:-1])
    variables["realised_epsilon"] = ([*dims, "seed"], epsilon)
    variables["target_epsilon"] = (dims, epsilon[..., 0])
    variables["diverged"] = ([*dims, "seed"], np.zeros(sizes[:-1], bool))
    coordinates = {**{name: AXES[name] for name in dims}, "seed": np.arange(seeds), "round": ROUNDS}
    return xr.Dataset(variables, coordinates, {"delta": DELTA})


@pytest.fixture
def best():
    return {"ours": dataset("per_round", "mu"), "free": dataset("per_round")}


def labels(figure):
    found = [legend for legend in (figure.legends or [axis.get_legend() for axis in figure.axes]) if legend]
    return [text.get_text() for legend in found for text in legend.get_texts()]


def test_a_panel_for_each_participation_and_a_line_for_each_protocol(best):
    figure = plots.metric_against_epsilon(Summary(best))
    assert len(figure.axes) == 2
    assert sorted(labels(figure)) == ["free", "ours"]
    assert figure.axes[0].get_ylabel() == "test accuracy\n(mean, 95% interval, 4 seeds)"
    for axis, m in zip(figure.axes, AXES["per_round"], strict=True):
        assert axis.get_title() == f"m = {m}"
        assert "ε" in axis.get_xlabel()
        assert "10^{-3}" in axis.get_xlabel()
        assert axis.get_xscale() == "log"
        curve, flat = axis.lines[0], axis.lines[-1]
        mean, half = mean_interval(best["ours"]["test_accuracy"].isel(round=-1).sel(per_round=m))
        np.testing.assert_allclose(curve.get_xdata(), gdp.epsilon(np.array(AXES["mu"]), DELTA))
        np.testing.assert_allclose(curve.get_ydata(), mean)
        (band,) = bands_drawn(axis)  # ours
        np.testing.assert_allclose(np.ptp(band, axis=1), 2 * half)
        level = float(best["free"]["test_accuracy"].isel(round=-1).sel(per_round=m).mean("seed"))
        np.testing.assert_allclose(flat.get_ydata(), level)


def test_a_panel_has_only_the_protocols_that_were_run_there(best):
    figure = plots.metric_against_epsilon(Summary({"ours": best["ours"], "free": best["free"].isel(per_round=[1])}))
    assert [axis.get_title() for axis in figure.axes] == [f"m = {m}" for m in AXES["per_round"]]
    assert [len(axis.lines) for axis in figure.axes] == [1, 2]


@pytest.mark.parametrize(("shift", "at_ends"), [(0.3, True), (0.0, False)])
def test_names_stand_at_the_ends_of_curves_where_they_fit(shift, at_ends):
    data = dataset("mu").rename(mu="epsilon")
    figure = plots.metric_against_epsilon(
        Summary({"ours": data, "theirs": data.assign(test_accuracy=data["test_accuracy"] - shift)})
    )
    ends = {text.get_text(): text.xy[1] for text in figure.axes[0].texts}
    assert (list(ends), labels(figure)) == ((["ours", "theirs"], []) if at_ends else ([], ["ours", "theirs"]))
    if at_ends:
        assert ends["ours"] > ends["theirs"]


def test_a_swept_epsilon_is_drawn_without_conversion(best):
    swept = best["ours"].rename(mu="epsilon")
    swept["realised_epsilon"] = swept["epsilon"].broadcast_like(swept["realised_epsilon"])
    swept["target_epsilon"] = swept["epsilon"]
    axis = plots.metric_against_epsilon(Summary({"ours": swept})).axes[0]
    np.testing.assert_allclose(axis.lines[0].get_xdata(), AXES["mu"])
    assert axis.get_xlabel().startswith("ε  (")


@pytest.mark.parametrize("best", [0, 2])
def test_other_swept_settings_are_at_the_best_point_which_is_named_and_marked(best):
    data = dataset("mu", "step_scale")
    data["test_accuracy"][{"step_scale": best}] += 1.0
    data["test_accuracy"][{"step_scale": 1, "seed": 0}] = np.nan  # diverged runs, and else the best
    data["test_accuracy"][{"step_scale": 1, "seed": slice(1, None)}] += 5.0
    this, value = Summary({"ours": data}), AXES["step_scale"][best]
    for figure in (plots.metric_against_epsilon(this), plots.metric_over_rounds(this)):
        assert f"step_scale = {value:g}" in figure.axes[0].get_title()
        assert figure.get_suptitle() == f"ours ‡\n{CHOSEN_NOTE}"
    drawn = plots.metric_against_epsilon(this).axes[0].lines[0].get_ydata()
    expected = data["test_accuracy"].isel(round=-1).sel(step_scale=value).mean("seed")
    np.testing.assert_allclose(drawn, expected)
    given = plots.metric_over_rounds(replace(this, evaluation=EvaluationSettings(at={"step_scale": 1})))
    assert "step_scale = 1" in given.axes[0].get_title()
    assert given.get_suptitle() == "ours"


@pytest.mark.parametrize("better", ["higher", "lower"])
def test_a_heat_map_frames_the_best_cell_of_each_privacy_level(better):
    name = {"higher": "test_accuracy", "lower": "test_loss"}[better]
    values = np.random.default_rng(3).uniform(size=(3, 3, 5, 4, 3))
    dims = ["mu", "step_scale", "clip", "seed", "round"]
    sizes = {"mu": AXES["mu"], "step_scale": AXES["step_scale"], "clip": [1.0, 2.0, 4.0, 8.0, 16.0], "seed": range(4)}
    data = xr.Dataset({name: (dims, values)}, {**sizes, "round": ROUNDS}, {"delta": DELTA})
    levels = gdp.epsilon(np.array(AXES["mu"]), DELTA)[:, None, None, None]
    data["realised_epsilon"] = dims[:-1], np.broadcast_to(levels, values.shape[:-1])
    data["diverged"] = dims[:-1], np.zeros(values.shape[:-1], bool)
    this = Summary({"ours": data})
    figure = plots.all_plots(this)[f"{name}_over_grid"] if better == "higher" else metric_over_grid(this, name)
    for mu, axis in zip(AXES["mu"], figure.axes, strict=False):
        means = data[name].isel(round=-1).sel(mu=mu).mean("seed").values
        np.testing.assert_allclose(axis.collections[0].get_array().reshape(means.shape), means)
        row, column = np.unravel_index(means.argmax() if better == "higher" else means.argmin(), means.shape)
        frames = {(int(one.get_y()), int(one.get_x())): one.get_linestyle() for one in axis.patches}
        assert {place for place, style in frames.items() if style == "-"} == {(row, column)}
        half = mean_interval(data[name].isel(round=-1).sel(mu=mu))[1].values
        near = zip(*np.nonzero(abs(means - means[row, column]) <= half[row, column]), strict=True)
        assert {place for place, style in frames.items() if style == ":"} == {*near} - {(row, column)}
        first, second = axis.get_title().split("\n")
        assert first == f"ours, μ = {mu:g}, ε = {up(float(gdp.epsilon(mu, DELTA)), 4)}"
        clip = f"{2**column}{' (edge)' * (column in (0, 4))}"
        scale = f"{AXES['step_scale'][row]:g}{' (edge)' * (row in (0, 2))}"
        found = f"‡ at clip = {clip}, step_scale = {scale}"
        assert second.endswith(found)
    assert figure.get_supxlabel().startswith(CHOSEN_NOTE)
    small = Summary({"ours": data.isel(clip=[0, 1], mu=[0])})
    assert not any("grid" in each for each in plots.all_plots(small))
    with pytest.raises(Refusal, match="grid must have two swept settings"):
        display._plot(small, "test_accuracy", "grid")


@pytest.mark.parametrize("level", ["mu", "epsilon"])
def test_a_heat_map_of_one_setting_frames_the_best_cell_of_each_privacy_level(level):
    data = dataset("mu", "step_scale", metrics=["test_accuracy"]).isel(mu=[0, 1]).rename(mu=level)
    for row, best in enumerate([2, 1]):
        data["test_accuracy"][{level: row, "step_scale": best}] += 1.0
    axis, _ = (figure := plots.all_plots(Summary({"ours": data}))["test_accuracy_over_grid"]).axes
    means = data["test_accuracy"].isel(round=-1).mean("seed").values
    np.testing.assert_allclose(axis.collections[0].get_array().reshape(means.shape), means)
    frames = {(int(one.get_y()), int(one.get_x())) for one in axis.patches if one.get_linestyle() == "-"}
    assert frames == {(0, 2), (1, 1)}
    ends = [text.get_text() for text in axis.texts if " at " in text.get_text()]
    assert ends == [f"{100 * means[0, 2]:.1f}% at 10 (edge)", f"{100 * means[1, 1]:.1f}% at 1"]
    assert axis.get_title() == "ours\nbest step_scale ‡ of each row at its right"
    ticks = {"mu": [f"{mu}\n(ε = {up(float(gdp.epsilon(mu, DELTA)), 4)})" for mu in (1, 2)], "epsilon": ["1", "2"]}
    assert [text.get_text() for text in axis.get_yticklabels()] == ticks[level]
    assert axis.get_ylabel() == {"mu": "μ", "epsilon": "ε"}[level]
    assert figure.get_supxlabel().startswith(CHOSEN_NOTE)


def boxes(axis):
    """Return the extents of an axis's tick labels, horizontal and vertical, in pixels."""
    along = {"x0": axis.get_xticklabels(), "y0": axis.get_yticklabels()}
    return {side: [label.get_window_extent() for label in labels] for side, labels in along.items()}


@pytest.mark.parametrize("style", [pytest.param("screen", marks=pytest.mark.slow), "paper"])
@pytest.mark.parametrize("count", [pytest.param(10, marks=pytest.mark.slow), 12])
def test_texts_of_a_heat_map_of_many_values_do_not_overlap(style, count):
    levels = np.logspace(-4, 0, count)
    data = dataset("mu", metrics=["test_accuracy"]).expand_dims({"local_step_scale": levels, "update_clip": levels})
    with using(style):
        figure = metric_over_grid(Summary({"a method": data, "another": data}))
    figure.draw_without_rendering()
    maps = figure.axes[:-1]
    for axis in maps:
        for side, found in boxes(axis).items():
            ends = sorted((getattr(box, side), getattr(box, side.replace("0", "1"))) for box in found)
            assert all(end <= start for (_, end), (start, _) in pairwise(ends))
        assert len(axis.get_title().split("\n")) == 2
    titles = [axis.title.get_window_extent() for axis in maps]
    assert all(one.x0 >= 0 and one.x1 <= figure.bbox.x1 for one in titles)
    assert not any(one.overlaps(other) for one, other in combinations(titles, 2))


def test_heat_maps_of_different_grids_have_their_own_labels():
    one = dataset("mu", "step_scale", metrics=["test_accuracy"]).expand_dims({"clip": [1.0, 2.0, 4.0]}, 2).isel(mu=[0])
    other = one.assign_coords(step_scale=[3.0, 5.0, 7.0])
    figure = metric_over_grid(Summary({"ours": one, "theirs": other}))
    rows = [[label.get_text() for label in axis.get_yticklabels()] for axis in figure.axes[:2]]
    columns = [[label.get_text() for label in axis.get_xticklabels()] for axis in figure.axes[:2]]
    assert ["3", "5", "7"] in (rows[1], columns[1])
    assert ["0.1", "1", "10"] in (rows[0], columns[0])


def test_paths_over_rounds(best):
    figure = plots.metric_over_rounds(Summary(best, evaluation=EvaluationSettings(at={"mu": 4.0})), "test_loss")
    assert len(figure.axes) == 2
    assert sorted(labels(figure)) == ["free", "ours"]
    for axis, m in zip(figure.axes, AXES["per_round"], strict=True):
        assert axis.get_xlabel() == "round"
        assert axis.get_title() == f"m = {m}, μ = 4 (ε = 19.63)"
        assert len(axis.lines) == len(axis.collections) == 2
        np.testing.assert_array_equal(axis.lines[0].get_xdata(), ROUNDS)
        mean = best["ours"]["test_loss"].sel(per_round=m, mu=4.0).mean("seed")
        np.testing.assert_allclose(axis.lines[0].get_ydata(), mean)


def test_a_grid_is_drawn_like_its_best_points_and_whole_as_a_heat_map():
    data = dataset("mu", "step_scale", metrics=["test_accuracy"])
    data = data.expand_dims(clip=[1.0, 2.0, 4.0]).transpose("mu", "step_scale", "clip", "seed", "round")
    data["test_accuracy"] = data["test_accuracy"] + np.random.default_rng(5).uniform(size=(3, 3, 3, 1, 1))
    reduced = data.assign(diverged=data["diverged"].transpose("mu", "step_scale", "clip", "seed"))
    reduced["realised_epsilon"] = reduced["realised_epsilon"].transpose("mu", "step_scale", "clip", "seed")
    chosen = select(reduced, ["step_scale", "clip"])
    assert len(set(chosen["best_clip"].values) | set(chosen["best_step_scale"].values)) > 2  # not one point
    whole, best = Summary({"ours": reduced}), Summary({"ours": chosen}, grids={"ours": reduced})
    for draw in (plots.metric_against_epsilon, plots.metric_over_rounds):
        one, other = (draw(this, "test_accuracy").axes[0].lines[0] for this in (whole, best))
        np.testing.assert_array_equal(one.get_ydata(), other.get_ydata())
    low, high = chosen["best_clip"].values.min(), chosen["best_clip"].values.max()
    assert f"clip chosen: {low:g} to {high:g}" in plots.metric_against_epsilon(whole).axes[0].get_title()
    maps = [metric_over_grid(this).axes for this in (whole, best)]
    assert [axis.get_title() for axis in maps[0]] == [axis.get_title() for axis in maps[1]]
    assert "test_accuracy_over_grid" in plots.all_plots(best)


def test_many_heat_maps_are_those_of_the_middle_level():
    data = dataset("mu", "step_scale", metrics=["test_accuracy"]).expand_dims({"clip": [1.0, 2.0, 4.0]}, 2)
    figure = metric_over_grid(Summary({f"ours {place}": data for place in range(5)}))
    assert len(figure.axes) == 5 + 1 + 1  # one is empty, and one is the bar of colours
    assert all("μ = 2" in axis.get_title() for axis in figure.axes[:5])


def test_the_middle_is_taken_by_default(best):
    axis = plots.metric_over_rounds(Summary(best), "test_loss").axes[0]
    mean = best["ours"]["test_loss"].sel(per_round=2, mu=2.0).mean("seed")
    np.testing.assert_allclose(axis.lines[0].get_ydata(), mean)


def test_rounds_that_a_participation_lacks_are_left_out(best):
    data = best["free"].copy(deep=True)
    data["test_loss"].loc[{"per_round": 3, "round": 15}] = np.nan
    first, second = plots.metric_over_rounds(Summary({"free": data})).axes
    assert first.lines[0].get_xdata().tolist() == ROUNDS
    assert second.lines[0].get_xdata().tolist() == ROUNDS[:2]


def test_one_seed_has_no_band():
    axis = plots.metric_over_rounds(Summary({"ours": dataset("mu", seeds=1)})).axes[0]
    assert len(axis.lines) == 1
    assert not axis.collections


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (dataset("per_round", "mu"), ["test_accuracy_against_epsilon.png", "test_loss_over_rounds.png"]),
        (dataset("per_round"), ["test_loss_over_rounds.png"]),
        (dataset("mu", metrics=["excess_risk"]), ["excess_risk_against_epsilon.png", "excess_risk_over_rounds.png"]),
        (
            dataset("mu", "step_scale", metrics=["test_accuracy"]),
            ["test_accuracy_against_epsilon.png", "test_accuracy_over_grid.png"],
        ),
        (dataset("mu").isel(round=[-1]), ["test_accuracy_against_epsilon.png"]),
        (dataset("step_scale", metrics=["distance"]), []),
    ],
)
def test_every_plot_that_the_results_allow_is_written(data, names, tmp_path):
    assert [path.name for path in save(plots.all_plots(Summary({"ours": data})), tmp_path)] == names
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.iterdir())


def test_the_realised_axis_is_the_worst_runs(best):
    best["ours"]["realised_epsilon"] = best["ours"]["realised_epsilon"] * (1 + best["ours"]["seed"])
    axis = plots.metric_against_epsilon(Summary(best)).axes[0]
    np.testing.assert_allclose(axis.lines[0].get_xdata(), 4 * gdp.epsilon(np.array(AXES["mu"]), DELTA))
    assert axis.get_xlabel().startswith("realised ε, worst run  (")


@pytest.mark.parametrize(
    ("off", "realised"),
    sparing([(1 + 1e-7, False), (1.001, True), (0.991, False), (0.989, True)], [(1.001, True)]),
)
def test_the_realised_epsilon_is_the_coordinate_if_it_differs_from_the_target(best, off, realised):
    """One point of one protocol that is above its target, or more than 1% below it, is enough."""
    best["ours"]["realised_epsilon"] = best["ours"]["realised_epsilon"].copy()
    best["ours"]["realised_epsilon"][1, 2] *= off
    axis = plots.metric_against_epsilon(Summary(best)).axes[1]
    levels = gdp.epsilon(np.array(AXES["mu"]), DELTA) * [1, 1, off if realised else 1]
    np.testing.assert_allclose(axis.lines[0].get_xdata(), levels)
    assert axis.get_xlabel().startswith("realised ε, worst run  (" if realised else "ε  (")


def test_no_privacy_is_on_target():
    data = dataset("mu").assign_coords(mu=[1.0, 2.0, np.inf])
    levels = gdp.epsilon(np.array([1.0, 2.0, np.inf]), DELTA)[:, None]
    data["realised_epsilon"] = (("mu", "seed"), np.broadcast_to(levels, (3, data.sizes["seed"])))
    data["target_epsilon"] = ("mu", levels[:, 0])
    assert not Summary({"ours": data}).misses_target


@pytest.mark.parametrize("off", [2.0, np.inf])
def test_a_swept_target_counts_if_none_is_recorded_and_if_nothing_is_private(off):
    data = dataset("mu")
    missed = data.assign(realised_epsilon=data["realised_epsilon"] * off)
    assert Summary({"ours": missed}).misses_target
    assert Summary({"ours": missed.drop_vars("target_epsilon")}).misses_target
    assert not Summary({"ours": data.drop_vars("target_epsilon")}).misses_target


def test_another_iterate_and_a_custom_metric():
    data = dataset("mu", metrics=["spread"])
    data["spread"] = xr.concat([data["spread"], data["spread"] + 1], xr.Variable("iterate", ["output", "last"]))
    mine = Metric("spread", lambda problem, snapshot: 0.0, label="how far apart")
    means = data["spread"].isel(round=-1).mean("seed")
    for iterate in ("output", "last"):
        this = Summary({"ours": data}, evaluation=EvaluationSettings(iterate=iterate))
        axis = plots.metric_against_epsilon(this, mine).axes[0]
        np.testing.assert_allclose(axis.lines[0].get_ydata(), means.sel(iterate=iterate))
        assert axis.get_ylabel() == "how far apart\n(mean, 95% interval, 4 seeds)"
        line = plots.metric_over_rounds(this, "spread").axes[0].lines[0]
        path = data["spread"].sel(iterate=iterate, mu=2.0).mean("seed")
        np.testing.assert_allclose(line.get_ydata(), path)


def test_a_private_protocol_with_a_fixed_target_is_a_point():
    own = dataset("per_round")
    own["realised_epsilon"] = (own["diverged"].dims, np.full(own["diverged"].shape, 2.5))
    own["realised_epsilon"][:, :-1] = 1.0  # it stands at its worst run's
    figure = plots.metric_against_epsilon(Summary({"ours": dataset("per_round", "mu"), "own": own}))
    (line,) = [line for line in figure.axes[0].lines if line.get_label() == "own"]
    np.testing.assert_allclose(line.get_xdata(), [2.5])
    bar = figure.axes[0].collections[-1].get_segments()
    _, half = mean_interval(own["test_accuracy"].isel(round=-1, per_round=0))
    np.testing.assert_allclose(np.ptp(bar, axis=1), [[0.0, 2 * half]], atol=1e-12)


def test_a_metric_against_the_machines_is_doubly_logarithmic():
    best = {
        "ours": dataset("machines", metrics=["excess_risk"]),
        "theirs": dataset("machines", metrics=["excess_risk"]),
    }
    figure = plots.metric_against(Summary(best), "machines")
    (axis,) = figure.axes
    assert (axis.get_xscale(), axis.get_yscale(), axis.get_xlabel()) == ("log", "log", "machines")
    assert labels(figure) == ["ours", "theirs"]
    mean, half = mean_interval(best["ours"]["excess_risk"].isel(round=-1))
    np.testing.assert_allclose(axis.lines[0].get_xdata(), AXES["machines"])
    np.testing.assert_allclose(axis.lines[0].get_ydata(), mean)
    np.testing.assert_allclose(bands_drawn(axis)[0].T, [mean - np.minimum(half, 0.9 * mean), mean + half])


def test_machines_beside_a_privacy_level_have_a_panel_for_each():
    figure = plots.metric_against(Summary({"ours": dataset("machines", "mu", metrics=["excess_risk"])}), "machines")
    assert [axis.get_title() for axis in figure.axes] == ["μ = 1", "μ = 2", "μ = 4"]


def test_one_evaluation_has_no_path_and_values_below_zero_no_logarithmic_axis(tmp_path):
    data = dataset("machines", metrics=["excess_risk"])
    for place, round in enumerate(ROUNDS):  # each size has a last round of its own
        runs = data["excess_risk"][{"machines": place}]
        data["excess_risk"][{"machines": place}] = runs.where(data["round"] == round)
    assert [path.name for path in save(plots.all_plots(Summary({"ours": data})), tmp_path)] == [
        "excess_risk_against_machines.png"
    ]
    assert plots.all_plots(Summary({"ours": data.assign(excess_risk=-data["excess_risk"])})).keys() == {
        "excess_risk_against_machines"
    }
    assert plots.all_plots(Summary({"ours": data.isel(machines=[0, 2])})) == {}


@pytest.mark.parametrize("size", sparing(["rounds", "records"], ["rounds"]))
def test_noise_averaged_over_rounds_is_drawn_against_swept_rounds_and_records(size):
    data = dataset(size, "mu", metrics=["noise_mean_square"])
    settings = [EvaluationSettings(averaged=names) for names in (["noise_rms"], [])]
    summaries = [Summary({"ours": data}, evaluation=each) for each in settings]
    figure = plots.metric_against(summaries[0], size, "noise_rms")
    first, *_ = figure.axes
    assert [axis.get_title() for axis in figure.axes] == ["μ = 1", "μ = 2", "μ = 4"]
    assert (first.get_xlabel(), first.get_ylabel()) == (
        plots.SIZES[size],
        "noise rms, mean over rounds\n(mean, 95% interval, 4 seeds)",
    )
    line = first.lines[0]
    np.testing.assert_allclose(line.get_xdata(), AXES[size])
    roots = np.sqrt(data["noise_mean_square"].sel(mu=1.0).mean("round")).mean("seed")
    np.testing.assert_allclose(line.get_ydata(), roots)
    name = f"noise_rms_against_{size}"
    drawn = [plots.all_plots(each)[name] for each in summaries]
    averaged, last = (figure.axes[0].lines[0].get_ydata() for figure in drawn)
    np.testing.assert_allclose(averaged, roots)
    np.testing.assert_allclose(last, np.sqrt(data["noise_mean_square"].sel(mu=1.0).isel(round=-1)).mean("seed"))


def test_three_swept_sizes_leave_one_to_the_curve_one_to_panels_and_one_at_its_middle():
    data = dataset("machines", "rounds", "records", metrics=["excess_risk"])
    figure = plots.metric_against(Summary({"ours": data}), "records")
    assert [axis.get_title() for axis in figure.axes] == [f"M = {m}, T = 10" for m in (10, 100, 1000)]


def bands_drawn(axis):
    """Lower and upper ends of every band at each place along the axis, shape [places, 2]."""
    corners = [band.get_paths()[0].vertices for band in axis.collections]
    return [
        np.array([(y[x == place].min(), y[x == place].max()) for place in np.unique(x)])
        for x, y in (c.T for c in corners)
    ]


def test_intervals_stay_within_a_metrics_limits():
    data = dataset("mu", seeds=3)
    data["test_accuracy"].attrs.update(valid_min=0.0, valid_max=1.0)
    data["test_accuracy"][{"seed": 0}] = 0.01
    data["test_accuracy"][{"seed": 1}] = 0.98
    mean, half = mean_interval(data["test_accuracy"].isel(round=-1))
    assert (mean - half < 0).all()
    assert (mean + half > 1).all()
    (band,) = bands_drawn(plots.metric_against_epsilon(Summary({"ours": data})).axes[0])
    np.testing.assert_allclose(band, [[0, 1]] * len(band), atol=1e-12)
    data["test_loss"].attrs["valid_min"] = 0.0
    data["test_loss"][{"seed": 0}] = 9.0
    axis = plots.metric_over_rounds(Summary({"ours": data})).axes[0]
    (band,) = axis.collections
    assert band.get_paths()[0].vertices[:, 1].min() == pytest.approx(0, abs=1e-12)
    low, high = axis.get_ylim()
    assert -0.1 * high < low < 0  # no curve lies on the frame


def test_a_function_of_a_mean_has_the_limits_of_its_values():
    data = dataset("mu", metrics=["noise_mean_square"], seeds=3)
    data["noise_mean_square"].attrs["valid_min"] = 0.0
    data["noise_mean_square"][{"seed": 0}] = 400.0
    (band,) = bands_drawn(plots.metric_against_epsilon(Summary({"ours": data}), "noise_rms").axes[0])
    np.testing.assert_allclose(band[:, 0], 0, atol=1e-12)


@pytest.mark.parametrize(("seeds", "drawn"), [(2, 0), (3, 1)])
def test_two_seeds_have_no_bands(seeds, drawn):
    this = Summary({"ours": dataset("per_round", "mu", seeds=seeds)})
    for figure in (plots.metric_against_epsilon(this), plots.metric_over_rounds(this)):
        assert [len(axis.collections) for axis in figure.axes] == [drawn] * 2


def test_one_privacy_level_makes_no_plot_against_it():
    assert list(plots.all_plots(Summary({"ours": dataset("mu").isel(mu=[1])}))) == ["test_loss_over_rounds"]


def test_a_swept_setting_is_an_axis_if_no_privacy_level_is_swept():
    alone = {"ours": dataset("step_scale")}
    names = ["test_accuracy_against_step_scale", "test_loss_over_rounds"]
    assert list(plots.all_plots(Summary(alone))) == names
    figure = plots.all_plots(Summary(alone))[names[0]]
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_xscale()) == ("step_scale", "log")
    assert list(plots.all_plots(Summary({"ours": dataset("mu", "step_scale")}))) == [
        "test_accuracy_against_epsilon",
        "test_accuracy_over_grid",
        "test_loss_over_rounds",
    ]


def test_many_panels_stand_in_rows():
    figure = plots.metric_over_rounds(Summary({"ours": dataset("per_round", "machines")}))
    assert [axis.get_title() for axis in figure.axes] == [f"M = {M}, m = {m}" for M in AXES["machines"] for m in (2, 3)]
    assert len({axis.get_position().x0 for axis in figure.axes}) == 3
    assert len({axis.get_position().y0 for axis in figure.axes}) == 2


def test_four_panels_are_two_by_two():
    four = dataset("per_round", "machines").isel(machines=[0, 1])
    figure = plots.metric_over_rounds(Summary({"ours": four}))
    assert len(figure.axes) == 4
    assert len({axis.get_position().x0 for axis in figure.axes}) == 2
    assert len({axis.get_position().y0 for axis in figure.axes}) == 2
    assert [bool(axis.get_ylabel()) for axis in figure.axes] == [True, False, True, False]


@pytest.mark.parametrize(("value", "drawn"), [(0.5, True), (-7.0, False)])
def test_the_constant_predictor_is_a_line_if_it_is_near_the_curves(best, value, drawn):
    for data in best.values():
        data["test_accuracy"].attrs["constant_predictor"] = value
    told = [Summary(best, evaluation=EvaluationSettings(baselines=names)) for names in (["constant"], [])]
    names = [labels(plots.metric_against_epsilon(each, "test_accuracy")) for each in told]
    assert ["constant predictor" in each for each in names] == [drawn, False]


@pytest.mark.parametrize(("value", "drawn"), [(0.5, True), (-7.0, False)])
def test_each_machine_alone_is_a_dashed_line_if_it_is_near_the_curves(best, value, drawn):
    told = {label: with_alone(data, {"test_accuracy": np.full(5, value)}, 5) for label, data in best.items()}
    figure = plots.metric_against_epsilon(Summary(told), "test_accuracy")
    assert ("each machine alone" in labels(figure)) == drawn
    for axis in figure.axes:
        lines = [line for line in axis.lines if line.get_label() == "each machine alone"]
        assert [(line.get_linestyle(), set(line.get_ydata())) for line in lines] == [("--", {0.5})] * drawn


def test_each_machine_alone_is_a_curve_along_the_axis_on_which_it_depends():
    data = dataset("machines")
    data["alone_test_accuracy"] = ("machines", [0.6, 0.5, 0.4])
    data["alone_test_accuracy_interval"] = ("machines", [0.0, 0.0, 0.0])
    (axis,) = plots.metric_against(Summary({"ours": data}), "machines", "test_accuracy").axes
    (line,) = (line for line in axis.lines if line.get_label() == "each machine alone")
    np.testing.assert_allclose(line.get_xydata(), [[10, 0.6], [100, 0.5], [1000, 0.4]])
