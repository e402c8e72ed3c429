import numpy as np
import pytest

from fedprivjax import Refusal
from fedprivjax.privacy import gdp
from fedprivjax.theory import cheu


def test_best_batches_of_the_specification():
    paper = cheu.paper_noise_constant(1.0, 1e-6, 10)
    levels = 2 * np.sqrt(1000)
    exact = cheu.gaussian_noise_constant(1.0, 1e-6, 10, levels_ratio=(levels + 2 * np.sqrt(10)) / levels)
    assert int(cheu.sgd_best_per_round(paper)) == 12643
    assert int(cheu.sgd_best_per_round(exact)) == 29


@pytest.mark.parametrize(
    ("users", "dimension", "epsilon", "paper", "central"),
    [
        (1000, 10, 1, 3998, 8.45),
        (1000, 10, 4, 1000, 2.39),
        (10_000, 100, 1, 4534, 8.45),
        (60_000, 784, 2, 2515, 4.46),
        (60_000, 7850, 8, 698, 1.31),
    ],
)
def test_stds_of_the_specifications_table(users, dimension, epsilon, paper, central):
    in_full = cheu.paper_noise_constant(epsilon, 1e-6, dimension, users)
    assert np.sqrt(in_full / dimension) == pytest.approx(paper, abs=0.5)
    assert np.sqrt(in_full / dimension) == pytest.approx(
        np.sqrt(cheu.paper_noise_constant(epsilon, 1e-6, dimension) / dimension), rel=1e-4
    )
    gaussian = cheu.gaussian_noise_constant(epsilon, 1e-6, dimension)
    assert np.sqrt(gaussian / dimension) == pytest.approx(central, abs=0.005)


def test_the_papers_probability_where_few_trials_are_enough():
    """For large ε and tiny dimension p differs from 1/2; g and q of the paper are computed here."""
    epsilon, delta, d, n = 15.0, 0.4, 1, 100
    share = epsilon / (18 * np.sqrt(np.log(2 / delta)))
    c = 20**2 * np.log(2 / (delta / 2)) / (share**2 * n)
    trials = np.floor(180 * c) + 1
    heads = 90 * c / trials
    variance = 4 * n * trials * heads * (1 - heads) / 20**2
    assert abs(heads - 0.5) > 5e-5
    assert cheu.paper_noise_constant(epsilon, delta, d, n) == pytest.approx(variance, rel=1e-12)


def test_releases_share_a_budget():
    once = cheu.gaussian_noise_constant(2.0, 1e-5, 3)
    assert cheu.gaussian_noise_constant(2.0, 1e-5, 3, releases=7) == pytest.approx(7 * once)
    sigma = np.sqrt(7 * once / 3) / 2
    assert gdp.epsilon(gdp.compose([1 / sigma] * 7), 1e-5) == pytest.approx(2.0)


def test_pan_private_noise():
    paper = cheu.pan_private_noise_constant(0.9, 1e-6, 10, "paper")
    exact = cheu.pan_private_noise_constant(0.9, 1e-6, 10)
    b, lipschitz = 7, 3.0
    zeta = np.sqrt(8 * lipschitz**2 * np.log(2 / 1e-6) / (b * 0.9) ** 2)
    private = cheu.oracle_variance(per_round=b, lipschitz=lipschitz, noise=paper, sampling=False)
    assert private == pytest.approx(2 * 10 * zeta**2)
    assert np.sqrt([paper / 80, exact / 80]) == pytest.approx([5.985, 4.66], abs=0.005)  # ζ over the sensitivity 2L/b
    assert cheu.pan_private_noise_constant(3.0, 1e-6, 10) < exact


def test_oracle_variance_takes_a_constant_that_depends_on_the_batch():
    local = cheu.oracle_variance(per_round=np.array([1, 4]), lipschitz=2.0, noise=lambda b: 5 * b)
    np.testing.assert_allclose(local, [4 * 6, 6])


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: cheu.paper_noise_constant(15.5, 1e-6, 10), "epsilon must be at most 15 with the paper's constants"),
        (lambda: cheu.paper_noise_constant(1.0, 0.5, 10), "delta must be below 1/2 with the paper's constants"),
        (lambda: cheu.pan_private_noise_constant(1.0, 1e-6, 10, "paper"), "epsilon must be below 1 with the paper's"),
        (lambda: cheu.pan_private_noise_constant(0.5, 1e-6, 10, "papr"), "did you mean 'paper'"),
        (lambda: cheu.gaussian_noise_constant(1.0, 1e-6, 0), "dimension must be at least 1"),
        (lambda: cheu.gaussian_noise_constant(1.0, 1e-6, 2, levels_ratio=0.5), "levels_ratio must be at least 1"),
        (lambda: cheu.oracle_variance(per_round=3, lipschitz=1.0, noise=lambda b: -b), "noise must be at least 0"),
    ],
)
def test_refusals(call, line):
    with pytest.raises(Refusal, match=line) as refusal:
        call()
    assert "\n" not in str(refusal.value)
