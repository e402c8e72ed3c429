import numpy as np
import pytest
import xarray as xr
from scipy import stats
from small_results import small_results

from fedprivjax import (
    Ball,
    DPMu2,
    NoisySGD,
    Refusal,
    Softmax,
    Uniform,
    final,
    guarantee_of,
    linear_problem,
    mean_interval,
    rounds_to,
    sweep,
)
from fedprivjax.experiment import folder as results_folder
from fedprivjax.privacy import gdp
from fedprivjax.sweeps.schema import COSTS, NUMBERS, OF_CONFIGURATION, OF_RUN, REQUIRED, RUN_COSTS, TEXT_ATTRIBUTES

NAN = np.nan


def dataset(values, **more):
    values = np.asarray(values, float)
    return xr.Dataset(
        {"loss": (("mu", "seed", "round"), values), **more},
        {"mu": [1.0, np.inf][: values.shape[0]], "round": 5 * np.arange(1, values.shape[2] + 1)},
    )


@pytest.fixture(scope="module")
def swept():
    rng = np.random.default_rng(61)
    features, labels = rng.normal(size=(40, 3)), rng.integers(0, 2, 40)
    problem = linear_problem(
        features, labels, Softmax(2), feature_bound=6.0, constraint=Ball(1.0), test=(features[:8], labels[:8])
    )
    return sweep(
        DPMu2(clip=1.0),
        problem,
        Uniform(5, 2),
        over={"mu": [1.0, np.inf], "step_scale": [0.5, 1.0, 2.0]},
        seeds=[3, 5],
        rounds=6,
        eval_every=4,
        metrics=("test_loss", "train_loss", "noise_norm"),
        delta=1e-6,
    )


def test_rounds_to_is_the_first_evaluation_at_or_below_a_loss_and_nan_without_one_or_after_divergence():
    data = dataset([[[3, 1, 2], [1, 1, 1], [3, 3, 3], [1, 1, NAN]]], diverged=(("mu", "seed"), [[False] * 3 + [True]]))
    assert np.array_equal(rounds_to(data, "loss", 1.0).values, [[10.0, 5.0, NAN, NAN]], equal_nan=True)
    assert np.array_equal(rounds_to(data, "loss", 0.9), np.full((1, 4), NAN), equal_nan=True)


def test_rounds_to_a_fraction_counts_the_run_that_reaches_it_exactly_in_float32():
    data = dataset([[[0.1, float(np.float32(0.9))]]]).rename(loss="test_accuracy")  # float32(0.9) < 0.9
    assert rounds_to(data, "test_accuracy", 0.9).values.tolist() == [[10.0]]


def test_final_takes_each_runs_last_record():
    data = dataset([[[3, 2, 1], [6, 5, NAN]], [[9, NAN, NAN], [8, NAN, 7]]])
    last = final(data, "loss")
    assert last.dims == ("mu", "seed")
    assert last.values.tolist() == [[1, 5], [9, 7]]
    np.testing.assert_array_equal(last["mu"], [1.0, np.inf])
    assert "round" not in last.coords


def test_final_of_a_run_without_records_is_nan():
    assert np.isnan(final(dataset([[[NAN, NAN]]]), "loss").values).all()


def test_final_of_a_diverged_run_is_not_its_last_good_number():
    diverged = (("mu", "seed"), [[False, True]])
    last = final(dataset([[[3, 2, NAN], [3, 1, NAN]]], diverged=diverged), "loss")
    assert last.values[0, 0] == 2
    assert np.isnan(last.values[0, 1])


@pytest.mark.parametrize("level", [0.95, 0.5, 0.99])
def test_mean_interval_is_students(level):
    values = np.random.default_rng(62).normal(3, 2, size=(4, 9))
    mean, half = mean_interval(xr.DataArray(values, dims=("mu", "seed")), level)
    assert mean.dims == half.dims == ("mu",)
    low, high = stats.t.interval(level, 8, loc=values.mean(1), scale=stats.sem(values, axis=1))
    np.testing.assert_allclose(mean - half, low, rtol=1e-12)
    np.testing.assert_allclose(mean + half, high, rtol=1e-12)


def test_mean_interval_covers_as_often_as_it_says():
    values = np.random.default_rng(63).normal(1.0, 2.0, size=(4000, 5))
    mean, half = mean_interval(xr.DataArray(values, dims=("run", "seed")), 0.9)
    covered = float((np.abs(mean - 1.0) <= half).mean())
    assert abs(covered - 0.9) < 4 * np.sqrt(0.9 * 0.1 / 4000)


def test_a_single_seed_has_no_interval():
    mean, half = mean_interval(xr.DataArray([[2.0], [3.0]], dims=("mu", "seed"), coords={"seed": [7]}))
    assert mean.values.tolist() == [2.0, 3.0]
    assert np.isnan(half.values).all()
    assert half.dims == ("mu",)


def test_a_diverged_seed_makes_no_narrower_interval():
    values = [1.0, 2.0, 4.0, NAN]
    mean, half = mean_interval(xr.DataArray(values, dims="seed"))
    honest = stats.t.ppf(0.975, 2) * stats.sem(values[:3])
    assert np.isnan(mean) or (float(mean), float(half)) == pytest.approx((7 / 3, honest))


def test_the_axes_of_a_sweep(swept):
    assert dict(swept.sizes) == {"mu": 2, "step_scale": 3, "seed": 2, "round": 2}
    assert swept["test_loss"].dims == ("mu", "step_scale", "seed", "round")
    assert swept["diverged"].dims == swept["realised_mu"].dims == ("mu", "step_scale", "seed")
    assert swept["noise_std"].dims == swept["step_size"].dims == ("mu", "step_scale")
    assert swept["diverged"].dtype == bool
    np.testing.assert_array_equal(swept["mu"], [1.0, np.inf])
    np.testing.assert_array_equal(swept["seed"], [3, 5])
    np.testing.assert_array_equal(swept["round"], [4, 6])


def test_the_privacy_of_a_sweep(swept):
    assert (swept["realised_mu"].sel(mu=1.0) <= 1.0 + 1e-9).all()
    np.testing.assert_allclose(swept["realised_mu"].sel(mu=1.0), 1.0, rtol=1e-9)  # uniform spends the whole budget
    np.testing.assert_array_equal(swept["realised_mu"].sel(mu=np.inf), np.inf)
    np.testing.assert_allclose(swept["realised_epsilon"].sel(mu=1.0), gdp.epsilon(1.0, 1e-6), rtol=1e-6)
    np.testing.assert_array_equal(swept["noise_std"].sel(mu=np.inf), 0.0)
    np.testing.assert_allclose(swept["noise_std"].sel(mu=1.0), 2.0)
    ratios = swept["step_size"] / swept["step_size"].sel(step_scale=1.0)
    np.testing.assert_allclose(ratios, np.tile([0.5, 1.0, 2.0], (2, 1)))


def test_the_guarantee_travels_with_the_numbers(swept):
    attributes = swept.attrs
    assert attributes["protocol"] == "DPMu2"
    assert attributes["delta"] == 1e-6
    for mu, scale in np.ndindex(2, 3):
        member = swept.isel(mu=mu, step_scale=scale)
        guarantee = guarantee_of(member)
        assert (guarantee.unit, guarantee.relation) == ("one record of one machine", "replace-one")
        assert (guarantee.trust, guarantee.delta) == ("none", 1e-6)
        assert "Reshef & Levy 2025" in guarantee.theorem
        assert guarantee.epsilon == pytest.approx(float(member["realised_epsilon"].max()))
        assert guarantee.private == (mu == 0)
    assert attributes["selection"].startswith("not accounted for")
    assert set(attributes["non_private_metrics"].split(", ")) == {"train_loss", "noise_norm"}
    assert attributes["noise"].endswith("shared by the grid's configurations, whose guarantees do not compose")


@pytest.mark.slow
def test_every_metric_on_private_data_is_marked():
    features = np.random.default_rng(64).normal(size=(12, 3))
    problem = linear_problem(
        features, np.arange(12) % 2, Softmax(2), constraint=Ball(1.0), feature_bound=6.0, optimum=np.zeros((2, 3))
    )
    found = sweep(
        NoisySGD(mu=1.0, clip=1.0, average=True),
        problem,
        Uniform(4, 2),
        seeds=1,
        rounds=2,
        metrics=("train_loss", "excess_risk", "distance"),
    )
    marked = set(found.attrs["non_private_metrics"].split(", "))
    # without a test set the excess risk is a mean over the training pool
    assert {"train_loss", "excess_risk"} == marked


def test_the_output_is_meant_unless_another_iterate_is_named():
    values = np.arange(12.0).reshape(2, 3, 2)
    data = xr.Dataset({"loss": (("seed", "round", "iterate"), values)}, {"iterate": ["output", "last"]})
    assert final(data, "loss").values.tolist() == [4.0, 10.0]
    assert final(data, "loss", "last").values.tolist() == [5.0, 11.0]
    assert final(data, "loss", "last").dims == ("seed",)
    last_round = data["loss"].isel(round=-1)
    assert [float(mean_interval(last_round, iterate=name)[0]) for name in ("output", "last")] == [7.0, 8.0]
    assert float(mean_interval(last_round)[0]) == 7.0
    with pytest.raises(ValueError, match=r"unknown iterate 'lost', did you mean 'last'\?"):
        final(data, "loss", "lost")
    with pytest.raises(ValueError, match=r"unknown iterate 'last' \(known: output\)"):
        final(data.isel(iterate=0, drop=True), "loss", "last")


def test_iterates_survive_their_folder(tmp_path):
    results_folder.save({"ours": small_results(np.arange(12.0).reshape(2, 1, 3, 2))}, tmp_path)
    assert final(results_folder.load(tmp_path)["ours"], "test_loss", "last").values.tolist() == [[5.0, 11.0]]


def test_a_sweep_writes_what_is_required_of_results_from_elsewhere(swept):
    assert {*OF_RUN, *OF_CONFIGURATION, *RUN_COSTS, *COSTS} <= set(swept.data_vars)
    assert set(REQUIRED) <= set(swept.attrs) <= {*NUMBERS, *TEXT_ATTRIBUTES}


def test_configurations_that_share_their_noise_do_not_compose(swept, tmp_path):
    results_folder.save({"ours": swept}, tmp_path)
    for data in (swept, results_folder.load(tmp_path)["ours"]):
        one, other = (data.isel(mu=0, step_scale=scale) for scale in (0, 1))
        for first, second in ((one, other), (one, other.isel(seed=0)), (one.isel(seed=1), other.isel(seed=1))):
            with pytest.raises(Refusal, match=r"^other must have noise of its own, got the noise of this run"):
                guarantee_of(first).then(guarantee_of(second))
        assert guarantee_of(one.isel(seed=0)).then(guarantee_of(other.isel(seed=1))).mu == pytest.approx(2**0.5)


def test_a_sweep_survives_its_folder(swept, tmp_path):
    results_folder.save({"DP-μ², untrusted": swept}, tmp_path)
    loaded = results_folder.load(tmp_path)
    xr.testing.assert_identical(loaded["DP-μ², untrusted"], swept)
    assert np.isinf(loaded["DP-μ², untrusted"]["mu"].values[-1])
    member = {"mu": 1.0, "step_scale": 2.0}
    loaded_guarantee, guarantee = (guarantee_of(data.sel(member)) for data in (loaded["DP-μ², untrusted"], swept))
    assert str(loaded_guarantee) == str(guarantee)
