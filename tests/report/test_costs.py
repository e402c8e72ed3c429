"""What a run costs, as a table and as plots."""

import numpy as np
import pytest
import xarray as xr

from fedprivjax import Refusal, experiment, plot
from fedprivjax.experiment.settings import EvaluationSettings
from fedprivjax.privacy import gdp
from fedprivjax.privacy.rounding import up
from fedprivjax.report import plots
from fedprivjax.report.plots import metric_against_costs
from fedprivjax.report.summary import Summary
from fedprivjax.report.tables import costs_table, differ_in_costs, results_tables

DELTA, SEEDS = 1e-5, 4
EVALUATION = EvaluationSettings(delta=DELTA)
AXES = {"per_round": [2, 3], "mu": [0.3, 0.5, 4.0]}
EACH = {"rounds": 20.0, "gradients": 1.5, "bytes": 4000.0, "bits": 800.0, "messages": 1.0, "seconds": 0.25}


def dataset(*dims, seed=0, **costs):
    """Return runs with four evaluations. Each cost is a number, or one number per point of the dims."""
    value = EACH | costs
    sizes = [len(AXES[name]) for name in dims]
    rounds = int(np.max(value["rounds"]))
    records = np.linspace(rounds / 4, rounds, 4).astype(int)
    rng = np.random.default_rng(seed)
    runs = rng.uniform(0.4, 0.6, size=[*sizes, SEEDS, 4])

    def of_members(name):
        return (dims, np.broadcast_to(value[name], sizes))

    def of_runs(name):  # a seed more, a seed less
        off = np.linspace(0.9, 1.1, SEEDS)
        return ([*dims, "seed"], np.broadcast_to(value[name], sizes)[..., None] * off)

    variables = {
        "test_accuracy": ([*dims, "seed", "round"], runs, {"valid_min": 0.0, "valid_max": 1.0}),
        "diverged": ([*dims, "seed"], np.zeros([*sizes, SEEDS], bool)),
        "realised_epsilon": ([*dims, "seed"], np.full([*sizes, SEEDS], np.inf)),
        "rounds_taken": of_members("rounds"),
        "sent_bits": of_members("bits"),
        "sent_messages": of_members("messages"),
        "seconds": of_members("seconds"),
        "sent_bytes": of_runs("bytes"),
        "gradients_per_record": of_runs("gradients"),
    }
    coordinates = {**{name: AXES[name] for name in dims}, "seed": np.arange(SEEDS), "round": records}
    return xr.Dataset(variables, coordinates, {"delta": DELTA, "non_private_metrics": ""})


def shown(best, axes=("mu",)):
    return costs_table(Summary(best, {name: AXES[name] for name in axes}, EVALUATION))


def headers(sheet):
    return [column.header for column in sheet.columns]


def test_a_protocol_has_one_row_if_all_cells_have_equal_costs():
    table = shown({"ours": dataset("mu"), "theirs": dataset("mu", rounds=80, gradients=np.nan, bytes=2.5e6)})
    assert headers(table) == [
        *("protocol", "rounds", "gradients a record", "messages a machine sends", "bytes a machine sends", "seconds")
    ]
    ours, theirs = table.rows
    assert ours == ["ours", "20", "1.5", "40", "4 k", "0.25"]
    assert theirs[:3] == ["theirs", "80", "–"]
    assert theirs[4] == "2.5 M"


def test_cells_have_separate_rows_if_their_costs_differ():
    many = dataset("per_round", "mu", bytes=np.array([[4e3], [6e3]]), seconds=np.arange(6.0).reshape(2, 3))
    table = shown({"ours": many, "theirs": dataset("mu")}, ("per_round", "mu"))
    assert headers(table)[:3] == ["protocol", "per_round", "rounds"]
    assert [row[:2] for row in table.rows] == [["ours", "2"], ["ours", "3"], ["theirs", ""]]
    assert [row[-2:] for row in table.rows] == [["4 k", "1"], ["6 k", "4"], ["4 k", "0.25"]]


def test_a_swept_number_of_rounds_has_a_row_for_each():
    swept = dataset("per_round", rounds=np.array([20.0, 40.0])).rename(per_round="rounds")
    table = costs_table(Summary({"ours": swept}, {"rounds": AXES["per_round"]}, EVALUATION))
    assert [row[:3] for row in table.rows] == [["ours", "2", "20"], ["ours", "3", "40"]]


def test_seconds_and_draws_make_no_rows():
    uneven = dataset("mu", bytes=np.array([4000.0, 4010.0, 3995.0]), seconds=np.array([1.0, 2.0, 6.0]))
    (row,) = shown({"ours": uneven}).rows
    assert row == ["ours", "20", "1.5", "40", "4 k", "3"]


def test_results_without_recorded_costs_have_no_table():
    old = dataset("mu").drop_vars(["sent_bytes", "gradients_per_record", "rounds_taken", "seconds"])

    def here(data):
        return Summary({"ours": data}, {"mu": AXES["mu"]}, EVALUATION)

    titles = [[sheet.title for sheet in results_tables(here(data))] for data in (old, dataset("mu"))]
    assert not any("costs" in title for title in titles[0])
    assert titles[1][-1] == "what a run costs, mean over 4 seeds; seconds include compilation"


BEST = {"ours": dataset("mu"), "theirs": dataset("mu", seed=1, rounds=80, bytes=1000.0, gradients=6.0)}


def test_a_panel_for_each_cost_and_a_line_for_each_protocol():
    figure = metric_against_costs(Summary(BEST))
    rounds, sent, gradients = figure.axes
    assert [axis.get_xlabel() for axis in figure.axes] == ["rounds", "sent by a machine", "gradients a record"]
    assert {axis.get_xscale() for axis in figure.axes} == {"log"}
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ours", "theirs"]
    assert "μ = 0.5 (ε = 1.994)" in rounds.get_title()
    for place, data in enumerate(BEST.values()):
        whole = float(data["rounds_taken"][0])
        mean = data["test_accuracy"].sel(mu=0.5).mean("seed")
        for axis, total in ((rounds, whole), (sent, data["sent_bytes"]), (gradients, data["gradients_per_record"])):
            line = axis.lines[place]
            expected = data["round"] / whole * (total if axis is rounds else float(total.sel(mu=0.5).mean()))
            np.testing.assert_allclose(line.get_xdata(), expected)
            np.testing.assert_allclose(line.get_ydata(), mean)
            assert len(axis.collections) == len(BEST)  # bands
    assert sent.xaxis.get_major_formatter()(1000.0) == "1 kB"


def test_a_row_of_panels_for_each_participation():
    best = {label: dataset("per_round", "mu", rounds=rounds) for label, rounds in (("ours", 20.0), ("theirs", 40.0))}
    figure = metric_against_costs(Summary(best, evaluation=EvaluationSettings(at={"mu": 4.0})))
    level = f"μ = 4 (ε = {up(gdp.epsilon(4.0, DELTA), 4)})"
    assert [axis.get_title() for axis in figure.axes] == [f"m = 2, {level}", "", "", f"m = 3, {level}", "", ""]
    assert [bool(axis.get_ylabel()) for axis in figure.axes] == [True, False, False] * 2


def test_unlimited_records_have_no_panel():
    endless = {
        label: data.assign(gradients_per_record=data["gradients_per_record"] * np.nan) for label, data in BEST.items()
    }
    assert len(metric_against_costs(Summary(endless)).axes) == 2
    mixed = metric_against_costs(Summary({"ours": BEST["ours"], "theirs": endless["theirs"]}))
    assert [len(axis.lines) for axis in mixed.axes] == [2, 2, 1]


def test_costs_are_drawn_if_protocols_differ_in_them():
    alike = {"ours": dataset("mu"), "theirs": dataset("mu", seed=1, gradients=6.0)}
    assert not differ_in_costs(alike)
    assert not differ_in_costs({"ours": BEST["ours"]})
    assert "test_accuracy_against_costs" in plots.all_plots(Summary(BEST))
    assert not any("costs" in name for name in plots.all_plots(Summary(alike)))
    assert len(plot(described(BEST), against="costs").axes) == 3
    assert len(plot(described(alike), against="costs").axes) == 3  # if asked for
    assert len(plot(described({"ours": BEST["ours"]}), against="costs").axes) == 3


def described(best):
    """Return the dataset with the other variables of a sweep's dataset."""
    return {label: data.assign(guarantee="", target_epsilon=np.nan) for label, data in best.items()}


def spec(**evaluation):
    return {
        "title": "small",
        "problem": {"dataset": "logistic", "options": {"examples": 60, "features": 3}, "radius": 5.0},
        "participation": {"machines": 6},
        "protocol": [{"name": "dp_mu2", "label": "ours"}],
        "sweep": {"mu": AXES["mu"]},
        "evaluation": evaluation,
    }


def test_a_file_may_say_where_runs_are_drawn():
    evaluation = experiment.parse(spec(at={"mu": 4.0})).evaluation
    assert evaluation.at == {"mu": 4.0}
    drawn = plots.all_plots(Summary(BEST, evaluation=evaluation))["test_accuracy_against_costs"]
    mean = BEST["ours"]["test_accuracy"].sel(mu=4.0).mean("seed")
    np.testing.assert_allclose(drawn.axes[0].lines[0].get_ydata(), mean)
    with pytest.raises(Refusal, match=r"^unknown key in evaluation.at 'clip' \(known: mu\)"):
        experiment.parse(spec(at={"clip": 4.0}))


def test_titles_show_the_value_that_is_drawn():
    this = Summary(BEST, evaluation=EvaluationSettings(at={"mu": 3.7}))
    over_rounds = plots.metric_over_rounds(this, "test_accuracy")
    assert [axis.get_title() for axis in over_rounds.axes] == ["μ = 4 (ε = 24.39)"]
    against = metric_against_costs(this)
    assert against.axes[0].get_title().startswith("μ = 4 (ε = ")


@pytest.mark.parametrize("times", [1.5, 100.0, 1e7])
def test_ticks_of_bytes_do_not_overlap_on_axes_of_any_length(times):
    far = {"ours": BEST["ours"], "theirs": dataset("mu", bytes=4000.0 * times)}
    axis = metric_against_costs(Summary(far)).axes[1]
    low, high = axis.get_xlim()
    assert 1 <= sum(low <= place <= high for place in axis.get_xticks()) <= 7
