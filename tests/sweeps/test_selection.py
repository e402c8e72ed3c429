"""`select`: the chosen configuration of a sweep, by the rule of experiment files, marked as not covered."""

import numpy as np
import pytest
import xarray as xr

from fedprivjax import Refusal, select
from fedprivjax.experiment.settings import EvaluationSettings
from fedprivjax.layout.wording import CHOSEN_NOTE
from fedprivjax.report.plots import metric_against, metric_over_rounds
from fedprivjax.report.summary import Summary
from fedprivjax.report.tables import CONSTANT
from fedprivjax.sweeps.selection import NO_EFFECT, UNACCOUNTED

CLIPS, RATES = [0.1, 1.0, 10.0], [1.0, 2.0]


@pytest.fixture
def grid():
    """Accuracies of two rates, three clips, and two seeds: the best clip is 1 at rate 1 and 10 at rate 2."""
    last = np.array([[[0.1, 0.3], [0.5, 0.7], [0.4, 0.4]], [[0.2, 0.2], [0.3, 0.3], [0.8, 0.9]]])
    paths = np.stack([np.full_like(last, 0.95), last], axis=-1)  # the first evaluation does not count
    return xr.Dataset(
        {
            "test_accuracy": (("rate", "clip", "seed", "round"), paths),
            "test_loss": (("rate", "clip", "seed", "round"), paths),
            "noise_std": (("rate", "clip"), np.arange(6.0).reshape(2, 3)),
            "diverged": (("rate", "clip", "seed"), np.zeros((2, 3, 2), bool)),
            "realised_epsilon": (("rate", "clip", "seed"), np.ones((2, 3, 2))),
        },
        {"rate": RATES, "clip": CLIPS, "seed": [0, 1], "round": [1, 2]},
        {"delta": 1e-5},
    )


def test_the_best_value_is_chosen_at_each_value_of_the_others(grid):
    chosen = select(grid, over="clip")
    assert chosen["best_clip"].values.tolist() == [1.0, 10.0]
    assert chosen["test_accuracy"].isel(round=-1).values.tolist() == [[0.5, 0.7], [0.8, 0.9]]
    assert chosen["noise_std"].values.tolist() == [1.0, 5.0]
    assert chosen["diverged"].dims == ("rate", "seed")


def test_for_a_loss_the_smallest_mean_is_chosen(grid):
    assert select(grid, "clip", "test_loss")["best_clip"].values.tolist() == [0.1, 0.1]


def test_several_axes_are_chosen_together(grid):
    chosen = select(grid, ["rate", "clip"])
    assert (chosen["best_rate"].item(), chosen["best_clip"].item()) == (2.0, 10.0)
    edge = "(clip at the edge of its grid)"
    assert chosen.attrs["selected"] == f"rate, clip by the best mean test_accuracy {edge}: not accounted for"


def test_a_point_with_fewer_diverged_runs_is_chosen(grid):
    grid["diverged"].loc[{"rate": 2.0, "clip": 10.0, "seed": 0}] = True
    assert select(grid, "clip")["best_clip"].values.tolist() == [1.0, 1.0]


def test_a_choice_is_stated_and_a_single_value_is_none(grid):
    chosen = select(grid, "clip")
    edge = "(clip at the edge of its grid in 1 of 2 cells)"
    assert chosen.attrs["selected"] == f"clip by the best mean test_accuracy {edge}: not accounted for"
    scaled = grid.assign(step_size=1 / grid["clip"], noise_std=grid["clip"] * grid["rate"])
    assert select(scaled, "clip").attrs["selected"].endswith("not accounted for; " + NO_EFFECT)
    assert chosen.attrs[UNACCOUNTED] == "clip"
    assert chosen.attrs["delta"] == 1e-5
    assert UNACCOUNTED not in select(grid.isel(clip=[1]), "clip").attrs


@pytest.mark.parametrize(
    ("over", "metric", "message"),
    [
        ("seed", "test_accuracy", r"unknown axis of the sweep 'seed'"),
        ("clipp", "test_accuracy", r"unknown axis of the sweep 'clipp', did you mean 'clip'"),
        ([], "test_accuracy", r"over must name an axis of the sweep, got none"),
        ("clip", "test_error", r"'test_error'"),
    ],
)
def test_unknown_axes_and_metrics_are_refused(grid, over, metric, message):
    with pytest.raises(Refusal, match=message):
        select(grid, over, metric)


@pytest.mark.parametrize("draw", [lambda this: metric_against(this, "rate", "test_loss"), metric_over_rounds])
def test_plots_mark_the_chosen_and_explain_the_mark(grid, draw):
    chosen, plain = select(grid, "clip"), grid.isel(clip=0, drop=True)
    guaranteed = {"guarantee": ("rate", ["", ""]), "realised_mu": grid["realised_epsilon"].isel(clip=0, drop=True)}
    both = {"ours": chosen.assign(guaranteed), "other": plain.assign(guaranteed)}
    at = EvaluationSettings(at={"rate": float(grid["rate"][0])})  # else the results choose it, too
    (legend,) = draw(Summary(both, evaluation=at)).legends
    assert [text.get_text() for text in legend.get_texts() if text.get_text() != CONSTANT] == ["ours ‡", "other"]
    assert legend.get_title().get_text() == CHOSEN_NOTE
    (legend,) = draw(Summary({"one": both["other"], "other": both["other"]}, evaluation=at)).legends
    assert legend.get_title().get_text() == ""
    alone = draw(Summary({"ours": both["ours"]}, evaluation=at))
    title = alone.axes[0].get_title() + alone.get_suptitle()
    assert f"ours ‡\n{CHOSEN_NOTE}" in title
