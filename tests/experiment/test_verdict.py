import csv
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from fedprivjax import experiment
from fedprivjax.checks.refusal import Refusal
from fedprivjax.experiment import Cell, Expected, verdict
from fedprivjax.experiment.jobs import jobs, ready_experiment
from fedprivjax.experiment.read import check, read_toml
from fedprivjax.experiment.settings import EvaluationSettings
from fedprivjax.experiment.tuning import _best
from fedprivjax.report import tables, verdicts
from fedprivjax.report.summary import summary
from fedprivjax.sweeps.intervals import exponent

MEAN = 0.5
RUNS = [0.25, 0.75]  # mean 0.5, sd √2/4


def dataset(runs, **axes):
    """Return a dataset with one evaluation of one metric; `runs` has the axes in order, then seeds."""
    values = np.asarray(runs, float)
    coordinates = {**axes, "seed": np.arange(values.shape[-1]), "round": [3]}
    return xr.Dataset({"test_loss": ([*axes, "seed", "round"], values[..., None])}, coordinates)


def make(expected, mu=(1.0, 2.0), **evaluation):
    return experiment.parse(
        {
            "title": "small",
            "problem": {"dataset": "digits", "radius": 4.0},
            "participation": {"machines": 6, "per_round": 3},
            "protocol": [{"name": "dp_mu2", "label": "ours"}, {"name": "noisy_sgd", "label": "theirs"}],
            "sweep": {"mu": list(mu)},
            "evaluation": evaluation,
            "expected": [{"protocol": "ours", "metric": "test_loss", **entry} for entry in expected],
        }
    )


def judge(rule, value, *, tolerance=0.0, runs=RUNS, **more):
    entry = {"rule": rule, "tolerance": tolerance, "cells": [{"value": value}], **more}
    best = {"ours": dataset(runs), "theirs": dataset([value, value])}
    return verdict.verdicts(make([entry]), best)[0]


MANY = 20  # evaluations of a run
OF_TRIALS = Expected(protocol="ours", metric="relative_rmse")
SD = float(np.std(RUNS, ddof=1))


@pytest.mark.parametrize(
    ("rule", "value", "tolerance", "holds"),
    [
        ("within", MEAN + 0.125, 0.125, True),
        ("within", MEAN - 0.125, 0.125, True),
        ("within", MEAN + 0.126, 0.125, False),
        ("within", MEAN - 0.126, 0.125, False),
        ("within_sd", MEAN + 1.999 * SD, 2, True),
        ("within_sd", MEAN - 1.999 * SD, 2, True),
        ("within_sd", MEAN + 2.001 * SD, 2, False),
        ("within_sd", MEAN - 2.001 * SD, 2, False),
        ("at_least", MEAN + 0.125, 0.125, True),
        ("at_least", MEAN + 0.126, 0.125, False),
        ("at_least", MEAN - 9, 0.125, True),
        ("at_most", MEAN - 0.125, 0.125, True),
        ("at_most", MEAN - 0.126, 0.125, False),
        ("at_most", MEAN + 9, 0.125, True),
        ("above", MEAN - 0.001, 0, True),
        ("above", MEAN, 0, False),
        ("above", MEAN + 0.001, 0, False),
        ("shown", MEAN, 0, None),
        ("shown", MEAN + 9, 0, None),
    ],
)
def test_each_rule_on_both_sides_of_its_edge(rule, value, tolerance, holds):
    found = judge(rule, value, tolerance=tolerance, other="theirs")
    assert found.holds is holds
    assert (found.mean, found.value, found.seeds) == (MEAN, value, 2)
    assert found.sd == pytest.approx(SD)
    assert found.half == pytest.approx(12.7062 * SD / math.sqrt(2), rel=1e-5)  # t at 97.5%, one degree of freedom


def losses(curves):
    """Return a dataset of the test losses of several seeds at rounds 10, 20 and 30."""
    return xr.Dataset(
        {"test_loss": (("seed", "round"), curves)}, {"seed": [*range(len(curves))], "round": [10, 20, 30]}
    )


@pytest.mark.parametrize(
    ("curves", "mean", "half", "holds"),
    [
        ([[3.0, 2.0, 1.0], [2.0, 1.0, 3.0]], 15.0, 12.7062 * math.sqrt(50) / math.sqrt(2), True),
        ([[3.0, 2.0, 1.0], [3.0, 3.0, 3.0]], math.inf, math.nan, False),  # a run that never reaches it
    ],
)
def test_rounds_to_a_value_are_compared_and_a_run_that_never_reaches_it_counts_as_infinite(curves, mean, half, holds):
    entry = {"rounds_to": 2.0, "rule": "at_most", "cells": [{"value": 15.0}]}
    swept = make([entry])
    found = verdict.verdicts(swept, {"ours": losses(curves)})[0]
    assert (found.mean, found.holds) == (mean, holds)
    assert found.half == pytest.approx(half, rel=1e-5, nan_ok=True)
    table = verdicts.verdict_tables([found])[0]
    assert table.title == "ours: rounds to test loss ≤ 2.0000 (mean ± 95% interval); at most it + 0"
    assert table.columns[3].cells == ["15.0"]


@pytest.mark.parametrize(
    ("message", "evaluation", "entry"),
    [
        ("evaluation.rounds_to.test_loss must be between -inf and inf, got nan", {"test_loss": math.nan}, {}),
        ("rounds_to in .* must go without rounds = 'mean'", {}, {"rounds_to": 1.0, "rounds": "mean"}),
    ],
)
def test_invalid_rounds_to_is_refused(message, evaluation, entry):
    with pytest.raises(Refusal, match=message):
        make([entry], rounds_to=evaluation)


def test_rounds_to_is_refused_with_trials_and_for_metrics_that_are_not_recorded():
    swept = make([], rounds_to={"test_loss": 0.5})
    with pytest.raises(Refusal, match="rounds_to must be left out of trials, got 2 trials"):
        check(swept.but(sweep=swept.sweep.but(trials=2)))
    jobs(swept)
    with pytest.raises(Refusal, match="rounds_to 'test_loss' must be recorded, got test_accuracy"):
        jobs(swept.but(evaluation=swept.evaluation.but(metrics=["test_accuracy"])))


@pytest.mark.parametrize("rule", ["within", "within_sd", "at_least", "at_most", "above"])
def test_a_diverged_run_never_passes(rule):
    assert judge(rule, MEAN, tolerance=9, other="theirs", runs=[np.nan, np.nan]).holds is False


def test_one_seed_has_no_sd_to_be_within():
    assert judge("within_sd", MEAN, tolerance=9, runs=[MEAN]).holds is False
    assert judge("within", MEAN, tolerance=9, runs=[MEAN]).holds is True


def test_a_cell_without_a_value_is_not_judged():
    assert judge("within", None).holds is None


def test_a_cell_is_read_at_its_values():
    best = {"ours": dataset([[1.0, 1.0], [2.0, 2.0]], mu=[1.0, 2.0]), "theirs": dataset([3.0, 3.0])}
    cells = [{"at": {"mu": 2}, "value": 2.0}, {"at": {"mu": 1}, "value": 1.0}]
    found = verdict.verdicts(make([{"cells": cells}]), best)
    assert [(v.at["mu"], v.mean, v.holds) for v in found] == [(2.0, 2.0, True), (1.0, 1.0, True)]


def test_without_cells_every_swept_cell_is_judged():
    ours = dataset([[1.0, 1.0], [2.0, 2.0]], mu=[1.0, 2.0])
    entry = {"rule": "above", "other": "theirs"}
    found = verdict.verdicts(make([entry]), {"ours": ours, "theirs": dataset([1.5, 1.5])})
    assert [(v.at, v.value, v.holds) for v in found] == [({"mu": 1.0}, 1.5, False), ({"mu": 2.0}, 1.5, True)]


def test_two_axes_without_cells():
    ours = dataset(np.ones((2, 3, 2)), mu=[1.0, 2.0], per_round=[1, 2, 3])
    found = verdict.verdicts(make([{"rule": "shown"}]), {"ours": ours})
    assert [tuple(v.at.values()) for v in found] == [(mu, m) for mu in (1.0, 2.0) for m in (1.0, 2.0, 3.0)]


def test_a_published_number_may_be_listed_without_a_run():
    entry = {"protocol": "published", "rule": "shown", "cells": [{"at": {"mu": 1}, "value": 0.5}]}
    found = verdict.verdicts(make([entry, {**entry, "cells": []}]), {})
    assert [(v.value, v.holds, v.seeds, math.isnan(v.mean)) for v in found] == [(0.5, None, 0, True)]


@pytest.mark.parametrize(
    ("at", "message"),
    [({"mu": 3}, r"expected cell mu = 3 must be swept, got \[1.0, 2.0\]"), ({}, r"expected cell {} must fix mu")],
)
def test_a_cell_outside_the_sweep_is_refused(at, message):
    best = {"ours": dataset(np.ones((2, 2)), mu=[1.0, 2.0])}
    with pytest.raises(ValueError, match=message):
        verdict.verdicts(make([{"cells": [{"at": at, "value": 1.0}]}]), best)


def test_cells_are_checked_before_anything_runs():
    verdict.check_cells(make([{"cells": [{"at": {"mu": 2}, "value": 1.0}]}]))
    with pytest.raises(ValueError, match=r"expected cell mu = 3 must be swept, got \[1.0, 2.0\]"):
        verdict.check_cells(make([{"cells": [{"at": {"mu": 3}}]}]))
    with pytest.raises(ValueError, match=r"expected cell machines = 6 must be swept, got \[\]"):
        verdict.check_cells(make([{"cells": [{"at": {"machines": 6}}]}]))
    with pytest.raises(ValueError, match=r"expected cell {} must fix mu"):
        verdict.check_cells(make([{"cells": [{"value": 1.0}]}]))
    recorded = {"output": ["test_accuracy", "relative_mse"], "last": ["test_accuracy"]}
    with pytest.raises(ValueError, match=r"must be recorded, got test_accuracy, relative_mse\. "):
        verdict.check_recorded(make([{}]).expected, "ours", recorded, MANY)
    with pytest.raises(
        ValueError, match=r"unknown iterate of ours in \[\[expected\]\] 'average' \(known: output, last"
    ):
        verdict.check_recorded(
            make([{"metric": "test_accuracy", "iterate": "average"}]).expected, "ours", recorded, MANY
        )
    verdict.check_recorded(make([{"metric": "test_accuracy", "iterate": "last"}]).expected, "ours", recorded, MANY)
    verdict.check_recorded([OF_TRIALS], "ours", recorded, MANY)
    entries = make([{"metric": "test_accuracy"}, {"protocol": "published", "rule": "shown"}]).expected
    verdict.check_recorded(entries, "ours", recorded, MANY)


@pytest.mark.parametrize("own", ["ours", "theirs"])
def test_a_named_iterate_is_judged(own):
    values = np.array([[[0.5, 2.0]], [[0.5, 4.0]]])  # [seed, round, iterate]
    ours = xr.Dataset({"test_loss": (("seed", "round", "iterate"), values)}, {"iterate": ["output", "last"]})
    best = {"ours": ours, "theirs": dataset([1.0, 1.0])}
    entry = {"rule": "above", "other": own, "iterate": "last"}
    (found,) = verdict.verdicts(make([entry], mu=[1.0]), best)
    assert (found.mean, found.value, found.holds) == (3.0, 0.5 if own == "ours" else 1.0, True)
    (output,) = verdict.verdicts(make([{**entry, "iterate": "output"}], mu=[1.0]), best)
    assert (output.mean, output.holds) == (0.5, False)
    assert (found.at, output.at) == ({}, {})


@pytest.mark.parametrize(
    ("gaps", "value", "holds"),
    [
        ([0.1, 0.2, 0.3], None, False),  # interval 0.2 ± 0.248
        ([0.1, 0.15, 0.2], None, True),  # 0.15 ± 0.124
        ([0.1, 0.15, 0.2], 0.025, True),
        ([0.1, 0.15, 0.2], 0.027, False),
        ([0.1], None, False),  # one seed has no interval
        ([0.1, np.nan, 0.2], None, False),
    ],
)
def test_a_paired_difference_has_its_interval_above_the_value(gaps, value, holds):
    theirs = np.array([0.2, 5.0, -3.0])[: len(gaps)]  # the seeds' spread cancels
    best = {"ours": dataset(theirs + gaps), "theirs": dataset(theirs)}
    made = make([{"rule": "paired_above", "other": "theirs", "cells": [{"value": value}]}], mu=[1.0])
    (found,) = verdict.verdicts(made, best)
    assert found.holds is holds
    assert (found.mean, found.value) == pytest.approx((np.mean(gaps), value or 0.0), nan_ok=True)
    (table,) = verdicts.verdict_tables([found])
    assert str(table.title).startswith("ours less theirs, paired by seed: test loss")


def test_a_paired_difference_names_the_other_protocol():
    with pytest.raises(Refusal, match=r"other protocol in \[\[expected\]\]"):
        check(make([{"rule": "paired_above"}]))


@pytest.mark.parametrize("name", experiment.bundled())
def test_the_cells_of_a_bundled_experiment_are_swept(name):
    verdict.check_cells(experiment.load(name))


@pytest.mark.parametrize(
    ("rule", "metric", "words"),
    [
        ("within", "test_loss", "within 0.02"),
        ("within", "test_accuracy", "within 2 points"),
        ("within_sd", "test_accuracy", "within 0.02 sd"),
        ("at_least", "test_accuracy", "at least it − 2 points"),
        ("at_most", "test_accuracy", "at most it + 2 points"),
        ("above", "test_loss", "above theirs"),
        ("paired_above", "test_loss", "95% interval above it"),
        ("slope", "test_loss", "at most 0.02 above it"),
        ("increases", "test_loss", "95% interval above 0"),
        ("decreases", "test_loss", "95% interval below 0"),
        ("shown", "test_loss", "not judged"),
    ],
)
def test_rules_as_text(rule, metric, words):
    expected = Expected(protocol="ours", metric=metric, rule=rule, tolerance=0.02, other="theirs", cells=[Cell()])
    assert verdict.describe(expected) == words


def against(cell, ours=RUNS):
    entry = {"rule": "within_se", "tolerance": 3, "cells": [cell]}
    return verdict.verdicts(make([entry], mu=[1.0]), {"ours": dataset(ours)})[0]


def test_the_standard_error_of_a_difference():
    found = against({"value": 0.6, "sd": 0.2, "runs": 10})
    assert found.sd == pytest.approx(math.sqrt((0.04 * 9 + SD**2) / 10) * math.sqrt(1 / 10 + 1 / 2))
    alone = against({"value": 0.6, "sd": 0.2, "runs": 10}, ours=[0.5])
    assert alone.sd == pytest.approx(0.2 * math.sqrt(1 / 10 + 1))
    assert alone.holds


@pytest.mark.parametrize("cell", [{"value": 0.6}, {"value": 0.6, "sd": 0.2}, {"value": 0.6, "sd": 0.2, "runs": 1}])
def test_standard_errors_need_an_sd_and_runs(cell):
    with pytest.raises(ValueError, match=r"expected cell {} must have a value, an sd and at least two runs"):
        against(cell)


def test_an_error_in_per_cent_is_judged_in_points():
    assert verdict.describe(Expected(protocol="a", metric="test_error", tolerance=0.02)) == "within 2 points"


def path(*records, **axes):
    """Return a dataset with several evaluations of one metric, shape [..., seeds, evaluations]."""
    values = np.asarray(records, float)
    dims = [*axes, "seed", "round"]
    return xr.Dataset({"gradient_norm": (dims, values)}, {**axes, "round": np.arange(values.shape[-1])})


@pytest.mark.parametrize(("rounds", "mean", "sd"), [("last", 5.0, math.sqrt(2)), ("mean", 3.0, math.sqrt(0.5))])
def test_a_run_is_summarised_by_its_last_evaluation_or_the_mean(rounds, mean, sd):
    ours = path([1, 2, 4], [np.nan, 1, 6])  # the mean of a run with fewer evaluations is over those
    entry = {"metric": "gradient_norm", "rounds": rounds, "tolerance": 0.1, "cells": [{"value": mean}]}
    ours["gradient_norm"][1, 1] = 1.0
    (found,) = verdict.verdicts(make([entry], mu=[1.0]), {"ours": ours})
    expected = {"last": [4, 6], "mean": [7 / 3, 3.5]}[rounds]
    assert found.mean == pytest.approx(np.mean(expected))
    assert found.sd == pytest.approx(np.std(expected, ddof=1))


def test_the_mean_over_rounds_goes_with_every_rule():
    def judged(rule, ours, **more):
        entry = {"metric": "gradient_norm", "rounds": "mean", "rule": rule, "tolerance": 0.01, **more}
        theirs = path([3.0, 3.0], [3.0, 3.0])
        (found,) = verdict.verdicts(make([entry], mu=[1.0]), {"ours": ours, "theirs": theirs})
        return found

    ours = path([5.0, 1.1], [5.0, 1.1])
    assert judged("above", ours, other="theirs", cells=[{}])[2:] == pytest.approx((3.05, 0, 0, 2, 3.0, True))
    slope = path(*(n**-0.5 * np.array([[1.5, 0.5], [1.0, 1.0]]) for n in MACHINES), machines=MACHINES)
    found = judged("slope", slope, axis="machines", cells=[{"value": -0.5}])
    assert (found.mean, found.half, found.holds) == pytest.approx((-0.5, 0.0, True), abs=1e-9)
    gone = path([1.0, np.nan], [1.0, 1.0]).assign(diverged=("seed", [True, False]))
    assert math.isnan(judged("within", gone, cells=[{"value": 1.0}]).mean)


def test_the_noise_over_rounds_is_the_root_of_a_mean_of_squares():
    ours = path([1.0, 7.0], [9.0, 9.0]).rename(gradient_norm="noise_mean_square")
    entry = {"metric": "noise_rms", "rounds": "mean", "cells": [{"value": 2.5}]}
    (found,) = verdict.verdicts(make([entry], mu=[1.0]), {"ours": ours})
    assert (found.mean, found.holds) == (2.5, True)
    (last,) = verdict.verdicts(make([{**entry, "rounds": "last"}], mu=[1.0]), {"ours": ours})
    assert last.mean == pytest.approx((math.sqrt(7) + 3) / 2)


def test_a_mean_over_rounds_needs_several_evaluations():
    recorded = {"output": ["gradient_norm", "noise_mean_square"]}
    one = make([{"metric": "noise_rms", "rounds": "mean"}]).expected
    verdict.check_recorded(one, "ours", recorded, 2)
    with pytest.raises(
        ValueError, match=r"rounds = 'mean' in \[\[expected\]\] must have several evaluations a run, got 1"
    ):
        verdict.check_recorded(one, "ours", recorded, 1)
    verdict.check_recorded(make([{"metric": "gradient_norm"}]).expected, "ours", recorded, 1)
    with pytest.raises(ValueError, match=r"unknown expected.0.rounds 'men', did you mean 'mean'"):
        make([{"rounds": "men"}])
    with pytest.raises(ValueError, match=r"unknown iterate of 'noise_rms' in \[\[expected\]\] 'last'"):
        make([{"metric": "noise_rms", "iterate": "last"}])


def test_titles_name_the_axis_of_a_mean():
    entry = {"metric": "gradient_norm", "rounds": "mean", "rule": "shown"}
    made = make([entry, {**entry, "rounds": "last"}], mu=[1.0], averaged=["gradient_norm"])
    best = {"ours": path([1.0, 2.0], [1.0, 4.0]).assign(realised_epsilon=("seed", [np.inf] * 2))}
    mean, last = verdicts.verdict_tables(verdict.verdicts(made, best))
    assert mean.title.endswith(
        "gradient norm averaged over rounds (mean ± 95% interval); not judged, by the mean over rounds"
    )
    assert "over rounds" not in last.title
    table = tables.results_table(summary(made, best), "gradient_norm")
    assert table.title.startswith("gradient norm averaged over rounds, mean over 2 ")
    assert table.columns[-1].cells[0] == "2.00000"


def test_small_values_of_an_axis_are_distinguished():
    ours = dataset(np.array([[1.0, 1.0], [2.0, 2.0]]), noise_std=[1e-9, 2e-9])
    entry = {"cells": [{"at": {"noise_std": 2e-9}, "value": 2.0}]}
    assert verdict.verdicts(make([entry]), {"ours": ours})[0].mean == 2.0


MACHINES = [10.0, 100.0, 1000.0, 10_000.0]


def sloped(exponent, sd=0.05, seeds=40, factor=3.0):
    """Return runs with the mean `factor·machines^exponent` and the given relative standard deviation."""
    noise = np.random.default_rng(0).normal(size=(len(MACHINES), seeds))
    return factor * np.array(MACHINES)[:, None] ** exponent * (1 + sd * noise)


def judge_slope(runs, value, tolerance=0.15, **more):
    axis = {"axis": "machines", "rule": "slope", "metric": "test_loss", "tolerance": tolerance}
    (found,) = verdict.verdicts(
        make([{**axis, "cells": [{"value": value}], **more}], mu=[1.0]), {"ours": dataset(runs, machines=MACHINES)}
    )
    return found


@pytest.mark.parametrize(
    ("value", "holds"), [(-0.5, True), (-0.64, True), (-0.66, False), (-0.3, True), (-2.0, False), (None, None)]
)
def test_a_slope_may_be_no_shallower_than_the_tolerance_allows(value, holds):
    found = judge_slope(sloped(-0.5, sd=0), value)
    assert (found.mean, found.half, found.sd) == pytest.approx((-0.5, 0, 0), abs=1e-12)
    assert (found.value, found.holds, found.seeds, found.at) == (value, holds, 40, {})


@pytest.mark.slow
def test_the_intervals_of_slopes_hold_the_exponent_as_often_as_they_say():
    rng, missed = np.random.default_rng(1), 0
    for _ in range(200):
        runs = np.array(MACHINES)[:, None] ** -0.5 * (1 + 0.2 * rng.normal(size=(4, 10)))
        slope, half, _ = exponent(dataset(runs, machines=MACHINES)["test_loss"].isel(round=0), "machines")
        missed += abs(slope + 0.5) > half
    assert 2 <= missed <= 22  # 10 are expected


def test_a_common_factor_of_a_seed_adds_nothing_to_the_slopes_interval():
    common = sloped(-0.5, sd=0) * np.random.default_rng(0).uniform(0.5, 1.5, 40)
    assert judge_slope(common, -0.5).half == pytest.approx(0, abs=1e-9)
    assert judge_slope(sloped(-0.5, sd=0.3), -0.5).half > 0.01


@pytest.mark.parametrize("wrong", [-1.0, 0.0, np.nan])
def test_a_slope_of_nonpositive_means_never_holds(wrong):
    runs = sloped(-0.5, sd=0)
    runs[2] = wrong
    found = judge_slope(runs, -0.1)
    assert math.isnan(found.mean)
    assert found.holds is False


def test_a_slope_belongs_to_a_cell_of_the_other_axes():
    runs = np.stack([sloped(-0.5, sd=0), sloped(-1.0, sd=0)], axis=1)
    best = {"ours": dataset(runs, machines=MACHINES, mu=[1.0, 2.0])}
    entry = {"rule": "slope", "axis": "machines", "tolerance": 0.1}
    cells = [{"at": {"mu": 2}, "value": -1.0}, {"at": {"mu": 1}, "value": -1.0}]
    found = verdict.verdicts(make([{**entry, "cells": cells}]), best)
    assert [(v.at, round(v.mean, 6), v.holds) for v in found] == [({"mu": 2}, -1.0, True), ({"mu": 1}, -0.5, False)]
    every = verdict.verdicts(make([entry]), best)
    assert [(v.at, round(v.mean, 6), v.holds) for v in every] == [({"mu": 1}, -0.5, None), ({"mu": 2}, -1.0, None)]


def test_slopes_are_checked_before_anything_runs():
    entry = {"rule": "slope", "axis": "mu"}
    verdict.check_cells(make([{**entry, "cells": [{"value": -1.0}]}], mu=[1, 2, 3]))
    with pytest.raises(ValueError, match=r"axis of a slope .* must have three positive values, got mu = \[1.0, 2.0\]"):
        verdict.check_cells(make([entry]))
    with pytest.raises(ValueError, match=r"three positive values, got machines = \[\]"):
        verdict.check_cells(make([{**entry, "axis": "machines"}]))
    swept = make([{"rule": "slope", "axis": "step_scale", "cells": [{}]}])
    swept.sweep.over["step_scale"] = [1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match=r"expected cell {} must fix mu"):
        verdict.check_cells(swept)
    with pytest.raises(ValueError, match=r"expected cell {'mu': 1.0} must leave mu out: it is the rule's axis"):
        make([{**entry, "cells": [{"at": {"mu": 1.0}}]}])
    for wrong in ({"rule": "slope"}, {"axis": "mu"}):
        with pytest.raises(
            ValueError, match=r"axis in \[\[expected\]\] must go with rule 'slope', 'increases' or 'decreases'"
        ):
            make([wrong])


@pytest.mark.parametrize("tolerance", [-1.0, np.nan, np.inf])
def test_a_tolerance_that_no_cell_can_meet_or_miss_is_refused(tolerance):
    with pytest.raises(
        Refusal, match=rf"^tolerance in \[\[expected\]\] must be finite and not negative, got {tolerance}"
    ):
        make([{"tolerance": tolerance}])


@pytest.mark.parametrize("cell", [{"value": np.nan}, {"at": {"mu": np.nan}, "value": 1.0}])
def test_a_cell_that_is_no_number_is_refused(cell):
    with pytest.raises(Refusal, match=r"^expected cell \{.*\} must have numbers, got nan$"):
        make([{"cells": [cell]}])


def test_the_iterate_that_is_shown_must_be_one_of_some_protocol():
    with pytest.raises(Refusal, match=r"unknown evaluation.iterate 'lost' \(known: .*output"):
        ready_experiment(make([], iterate="lost"))


def test_a_grid_is_chosen_from_by_the_iterate_that_is_shown():
    values = [[[[0.9, 0.1]]], [[[0.2, 0.8]]]]  # [step_size, seed, round, iterate]
    axes = {"step_size": [1.0, 2.0], "iterate": ["output", "last"]}
    data = xr.Dataset({"test_accuracy": (("step_size", "seed", "round", "iterate"), values)}, axes)
    for iterate, best in (("output", 1.0), ("last", 2.0)):
        assert _best(data, ["step_size"], EvaluationSettings(iterate=iterate))["best_step_size"].item() == best
    without = data.sel(iterate="output", drop=True)
    assert _best(without, ["step_size"], EvaluationSettings(iterate="last"))["best_step_size"].item() == 1.0


STEPS = np.random.default_rng(2).normal(scale=0.01, size=(3, 8)).cumsum(axis=0)


@pytest.mark.parametrize(
    ("means", "rule", "holds"),
    [
        ([1.0, 1.1, 1.3], "increases", True),
        ([1.0, 1.1, 1.3], "decreases", False),
        ([1.0, 0.9, 0.7], "decreases", True),
        ([1.0, 1.3, 1.1], "increases", False),
        ([1.0, 1.001, 1.3], "increases", False),  # higher by less than the interval
        ([1.0, np.nan, 1.3], "increases", False),
        ([1.0, 1.0, 1.0], "increases", False),  # a constant predictor has no order
    ],
)
def test_an_order_along_an_axis_needs_every_change_on_its_side(means, rule, holds):
    runs = np.array(means)[:, None] + STEPS
    entry = {"rule": rule, "axis": "mu", "source": "Table 1", "origin": "table"}
    for order in ([0, 1, 2], [2, 0, 1]):  # values may be swept in any order
        values = np.array([1.0, 2.0, 4.0])[order]
        (found,) = verdict.verdicts(make([entry], mu=values), {"ours": dataset(runs[order], mu=values)})
        assert found.holds is holds
    if np.isfinite(means).all():
        changes = np.diff(runs, axis=0).mean(axis=1)
        assert np.isclose(changes, found.mean).any()
    title = verdicts.verdict_tables([found])[0].title
    assert "test loss, the change along mu nearest to the wrong side" in title
    assert "paper's table: Table 1" in title


def test_an_order_needs_two_values():
    with pytest.raises(ValueError, match=r"axis of an order .* must have two values, got mu = \[1.0\]"):
        verdict.check_cells(make([{"rule": "increases", "axis": "mu"}], mu=[1]))


def test_the_line_counts_the_cells_of_each_origin_apart():
    cells = {"cells": [{"at": {"mu": 1}, "value": 0.5}, {"at": {"mu": 2}, "value": 9.0}]}
    entries = [
        {"origin": "table", **cells},
        {"origin": "run", **cells, "rule": "at_most"},
        {"rule": "above", "other": "theirs"},
        {"origin": "table", **cells, "rule": "shown"},
    ]
    best = {label: dataset([RUNS, RUNS], mu=[1.0, 2.0]) for label in ("ours", "theirs")}
    line, holds = verdicts.verdict_line(verdict.verdicts(make(entries), best))
    assert not holds
    assert line == (
        "3 of 6 cells within their tolerance (paper's table 1 of 2, earlier run of this project 2 of 2, comparison "
        "within the run 0 of 2); 2 more are shown and not judged"
    )


def counted():
    """Return the numbers of judged cells of all bundled files by origin, without comparisons within a run."""
    counts = Counter()
    for file in experiment.bundled().values():
        for entry in read_toml(file).get("expected", []):
            judged = 0 if entry.get("rule") == "shown" else sum("value" in cell for cell in entry.get("cells", []))
            assert entry.get("origin") or not judged, f"{file} must state the origin of {entry['source']!r}"
            counts[entry.get("origin", "")] += judged
    return counts


def test_the_page_states_the_counts_of_expected_numbers():
    counts = counted()
    page = Path(__file__).parents[2].joinpath("notebooks", "papers", "index.md").read_text(encoding="utf-8")
    for origin, text in (("table", "tables of papers"), ("code", "runs of the authors' released code")):
        assert f"| {counts[origin]} | {text}" in page
    assert f"| {counts['run']} | earlier runs" in page
    assert f"| {counts['derivation']} | derivations" in page
    assert f"| {counts['text']} | numbers in a paper's text" in page


METHODS = {"MB-SGD": "MB", "local SGD": "Local", "noisy MB-SGD": "LDP_MB", "noisy local SGD": "LDP_Local"}


def test_numbers_of_the_authors_code_are_those_of_the_bundled_table():
    file = experiment.bundle() / "lowy-razaviyayn-2023" / "authors_code.csv"
    with file.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    seen = 0
    for path in file.parent.rglob("*.toml"):
        made = read_toml(path)
        machines, per_round = made["participation"]["machines"], made["participation"].get("per_round")
        options = made["problem"]["options"]
        kind = f"mnist_p{options['similarity']:g}" if "similarity" in options else "insurance"
        for entry in (one for one in made["expected"] if "released code" in one["source"]):
            for cell in entry["cells"]:
                at = cell.get("at", {})
                wanted = {"experiment": kind, "N": machines, "M": at.get("per_round", per_round)}
                wanted |= {"algorithm": METHODS[entry["protocol"]], "eps": at.get("epsilon")}
                (row,) = (row for row in rows if all(same(row[key], value) for key, value in wanted.items()))
                assert cell["value"] == round(float(row["mean"]), 6)
                if entry["rule"] == "within_se":
                    assert (cell["sd"], cell["runs"]) == (round(float(row["std"]), 6), int(row["trials"]))
                seen += 1
    assert seen == 3 * 70


def same(text, value):
    """Return True if a cell of the CSV file has a value; None is empty."""
    if value is None or isinstance(value, str):
        return text == (value or "")
    return text != "" and float(text) == value
