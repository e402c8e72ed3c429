"""Experiments whose data are resampled in every trial, and whose step sizes are tuned in each trial."""

import numpy as np
import pytest
import xarray as xr

from fedprivjax import experiment, final, load, run_of
from fedprivjax.datasets.insurance import available
from fedprivjax.experiment import folder, verdict
from fedprivjax.experiment import jobs as listed
from fedprivjax.experiment import run as runner
from fedprivjax.experiment.expected import Cell
from fedprivjax.experiment.tuning import selected
from fedprivjax.layout.wording import range_text
from fedprivjax.leaderboards.leaderboard import entries
from fedprivjax.privacy.noise_rules import moments_batch
from fedprivjax.report import plots, tables, verdicts
from fedprivjax.report.summary import Summary, summary

ROWS = "age,sex,bmi,children,smoker,region,charges\n"


@pytest.fixture(scope="module")
def insured(tmp_path_factory):
    """Path of a small file of synthetic people."""
    rng = np.random.default_rng(0)
    regions = ["northeast", "northwest", "southeast", "southwest"]
    lines = [
        f"{rng.integers(18, 64)},{rng.choice(['female', 'male'])},{rng.uniform(16, 50):.2f},{rng.integers(0, 5)},"
        f"{rng.choice(['yes', 'no'])},{rng.choice(regions)},{rng.uniform(1e3, 5e4):.2f}\n"
        for _ in range(60)
    ]
    path = tmp_path_factory.mktemp("insured") / "insured.csv"
    path.write_text(ROWS + "".join(lines))
    return path


def make(path, *protocols, sweep=None, participation=None, **more):
    common = {"batch": 4, "sampler": "replacement", "clip": 1e4}
    steps = [{} if "step_size" in entry.get("grid", {}) else {"step_size": 1e-3} for entry in protocols]
    return experiment.parse(
        {
            "title": "trials",
            "problem": {"dataset": "insurance", "options": {"machines": 3, "path": str(path)}, "loss": "squared"},
            "participation": {"machines": 3, "per_round": 2, "rounds": 3, **(participation or {})},
            "protocol": [
                {"name": "noisy_minibatch_sgd", **common, **step, **entry}
                for entry, step in zip(protocols, steps, strict=True)
            ],
            "sweep": {"epsilon": [1.0, 4.0], "trials": 3, "seeds": 2, **(sweep or {})},
            "evaluation": {"metrics": ["train_loss", "relative_mse"], "select": "train_loss", "delta": 1e-4},
            **more,
        }
    )


@pytest.fixture(scope="module")
def steps(insured):
    """Return an experiment that tunes its step sizes, and its results."""
    made = make(insured, {"label": "ours", "grid": {"step_size": [0.05, 0.5, 1.0]}}, sweep={"resample": ["step_size"]})
    return made, runner.run(made)["ours"]


@pytest.mark.slow
def test_every_trial_keeps_its_parameters_and_its_preparation_of_rows(insured):
    grid = {"step_size": [0.05, 0.5]}
    made = make(insured, {"label": "ours", "grid": grid}, sweep={"trials": 2, "keep": ["params"]})
    data = runner.run(made)["ours"]
    assert set(data["params"].dims) == {"epsilon", "step_size", "trial", "seed", "parameter"}
    runs = [run_of(data.isel(epsilon=0, step_size=1, trial=trial, seed=1)) for trial in range(2)]
    assert not np.array_equal(runs[0].params, runs[1].params)
    assert all(run.predictor is not None for run in runs)
    best = selected(made, {"ours": data})["ours"]
    assert "params" not in best
    assert best["seed"].size == 2


@pytest.mark.slow
def test_rows_of_the_leaderboard_have_the_guarantee_of_the_worst_trial(steps, tmp_path):
    made, data = steps
    folder.claim(tmp_path, made)
    folder.save({"ours": data}, tmp_path, "trials", 1.0, {"experiment": "trials", "command": "fedprivjax run trials"})
    best = load(tmp_path).best["ours"]
    assert set(best["guarantee"].dims) == {"epsilon", "seed"}
    assert np.unique(best["guarantee"].sel(epsilon=1.0)).size == 3
    board, refused = entries(tmp_path)
    assert not refused
    assert [row["target_epsilon"] for row in board.rows] == [1.0, 4.0]
    for row in board.rows:
        assert row["epsilon"] == pytest.approx(float(best["realised_epsilon"].sel(epsilon=row["target_epsilon"]).max()))
        assert row["seeds"] == 3
    assert "those of the worst run, also over trials" in str(board)


def test_data_seeds_and_steps_of_every_trial_are_its_own(steps):
    made, data = steps
    sizes = {"trial": 3, "epsilon": 2, "step_size": 3, "seed": 2, "round": data.sizes["round"], "iterate": 2}
    assert dict(data.sizes) == sizes
    values = final(data, "train_loss")
    assert np.unique(values).size == values.size
    first, second = listed.jobs(made)[:2]
    assert [first.shape, second.shape] == [{"trial": 0}, {"trial": 1}]
    one, other = first.prepare(), second.prepare()
    assert not np.array_equal(one.first.plan.samples, other.first.plan.samples)
    assert not np.array_equal(one.first.problem.pool.features, other.first.problem.pool.features)
    draws, others = ({start.seeds for start in sweep.starts} for sweep in (one, other))
    assert not draws & others
    assert len(draws) == 2 * 3  # seeds times the resampled steps


def test_the_step_is_chosen_in_each_trial_and_its_runs_are_averaged(steps):
    made, data = steps
    best = selected(made, {"ours": data})["ours"]
    assert best["seed"].size == 3
    assert best["seed"].attrs["unit"] == "trials"
    losses = final(data, "train_loss").mean("seed")
    choice = losses.argmin("step_size")
    chosen = best["best_step_size"].transpose("epsilon", "seed")
    np.testing.assert_allclose(chosen, data["step_size"].values[choice.transpose("epsilon", "trial").values])
    assert np.unique(chosen).size > 1
    (sheet,) = tables.chosen_tables(summary(made, {"ours": best}))
    assert sheet.columns[-1].cells == [range_text(*row.tolist()) for row in chosen.values]
    squares = final(data, "relative_mse").mean("seed").isel(step_size=choice)
    expected = np.sqrt(squares).transpose("epsilon", "trial")  # the root of the mean, not the mean of the roots
    np.testing.assert_allclose(final(best, "relative_rmse").transpose("epsilon", "seed"), expected)


def test_trials_are_resampled_identically_instead_of_stored(steps):
    job = listed.jobs(steps[0])[1]
    one, again = job.prepare(), job.prepare()
    assert one is not again
    np.testing.assert_array_equal(one.starts[3].plan.samples, again.starts[3].plan.samples)


def test_the_privacy_of_a_trial_is_that_of_its_worst_run(steps):
    made, data = steps[0], steps[1].copy(deep=True)
    for name in ("realised_mu", "realised_epsilon"):
        data[name][1, 0, :, 1] *= 3  # one run of a trial
    best = selected(made, {"ours": data})["ours"]
    choice = final(data, "train_loss").mean("seed").argmin("step_size")
    worst = data["realised_epsilon"].max("seed").isel(step_size=choice)
    found = best["realised_epsilon"].transpose("epsilon", "seed")
    np.testing.assert_allclose(found, worst.transpose("epsilon", "trial"))
    assert found[0, 1] > 2.9 * found[0, 0]


def test_a_diverged_step_is_not_chosen(insured):
    entry = {"label": "ours", "epsilon": float("inf"), "clip": 1e30, "grid": {"step_size": [1e-4, 1e30]}}
    made = make(insured, entry, sweep={"epsilon": [1.0], "trials": 2})
    data = runner.run(made)
    assert data["ours"]["diverged"].sel(step_size=1e30).all()
    best = selected(made, data)["ours"]
    assert (best["best_step_size"] == 1e-4).all()
    assert not best["diverged"].any()


def with_batches(insured):
    return make(insured, {"label": "ours", "batch": "moments"}, sweep={"trials": 1})


def test_a_batch_that_follows_from_epsilon(insured):
    made = with_batches(insured)
    jobs = listed.jobs(made)
    assert [job.shape for job in jobs] == [{"trial": 0, "epsilon": 1.0}, {"trial": 0, "epsilon": 4.0}]
    fewest = int(jobs[0].prepare().first.problem.partition_table.sizes.min())
    batches = [moments_batch(records=fewest, rounds=3, epsilon=epsilon) for epsilon in (1.0, 4.0)]
    assert [job.prepare().first.protocol.batch for job in jobs] == batches
    assert batches[1] == pytest.approx(2 * batches[0], abs=1)


@pytest.mark.slow
def test_runs_of_batches_that_follow_from_epsilon(insured):
    data = runner.run(with_batches(insured))["ours"]
    assert data["epsilon"].values.tolist() == [1.0, 4.0]
    np.testing.assert_allclose(data["realised_epsilon"].max(), 4.0, rtol=0.05)


@pytest.mark.parametrize(
    ("entry", "sweep", "says"),
    [
        ({"batch": "moment"}, {}, "unknown batch 'moment', did you mean 'moments'"),
        ({"batch": "moments", "epsilon": 1.0}, {}, "batch 'moments' must go with a swept epsilon"),
        ({}, {"trials": 0}, "sweep.trials must be at least 1, got 0"),
    ],
)
def test_refusals(insured, entry, sweep, says):
    with pytest.raises(ValueError, match=says):
        listed.jobs(make(insured, {"label": "ours", **entry}, sweep=sweep))


def judged(values, cell, **rule):
    """Return the verdict on one cell of trials."""
    made = experiment.parse(
        {
            "title": "judged",
            "problem": {"dataset": "digits"},
            "participation": {"machines": 2, "per_round": 2},
            "protocol": [{"name": "dp_mu2", "label": "ours"}],
            "expected": [
                {"protocol": "ours", "metric": "test_error", "rule": "within_se", "cells": [cell], **rule},
            ],
        }
    )
    data = xr.Dataset({"test_error": (("seed", "round"), np.array(values)[:, None])}, {"round": [1]})
    return verdict.verdicts(made, {"ours": data})


def test_standard_error_pools_both_sides():
    ours = [0.1, 0.2, 0.3]
    (found,) = judged(ours, {"value": 0.5, "sd": 0.2, "runs": 5}, tolerance=3)
    pooled = np.sqrt((0.01 * 2 + 0.04 * 4) / 6)
    assert found.sd == pytest.approx(pooled * np.sqrt(1 / 3 + 1 / 5))
    assert found.holds is (3 * found.sd >= 0.3)


@pytest.mark.parametrize(("off", "holds"), [(2.99, True), (-2.99, True), (3.01, False), (-3.01, False)])
def test_standard_errors_on_both_sides_of_the_edge(off, holds):
    ours = [0.1, 0.2, 0.3]
    (near,) = judged(ours, {"value": 0.2, "sd": 0.1, "runs": 3}, tolerance=3)
    (found,) = judged(ours, {"value": 0.2 + off * near.sd, "sd": 0.1, "runs": 3}, tolerance=3)
    assert found.holds is holds


def lines(offsets, share=0.75, limit=5.0):
    """Return `verdict_line` of cells with the given deviations in standard errors."""
    rule = experiment.Expected(protocol="a", rule="within_se", tolerance=3, share=share, limit=limit)
    cells = [verdict.Verdict(rule, {}, off, 0.1, 1.0, 20, 0.0, abs(off) <= 3) for off in offsets]
    return verdicts.verdict_line(cells)


def test_a_share_of_the_cells_is_enough_but_none_beyond_the_limit():
    assert lines([0, 1, -2, 4])[1]
    assert not lines([0, 1, -3.5, 4])[1]
    assert not lines([0, 1, 2, 5.1])[1]
    assert not lines([0, 1, 2, -5.1])[1]
    assert "3 of 4" in lines([0, 1, -2, 4])[0]


@pytest.mark.slow
def test_the_realised_axis_is_what_the_noise_gives(insured):
    released = {"name": "released_minibatch_sgd", "acknowledged": True, "clip_at": "message"}
    entry = {"label": "ours", "noise_rule": "paper_moments", **released}
    made = make(insured, entry, sweep={"trials": 2})
    best = selected(made, runner.run(made))
    realised = best["ours"]["realised_epsilon"].max("seed")
    assert (realised > 3 * realised["epsilon"]).all()  # a clipped mean does not hide one record
    axis = plots.metric_against_epsilon(Summary(best), "relative_rmse").axes[0]
    np.testing.assert_allclose(axis.lines[0].get_xdata(), realised)
    table = tables.realised_table(summary(made, best))
    assert [float(cell.removesuffix(" !")) for cell in table.columns[-1].cells] == pytest.approx(
        realised.values.tolist(), rel=0.01
    )


@pytest.mark.skipif(not available(), reason="insurance.csv is neither in $FEDPRIVJAX_DATA nor in the cache")
def test_expected_cells_of_a_bundled_figure_are_all_of_its_points():
    made = experiment.load("lowy-razaviyayn-2023/figure4/3-of-3-as-run")
    authors = [e for e in made.expected if e.origin == "code"]
    cells = {(e.protocol, c.at.get("epsilon")) for e in authors for c in e.cells}
    assert len(cells) == 2 + 2 * len(made.sweep.over["epsilon"]) == 14
    assert all(isinstance(c, Cell) and c.sd and c.runs == 20 for e in authors for c in e.cells)
